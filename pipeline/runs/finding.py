"""Find runs in `outputs`: all of them, the one that a user names, or the last of an experiment."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pipeline.paths import age_order, shorter
from pipeline.runs.folder import RunFolder, Warn, ignore
from pipeline.runs.summary import NAME, Summary, is_lower_better
from stages.errors import UserError
from stages.settings.places import is_file_or_folder, resolved

SHORTEST_ID = 4

NO_DEBUG_RUNS = ("resume", "fork", "run", "evaluate.against")
"""Settings that must not name a debug run, because its results do not count."""


@dataclass(frozen=True)
class Runs:
    """The runs in `outputs`, including the jobs of sweeps."""

    outputs: Path
    warn: Warn = ignore
    """Is called with a line for each run that cannot be read."""

    def folders(self) -> list[Path]:
        """Return the folders of all runs, the oldest first."""
        folders = (path.parent for top in ("runs", "sweeps") for path in (self.outputs / top).glob(f"*/*/{NAME}"))
        return sorted(folders, key=age_order)

    def all(self) -> list[Summary]:
        """Return all runs, the oldest first."""
        return [run for folder in self.folders() if (run := RunFolder(folder).read(self.warn)) is not None]

    def latest(self, experiment: str, identity: str) -> Summary | None:
        """Return the last run of an experiment with the given identity, if there is one."""
        folders = [path.parent for path in (self.outputs / "runs" / experiment).glob(f"*/{NAME}")]
        for folder in sorted(folders, key=age_order, reverse=True):
            run = RunFolder(folder).read(self.warn)
            if run is not None and run.identity == identity:
                return run
        return None

    def folder_of_id(self, run_id: str) -> Path | None:
        """Return the folder of the run with this id."""
        return next((run.folder for run in Runs(self.outputs).all() if run.run_id == run_id), None)

    def find(self, text: str, setting: str | None = None) -> Summary:
        """Return the run that a user names by its folder, its folder's name or the beginning of its id.

        Args:
            text: What the user typed.
            setting: The setting that has this value, such as `resume`; None for an argument of a command.

        Raises:
            UserError: If no run or more than one run matches, or if the summary cannot be read.
        """
        named, fix = (f"{setting}={text}", f"{setting}=<run id>") if setting else (text, "python -m pipeline runs")
        path = resolved(text)
        names = [folder for folder in self.folders() if f"-{folder.name}".endswith(f"-{text}")]
        folders = [path] if is_file_or_folder(str(path / NAME)) else names
        damaged: list[str] = []
        runs = [run for folder in folders if (run := RunFolder(folder).read(damaged.append)) is not None]
        if damaged:
            raise UserError(f"{named}: {damaged[0]}", "a run whose files are intact", fix)
        if not folders and len(text) >= SHORTEST_ID:
            runs = [run for run in Runs(self.outputs).all() if (run.run_id or "").startswith(text)]
        if len(runs) != 1:
            problem = f"{named} matches {len(runs) or 'no'} run{'s' * (len(runs) > 1)} in {shorter(self.outputs)}"
            expected = (
                f"the folder of a run, its folder's name, or the beginning of its id (at least {SHORTEST_ID} digits)"
            )
            raise UserError(problem, expected, fix)
        if setting in NO_DEBUG_RUNS and (kind := debug_kind(runs[0].choices)) is not None:
            problem = f"{named} is a debug run (debug={kind}), which does not count as a result"
            raise UserError(problem, "a run without debug", fix)
        return runs[0]


def debug_kind(choices: Mapping[str, str | None]) -> str | None:
    """Return the kind of a debug run, such as `fast`, from the options of a run; None for a real run."""
    kind = choices.get("debug", "none")
    return None if kind == "none" else kind


@lru_cache(maxsize=64)
def progress(folder: Path, period: int) -> tuple[int, float]:
    """Return the last epoch that a run has completed (0 for none) and its best validation score so far (or NaN).

    They are read from the run's journal, which a shared file system may update late.

    Args:
        folder: The folder of the run.
        period: Any number. The journal is read again if the number has changed since the last call.
    """
    run = RunFolder(folder).read()
    rows = RunFolder(folder).epochs()
    score = f"val/{run.primary}" if run is not None else ""
    values = [row[score] for row in rows.values() if math.isfinite(row.get(score, math.nan))]
    best = min if run is not None and is_lower_better(score, run.task) else max
    return max(rows, default=0), best(values, default=math.nan)
