"""Whether results can be written."""

import tempfile

from pipeline.config.experiment import Experiment
from stages.errors import UserError

PATTERNS = "*?[]\\%"
"""Letters that paths of results must not have."""


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
