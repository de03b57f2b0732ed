"""The Keras model of a run that has not exported it: built by the run's settings, with the weights that it saved."""

from importlib import import_module
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipeline.paths import shorter
from pipeline.planning.earlier import TRAIN
from pipeline.planning.inherited import known_targets
from pipeline.provenance.source_digest import targets_in
from pipeline.system.environment import quiet_stderr
from pipeline.tracking.models import RESULTS
from pipeline.tracking.params import CONFIGURATION
from stages.errors import UserError
from stages.settings.model import ModelSettings, PrecisionSettings
from stages.settings.places import regular_file
from stages.settings.strategy import DefaultSettings


def rebuilt_model(run: Path, trust: bool = False) -> Any:
    """Returns the model as `export=keras` writes it: a functional one of the network's layers, pixels to probabilities.

    It needs neither the data nor checkpoints: the results that the run has kept for `from=` suffice.

    Args:
        run: the folder of a run whose training has ended.
        trust: whether to import networks that no file of `conf/` names.

    Raises:
        UserError: where the run has no trained weights, its configuration cannot be read, or its network is
            custom and not trusted.
    """
    results = run / RESULTS
    settings = _settings(run, trust)
    if not (results / TRAIN).is_dir():
        raise UserError(
            f"{shorter(run)} has no trained weights in {RESULTS}/{TRAIN}",
            "a run that has completed its training",
            f"python -m pipeline resume={run}",
        )
    with quiet_stderr():
        saved = import_module("stages.checkpoints.saved")
        dataset = saved.blank_dataset(results / TRAIN)
        if (results / "normalize").is_dir():
            dataset = import_module("stages.data.normalization").restore_scaling(results / "normalize", dataset)
        here = import_module("stages.strategy").strategy(DefaultSettings(deterministic=False))
        model = import_module("stages.model").model(dataset, here, settings)
        trained = saved.restore_trained(results / TRAIN, model, dataset, here)
        return import_module("stages.exporters.keras_file").lasting_classifier(trained.model)


def _settings(run: Path, trust: bool) -> ModelSettings:
    """Returns the settings of the run's stage `model`, with no weights to be loaded before the trained ones."""
    path = run / CONFIGURATION
    try:
        values: Any = OmegaConf.to_container(OmegaConf.load(regular_file(path)), resolve=True)
        values = dict(values["model"])
        target = values.pop("_target_")
        precision = PrecisionSettings(**values.pop("precision"))
        settings = ModelSettings(**{**values, "precision": precision, "weights": "none"})
    except Exception as error:  # a damaged file can hold anything
        raise UserError(
            f"{shorter(path)} cannot be read ({type(error).__name__}); it has the settings of the network",
            "a run with its configuration",
        ) from error
    export = f"python -m pipeline from=export run={run} export=keras"
    if target != ModelSettings._target_:
        raise UserError(f"{shorter(run)} has a custom stage model, {target}", "a run that exported it", export)
    foreign = sorted({*targets_in(settings.network)} - known_targets(()))
    if foreign and not trust:
        raise UserError(
            f"{shorter(run)} has a custom network, {', '.join(foreign)}, whose code would run",
            "trust=True, once you have read that code, or a run that exported the model",
            'load_model("keras", trust=True)',
        )
    return settings
