"""Surroundings of a run: the folder of its results, the TPU, the data set."""

import os
import socket
import tempfile
from pathlib import Path

from pipeline.config.experiment import Experiment
from stages.data import class_folders, tfds_folder
from stages.errors import UserError
from stages.settings.data import ImageFolderSettings, TfdsSettings
from stages.settings.strategy import TpuSettings

PATTERNS = "*?[]\\%"
"""Letters that paths of results must not have."""

TPU_TIMEOUT_SECONDS = 5


def tpu_exists(experiment: Experiment) -> None:
    """Refuses `strategy=tpu` where the machine has no TPU, or the one that is named does not answer."""
    strategy = experiment.settings.get("strategy")
    if not isinstance(strategy, TpuSettings):
        return
    name = strategy.name or os.environ.get("TPU_NAME")
    if name is None or name == "local":
        if not (list(Path("/dev").glob("accel*")) or list(Path("/dev/vfio").glob("[0-9]*"))):
            raise UserError(
                "strategy=tpu finds no TPU in this machine, and none is named",
                "a machine with a TPU, or the name or address of one",
                "strategy=mirrored",
            )
    elif name.startswith("grpc://"):
        host, _, port = name.removeprefix("grpc://").partition(":")
        try:
            socket.create_connection((host, int(port or 8470)), TPU_TIMEOUT_SECONDS).close()
        except (OSError, ValueError) as error:
            raise UserError(
                f"strategy.name={name} does not answer ({error})", "the address of a TPU", "strategy=mirrored"
            ) from error


def data_is_usable(experiment: Experiment) -> None:
    """Reads what the folder of a data set says of itself, without TensorFlow."""
    settings = experiment.settings.get("load")
    if isinstance(settings, TfdsSettings) and not settings.download:
        tfds_folder.check(settings)
    if isinstance(settings, ImageFolderSettings):
        class_folders.split_folders(settings.folder)


def outputs_can_be_written(experiment: Experiment) -> None:
    """Refuses `outputs` that cannot be written, and names that TensorFlow or SQLite would misread."""
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
