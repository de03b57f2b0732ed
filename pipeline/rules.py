"""Combinations that cannot work, refused before TensorFlow is imported and anything is recorded."""

import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable

from pipeline import machine
from pipeline.combinations import COMBINATIONS
from pipeline.config import Experiment
from pipeline.own_settings import check_own_settings
from pipeline.secrets import redact, without_user
from stages.errors import UserError
from stages.load import class_folders, tfds_folder
from stages.settings.data import ImageFolderSettings, TfdsSettings
from stages.settings.images import AugmentSettings
from stages.settings.strategy import (
    CentralStorageSettings,
    MirroredSettings,
    MultiWorkerSettings,
    ParameterServerSettings,
    StrategySettings,
    TpuSettings,
)
from stages.settings.train import FitSettings, TrainSettings

SERVER_TIMEOUT_SECONDS = 5


PATTERNS = "*?[]\\%"
"""Letters that paths of results must not have."""


def check_rules(experiment: Experiment, surroundings: bool = True) -> None:
    """Raises UserError for the first rule that `experiment` breaks.

    Args:
        surroundings: whether the folder and the server are tried, too, in which its results are kept.
    """
    if not experiment.pipeline:
        raise UserError("`pipeline` names no stage", "at least one", "pipeline.<stage>=<what it makes>")
    for rule in (*RULES, *(SURROUNDINGS if surroundings else ())):
        rule(experiment)


def expected_replicas(experiment: Experiment) -> int | None:
    """Returns how many replicas share a batch, as far as it is known without TensorFlow."""
    settings, gpus = experiment.settings.get("strategy"), len(machine.gpus())
    if isinstance(settings, (MirroredSettings, CentralStorageSettings)):
        return len(settings.devices) or gpus or settings.cpu_replicas
    if isinstance(settings, MultiWorkerSettings) and experiment.cluster.kind == "local":
        return max(gpus, settings.workers)
    if isinstance(settings, (TpuSettings, MultiWorkerSettings)) or not isinstance(settings, StrategySettings):
        return None
    return 1


def _batch_is_shared(experiment: Experiment) -> None:
    settings, replicas = experiment.settings.get("train"), expected_replicas(experiment)
    if isinstance(settings, TrainSettings) and replicas:
        settings.check_share(replicas)


def _augmentation_is_possible(experiment: Experiment) -> None:
    given, stages = experiment.settings.get("augment"), list(experiment.pipeline)
    if not isinstance(given, AugmentSettings):
        return
    strategy, train = experiment.settings.get("strategy"), experiment.settings.get("train")
    in_step = given.where == "model" and given.changes
    if in_step:
        nowhere = {
            "train=fit": isinstance(train, FitSettings) and "Keras' fit takes its own steps",
            "strategy=parameter_server": isinstance(strategy, ParameterServerSettings)
            and "workers take their pictures from no input that could hand over random numbers",
            "strategy=tpu": isinstance(strategy, TpuSettings) and "XLA cannot resample pictures",
        }
        for other, why in nowhere.items():
            if why:
                raise UserError(
                    f"augment.where=model with {other}: {why}", "augment.where=input", "augment.where=input"
                )
    if (in_step or given.mixes) and "model" in stages and stages.index("augment") > stages.index("model"):
        raise UserError(
            "augment.where=model, augment.mixup or augment.cutmix with the stage augment after model, which must know",
            "augment before model",
            "augment.where=input augment.mixup=0 augment.cutmix=0",
        )


def _data_is_usable(experiment: Experiment) -> None:
    """Reads what the folder of a data set says of itself, without TensorFlow."""
    settings = experiment.settings.get("load")
    if isinstance(settings, TfdsSettings) and not settings.download:
        tfds_folder.check(settings)
    if isinstance(settings, ImageFolderSettings):
        class_folders.split_folders(settings.folder)


def _outputs_can_be_written(experiment: Experiment) -> None:
    folder = experiment.outputs
    _has_a_plain_name("outputs", str(folder))
    _has_a_plain_name("name", experiment.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(
            f"outputs={folder} cannot be written ({error.strerror})", "a directory of yours", "outputs=./outputs"
        ) from error


def _has_a_plain_name(setting: str, given: str) -> None:
    """Refuses what TensorFlow takes for a pattern when it writes an export, and SQLAlchemy for a part of an address."""
    odd = sorted({letter for letter in given if letter in PATTERNS or not letter.isprintable()})
    if odd:
        raise UserError(
            f"{setting}={given!r} has {' '.join(map(repr, odd))}, which TensorFlow or SQLite would read as a pattern",
            f"a path without {' '.join(PATTERNS)} and control characters",
            f"{setting}={'./outputs' if setting == 'outputs' else 'my_experiment'}",
        )


def server_answers(experiment: Experiment) -> None:
    """Raises UserError where the tracking server does not answer."""
    uri = experiment.tracking.uri or ""
    if experiment.tracking.kind != "server" or experiment.dry_run or not uri.startswith(("http://", "https://")):
        return
    try:
        with urllib.request.urlopen(f"{without_user(uri).rstrip('/')}/health", timeout=SERVER_TIMEOUT_SECONDS):
            return
    except urllib.error.HTTPError as error:
        if error.code != 404:  # it answers; whether it lets us in is for the first request to tell
            return
        raise UserError(
            f"tracking.uri={redact(uri)} is no MLflow server (it has no /health)",
            "the address of one",
            "tracking.uri=http://127.0.0.1:5000",
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise UserError(
            f"tracking.uri={redact(uri)} does not answer ({reason})",
            "a running MLflow server (mlflow server --port 5000), tracking=local, tracking=off",
            "tracking=local",
        ) from error


RULES: tuple[Callable[[Experiment], None], ...] = (
    _batch_is_shared,
    _augmentation_is_possible,
    *COMBINATIONS,
    _data_is_usable,
    check_own_settings,
)

SURROUNDINGS: tuple[Callable[[Experiment], None], ...] = (_outputs_can_be_written, server_answers)
"""What does not depend on a job of a sweep: its jobs share `outputs` and `tracking`."""
