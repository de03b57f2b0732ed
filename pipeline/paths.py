"""Paths of the configuration and of the results."""

import re
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from stages.errors import UserError
from stages.settings.places import resolved

_HERE = Path(__file__).resolve().parent

CHECKOUT: Path | None = _HERE.parent if (_HERE.parent / "pyproject.toml").is_file() else None
"""The source tree, or None where the package is installed from a wheel."""

CONF: Path = CHECKOUT / "conf" if CHECKOUT else _HERE / "conf"
"""The configuration; a wheel carries it inside the package."""

LOCK = ".lock"
"""The file in the folder of a run or a sweep that the process at work there has locked; nothing is written to it."""

OUTPUT_FOLDERS = ("runs", "sweeps", "cache", "artifacts")
"""Folders in `outputs` that runs write to."""


def shorter(path: Path) -> str:
    """Return `path`, relative if it is below the working directory, which may have been removed since the start."""
    with suppress(FileNotFoundError, ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


NAME_TIME = "%Y%m%d-%H%M%S"
"""The beginning of a folder's name: when it was made, in UTC, as clocks go back in local time."""


def new_folder_name(outputs: Path) -> str:
    """Return the name of a new run or sweep: its beginning and 8 digits.

    Runs are ordered by their names. The new one comes after all others in `outputs`, whatever the clock says: where it
    was set back, or in the same second, its name is a second after the last one's.
    """
    now = datetime.now(UTC)
    for path in (*outputs.glob("runs/*/*"), *outputs.glob("sweeps/*")):
        with suppress(ValueError, OverflowError):
            now = max(now, datetime.strptime(path.name[:15], NAME_TIME).replace(tzinfo=UTC) + timedelta(seconds=1))
    return f"{now:{NAME_TIME}}-{uuid.uuid4().hex[:8]}"


def age_order(folder: Path) -> tuple[str, int, str]:
    """Return what sorts runs, sweeps and their jobs from the oldest to the newest.

    That is their names, and not the times of files: those follow a clock that may be set back. A folder without a time
    in its name, as it was renamed, is older than all others.
    """
    is_job = folder.parent.parent.name == "sweeps"
    name = folder.parent.name if is_job else folder.name
    number = folder.name.partition("_")[0] if is_job else ""
    return name if re.match(r"\d{8}-\d{6}-", name) else "", int(number) if number.isdecimal() else 0, folder.name


def outputs_folder(setting: str | None) -> Path:
    """Return the folder that `outputs` names, as an absolute path; for None and an empty text, `outputs` here.

    Raises:
        UserError: If `setting` is an address, or can be no path.
    """
    if not setting:
        return Path.cwd() / "outputs"
    if re.match(r"[a-z][a-z0-9+.-]+://", setting, re.IGNORECASE):
        raise UserError(
            f"outputs={setting} is a URL, but results are written as files to a directory",
            "a directory, possibly on a shared disk (docs/how-to/shared-folders.md)",
            "outputs=./outputs",
        )
    return resolved(setting)
