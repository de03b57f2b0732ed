"""Paths of the configuration and of the results."""

import time
import uuid
from contextlib import suppress
from pathlib import Path

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


def default_outputs() -> Path:
    """Returns the source tree's `outputs`; for an installed package, that of the working directory."""
    return (CHECKOUT or Path.cwd()) / "outputs"
