"""Runs on disk, by their folder or the beginning of their id."""

from collections.abc import Callable, Mapping
from pathlib import Path

from pipeline.paths import shorter
from pipeline.run_folder.origin import NAME as ORIGIN
from pipeline.run_folder.rebuild import read_run
from pipeline.run_folder.summary import NAME, Summary
from stages.errors import UserError
from stages.settings.places import resolved

SHORTEST_ID = 4

NOT_OF_DEBUG_RUNS = ("resume", "fork", "run", "evaluate.against")
"""Settings that name a run to build upon."""


def find_run(
    text: str,
    outputs: Path,
    option: str | None = None,
    warn: Callable[[str], None] = lambda line: None,
    fix: str = "python -m pipeline.runs",
) -> Summary:
    """Returns the run that a user means by its folder, its folder's name or the beginning of its id.

    Args:
        option: the setting whose value `text` is, such as `resume`; None: an argument of a command.
        warn: called with a line for each damaged file of the run.
        fix: of a command, what to type where there is no such run.

    Raises:
        UserError: where there is none, or several.
    """
    path = resolved(text)
    folders = [path] if path is not None and ((path / NAME).is_file() or (path / ORIGIN).is_file()) else []
    if not folders:
        may_be_id = len(text) >= SHORTEST_ID
        folders = [
            folder
            for folder in all_run_folders(outputs)
            if folder.name == text or (may_be_id and _has_id(folder, text))
        ]
    damaged: list[str] = []
    runs = [summary for folder in folders if (summary := read_run(folder, damaged.append)) is not None]
    named = f"{option}={text}" if option else text
    fix = f"{option}=<run id>" if option else fix
    if not runs and damaged:
        raise UserError(f"{named}: {damaged[0]}", "a run whose files are whole", fix)
    if len(runs) != 1:
        raise UserError(
            f"{named} is {'no run' if not runs else f'{len(runs)} runs'} under {shorter(outputs)}",
            f"the folder of a run, its name, or the beginning of its id ({SHORTEST_ID} digits or more)",
            fix,
        )
    for line in damaged:
        warn(line)
    if option in NOT_OF_DEBUG_RUNS and (kind := debug_kind(runs[0].choices)) is not None:
        raise UserError(f"{named} is a debug run (debug={kind}), whose results count nowhere", "a real run", fix)
    return runs[0]


def folder_of(run_id: str, outputs: Path) -> Path | None:
    """Returns the folder of the run with this id; None where it is not under `outputs`."""
    return next((folder for folder in all_run_folders(outputs) if _has_id(folder, run_id)), None)


def debug_kind(choices: Mapping[str, str]) -> str | None:
    """Returns how the run with these options checked its experiment; None for a real run."""
    kind = choices.get("debug", "none")
    return None if kind == "none" else kind


def all_run_folders(outputs: Path) -> list[Path]:
    """Returns the folders of runs and of sweeps' jobs under `outputs`."""
    return [folder for pattern in ("runs/*/*", "sweeps/*/*") for folder in run_folders(outputs, pattern)]


def _has_id(folder: Path, text: str) -> bool:
    summary = read_run(folder)
    return summary is not None and (summary.run_id or "").startswith(text)


def run_folders(top: Path, pattern: str) -> list[Path]:
    """Returns the folders of runs below `top`, including those whose summary is missing."""
    return sorted({path.parent for name in (NAME, ORIGIN) for path in top.glob(f"{pattern}/{name}")})
