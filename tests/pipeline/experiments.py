"""Experiments composed as the command composes them."""

from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import open_dict

from pipeline.config.experiment import Experiment, read
from pipeline.config.schemas import register_schemas
from pipeline.paths import CONF

QUICK = ("train.epochs=2", "model.network.filters=[8,16]")
"""Settings of a run that is over in about two seconds."""


def experiment(*overrides: str, outputs: Path | None = None) -> Experiment:
    """Returns what `python -m pipeline <overrides>` would run."""
    register_schemas()
    GlobalHydra.instance().clear()
    given = [*overrides, *([f"outputs={outputs}"] if outputs else [])]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        document = compose("config", given, return_hydra_config=True)
    choices = dict(document.hydra.runtime.choices)
    with open_dict(document):
        document.pop("hydra")
    return read(document, choices)
