"""All checks of an experiment, before TensorFlow is imported and anything is recorded."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pipeline.checks.combinations import COMBINATIONS, expected_replicas
from pipeline.checks.own_code import check_own_code
from pipeline.config.experiment import Experiment
from pipeline.targets import check_installed
from pipeline.tracking.store import store_is_usable
from stages.errors import UserError
from stages.settings.data import DataSettings
from stages.settings.model import KerasHubSettings, ModelSettings
from stages.settings.results import ExportSettings, schema_of
from stages.settings.strategy import TpuSettings
from stages.settings.train import METRICS, TaskSettings, TrainSettings

PATTERNS = "*?[]\\%"
"""Characters that TensorFlow's export reads as a pattern, or SQLAlchemy as a part of an address."""


def check_rules(experiment: Experiment, surroundings: bool = True) -> None:
    """Raise UserError for the first rule that `experiment` breaks.

    Args:
        surroundings: whether to check the folder and the server of its results, too.
    """
    if not experiment.pipeline:
        raise UserError("`pipeline` names no stage", "at least one", "pipeline.<stage>=<what it makes>")
    train, data = experiment.of("train", TrainSettings), experiment.of("load", DataSettings)
    replicas = expected_replicas(experiment)
    if train and replicas:
        train.check_share(replicas, data.train_examples() if data else None)
    for rule in COMBINATIONS:
        if error := rule.error(experiment):
            raise error
    for check in (_monitor_is_known, _tpu_exists, _packages_are_installed, check_own_code):
        check(experiment)
    if surroundings:
        check_surroundings(experiment)


def check_surroundings(experiment: Experiment) -> None:
    """Raise UserError where results cannot be kept, in a folder or a server that all jobs of a sweep share."""
    folder = experiment.outputs
    if any(character in PATTERNS or not character.isprintable() for character in str(folder)):
        expected = f"a path without {' '.join(PATTERNS)} and control characters, which TensorFlow or SQLite misreads"
        raise UserError(f"outputs={str(folder)!r} takes no files", expected, "outputs=./outputs")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        problem = f"outputs={folder} cannot be written ({error.strerror})"
        raise UserError(problem, "a directory of yours", "outputs=./outputs") from error
    store_is_usable(experiment)


def _monitor_is_known(experiment: Experiment) -> None:
    """Refuse a metric that no task of the project's has; what another one has is known when the network is built."""
    train, model = experiment.of("train", TrainSettings), experiment.of("model", ModelSettings)
    task = model.task if model is not None else None
    if train is None or not isinstance(task, TaskSettings) or task.metrics or task._target_ is not None:
        return
    if train.monitor.removeprefix("val_") not in METRICS:
        known = [f"val_{name}" for name in METRICS]
        raise UserError(f"train.monitor={train.monitor} is not known", known, "train.monitor=val_loss")


def _tpu_exists(experiment: Experiment) -> None:
    strategy = experiment.of("strategy", TpuSettings)
    name = (strategy.name if strategy else None) or os.environ.get("TPU_NAME", "local")
    devices = [*Path("/dev").glob("accel*"), *Path("/dev/vfio").glob("[0-9]*")]
    if strategy and name == "local" and not devices:
        raise UserError(
            "strategy=tpu finds no TPU in this machine, and none is named",
            "a machine with a TPU, or the name or address of one",
            "strategy=mirrored",
        )


def _packages_are_installed(experiment: Experiment) -> None:
    model = experiment.of("model", ModelSettings)
    if model and isinstance(model.network, KerasHubSettings):
        check_installed("model=keras_hub", model.network.requires, model.network.extra)
    settings = experiment.of("export", ExportSettings)
    for name, part in settings.formats.items() if settings else ():
        schema = schema_of(str(part.get("_target_"))) if isinstance(part, Mapping) else type(part)
        check_installed(f"export.formats.{name}", schema.requires, schema.extra)
