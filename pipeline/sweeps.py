"""Sweeps on disk: the list of a sweep's jobs, and the sweep that a command goes on with."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.compare import INDEX
from pipeline.config import Experiment
from pipeline.paths import shorter
from pipeline.sources import Sources, new_for_other_code
from stages.errors import UserError


def write_index(jobs: Sequence[Mapping[str, Any]], folder: Path, status: str = "RUNNING") -> None:
    """Writes the sweep's status and the list of its jobs, with the exit codes so far, whole or not at all."""
    partial = folder / f".{INDEX}.partial"
    partial.write_text(json.dumps({"status": status, "jobs": list(jobs)}, indent=2))
    partial.replace(folder / INDEX)


def unfinished(
    index: Sequence[Mapping[str, Any]], experiment: Experiment, sources: Sources, say: Callable[[str], None]
) -> Path | None:
    """Returns the folder of the sweep to resume, by `experiment.resume`; None for a new one.

    Args:
        sources: of all jobs, to name what has changed.

    Raises:
        UserError: where the sweep that is asked for is not of the same jobs.
    """
    wanted, sweeps = experiment.resume, experiment.outputs / "sweeps"
    if wanted == "never":
        return None
    if wanted != "auto":
        folder = Path(wanted) if (Path(wanted) / INDEX).is_file() else sweeps / wanted
        if not (folder / INDEX).is_file() or _jobs(_read(folder)) != _jobs(index):
            raise UserError(
                f"resume={wanted} is no sweep of these jobs",
                f"auto, never, a folder in {shorter(sweeps)}",
                "resume=auto",
            )
        return folder.resolve()
    for path in sorted(sweeps.glob(f"*/{INDEX}"), reverse=True):
        try:
            before = _read(path.parent)
        except (ValueError, TypeError, KeyError):  # of another version
            continue
        if _jobs(before) == _jobs(index):
            done = json.loads(path.read_text())["status"] == "FINISHED"
            same_code = [job.get("code") for job in before] == [job.get("code") for job in index]
            if not done and not same_code:
                name = path.parent.name
                say(new_for_other_code(sources, path.parent, name, "sweep"))
            return None if done or not same_code else path.parent
    return None


def _read(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads((folder / INDEX).read_text())["jobs"])


def _jobs(index: Sequence[Mapping[str, Any]]) -> list[tuple[Any, Any]]:
    return [(job["folder"], job.get("identity")) for job in index]
