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
"""The source tree; None if the package is installed from a wheel."""

CONF: Path = CHECKOUT / "conf" if CHECKOUT else _HERE / "conf"
"""The folder of the configuration; a wheel contains it inside the package."""

LOCK = ".lock"
"""The empty file in the folder of a run or a sweep that the process working there has locked."""

OUTPUT_FOLDERS = ("runs", "sweeps", "cache", "artifacts")
"""Folders in `outputs` that runs write to."""


def shorter(path: Path) -> str:
    """Return `path` as text, relative if it is below the working directory."""
    with suppress(FileNotFoundError, ValueError):  # the working directory may have been removed
        return str(path.relative_to(Path.cwd()))
    return str(path)


NAME_TIME = "%Y%m%d-%H%M%S"
"""The format of the time at the beginning of a folder's name, in UTC because local time may go back."""


def new_folder_name(outputs: Path) -> str:
    """Return the folder name of a new run or sweep: the time of its start and 8 digits.

    Runs are ordered by their names, and the new name comes after all others in `outputs`. If the clock was set back, or
    if the last run started in the same second, the new name has the next second.
    """
    now = datetime.now(UTC)
    for path in (*outputs.glob("runs/*/*"), *outputs.glob("sweeps/*")):
        with suppress(ValueError, OverflowError):
            now = max(now, datetime.strptime(path.name[:15], NAME_TIME).replace(tzinfo=UTC) + timedelta(seconds=1))
    return f"{now:{NAME_TIME}}-{uuid.uuid4().hex[:8]}"


def age_order(folder: Path) -> tuple[str, int, str]:
    """Return a key that sorts runs, sweeps and their jobs from the oldest to the newest.

    The order follows the names and not the times of files, because clocks may be set back. A renamed folder without a
    time in its name sorts before all others.
    """
    is_job = folder.parent.parent.name == "sweeps"
    name = folder.parent.name if is_job else folder.name
    number = folder.name.partition("_")[0] if is_job else ""
    return name if re.match(r"\d{8}-\d{6}-", name) else "", int(number) if number.isdecimal() else 0, folder.name


def outputs_folder(setting: str | None) -> Path:
    """Return the absolute path of the setting `outputs`; the default is `outputs` in the working directory.

    Raises:
        UserError: If `setting` is a URL or an invalid path.
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
