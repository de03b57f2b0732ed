"""Paths of the configuration and of the results."""

import re
import time
import uuid
from contextlib import suppress
from pathlib import Path

from stages.errors import UserError
from stages.settings.places import resolved

_HERE = Path(__file__).resolve().parent

CHECKOUT: Path | None = _HERE.parent if (_HERE.parent / "pyproject.toml").is_file() else None
"""The source tree, or None where the package is installed from a wheel."""

CONF: Path = CHECKOUT / "conf" if CHECKOUT else _HERE / "conf"
"""The configuration; a wheel carries it inside the package."""

OUTPUT_FOLDERS = ("runs", "sweeps", "cache", "artifacts")
"""Folders in `outputs` that runs write to."""


def shorter(path: Path) -> str:
    """Returns `path`, relative if it is below the working directory, which may have been removed since the start."""
    with suppress(FileNotFoundError, ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def new_folder_name() -> str:
    """Returns the name of a new run or sweep: its beginning in UTC, as clocks go back in local time, and 8 digits."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:8]}"


def outputs_folder(setting: str | None) -> Path:
    """Returns the folder that `outputs` names, as an absolute path.

    None and an empty text mean the source tree's `outputs`; for an installed package, that of the working directory.

    Raises:
        UserError: where `setting` is an address, or can be no path.
    """
    if not setting:
        return (CHECKOUT or Path.cwd()) / "outputs"
    if re.match(r"[a-z][a-z0-9+.-]+://", setting, re.IGNORECASE):
        raise UserError(
            f"outputs={setting} is an address, but runs are files: locks and checkpoints need a file system",
            "a directory, which may be on a shared disk; MLflow's server puts models and files into an object store "
            "(docs/places.md)",
            "outputs=./outputs",
        )
    place = resolved(setting)
    if place is None:
        raise UserError(f"outputs={setting} can be no directory", "a directory of yours", "outputs=./outputs")
    return place
