"""The environment of a run: the folder of its results, the TPU, the packages of exporters."""

import os
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pipeline.config.experiment import Experiment
from pipeline.targets import find_package
from stages.errors import UserError
from stages.settings.results import ExportSettings, schema_of
from stages.settings.strategy import TpuSettings

PATTERNS = "*?[]\\%"
"""Characters that paths of results must not have."""

TPU_TIMEOUT_SECONDS = 5


def tpu_exists(experiment: Experiment) -> None:
    """Refuses `strategy=tpu` where the machine has no TPU, or the one that is named does not answer."""
    strategy = experiment.of("strategy", TpuSettings)
    if strategy is None:
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


def exporters_are_installed(experiment: Experiment) -> None:
    """Refuses a format whose packages are not installed."""
    settings = experiment.of("export", ExportSettings)
    for name, part in settings.formats.items() if settings else ():
        schema = schema_of(str(part.get("_target_"))) if isinstance(part, Mapping) else type(part)
        missing = [package for package in schema.requires if find_package(package) is None]
        if missing:
            raise UserError(
                f"export.formats.{name}: the package {missing[0]} is not installed",
                f"the extra {schema.extra} of this project: {', '.join(schema.requires)}",
                f"pip install {' '.join(missing)}",
            )


def outputs_can_be_written(experiment: Experiment) -> None:
    """Refuses `outputs` that cannot be written, and paths that TensorFlow or SQLite would misread."""
    folder = experiment.outputs
    _refuse_special_characters("outputs", str(folder))
    _refuse_special_characters("name", experiment.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(
            f"outputs={folder} cannot be written ({error.strerror})", "a directory of yours", "outputs=./outputs"
        ) from error


def _refuse_special_characters(setting: str, value: str) -> None:
    """Refuses characters that TensorFlow's export reads as a pattern, or SQLAlchemy as a part of an address."""
    refused = sorted({character for character in value if character in PATTERNS or not character.isprintable()})
    if refused:
        raise UserError(
            f"{setting}={value!r} has {' '.join(map(repr, refused))}, which TensorFlow or SQLite takes for a pattern",
            f"a path without {' '.join(PATTERNS)} and control characters",
            f"{setting}={'./outputs' if setting == 'outputs' else 'my_experiment'}",
        )
