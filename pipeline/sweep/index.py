"""Sweeps on disk: the index of their jobs, finding one by name, and the comparison of its jobs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.comparison.comparison import Comparison, SearchResult, compare_runs
from pipeline.comparison.rows import read_job
from pipeline.paths import shorter
from pipeline.records import convert_parts, read_json
from stages.errors import UserError
from stages.settings.places import is_file_or_folder, resolved
from stages.storage.atomic import atomic_write

INDEX = "sweep.json"
"""The file in a sweep's folder that lists its jobs."""


KINDS = {
    "status": str, "jobs": list[dict[str, Any]], "identity": str, "code": str, "total": int, "finish": str,
    "search": SearchResult | None,
}  # fmt: skip
JOB_KINDS = {
    "folder": str, "overrides": list[str], "number": int, "reason": str | None, "exit_code": int | None,
    "config_dirs": list[str] | None,
}  # fmt: skip
"""Types of the values in an index, and in each of its jobs."""


class Index(NamedTuple):
    """The contents of the index of a sweep or search."""

    status: str
    """`RUNNING`, `FINISHED`, `FAILED` or `KILLED`."""
    jobs: list[dict[str, Any]]
    """The entry of each job: see `SweepJob.entry`."""
    facts: Mapping[str, Any] = {}
    """`identity` and `code`, which are equal if the same command would run the same jobs.

    `total` is the largest number of jobs. A search also has `search`, a `SearchResult`.
    """

    def has_all(self, total: int, finish: str) -> bool:
        """Return whether it has finished with `total` jobs, each with all its stages if `finish` is `all`."""
        is_whole = finish != "all" or self.facts.get("finish") != "best"
        return self.status == "FINISHED" and self.facts.get("total", total) >= total and is_whole


def write_index(
    jobs: Sequence[Mapping[str, Any]], folder: Path, status: str = "RUNNING", facts: Mapping[str, Any] | None = None
) -> None:
    """Write the index of a sweep atomically: its facts, and its jobs with the exit codes so far."""
    atomic_write(folder / INDEX, json.dumps({"status": status, **(facts or {}), "jobs": list(jobs)}, indent=2))


def read_index(folder: Path) -> Index:
    """Return the index of the sweep in `folder`.

    Raises:
        UserError: If it cannot be read.
    """
    try:
        facts = convert_parts(read_json(folder / INDEX), KINDS)
        for number, job in enumerate(facts["jobs"], 1):
            convert_parts({"folder": None, "overrides": None, **job}, JOB_KINDS, f"job {number}")
        return Index(facts.pop("status"), facts.pop("jobs"), facts)
    except (OSError, ValueError, KeyError) as error:
        path = shorter(folder / INDEX)
        raise UserError(f"{path} cannot be read ({error})", "an unchanged file", "resume=never") from error


def is_sweep(folder: Path) -> bool:
    """Return whether `folder` holds a sweep."""
    return is_file_or_folder(str(folder / INDEX))


def find_sweep(text: str, outputs: Path) -> Path | None:
    """Return the sweep with this folder or folder name; None if there is none."""
    places = (resolved(text), resolved(str(outputs / "sweeps" / text)))
    return next((place for place in places if is_sweep(place)), None)


def sweep_folders(outputs: Path) -> list[Path]:
    """Return the folders of the sweeps under `outputs`, oldest first."""
    return sorted(path.parent for path in (outputs / "sweeps").glob(f"*/{INDEX}"))


def latest(outputs: Path) -> Path:
    """Return the folder of the last sweep under `outputs`.

    Raises:
        UserError: If there is none.
    """
    folders = sweep_folders(outputs)
    if not folders:
        fix = "python -m pipeline -m strategy=one_device,mirrored precision=float32,mixed"
        raise UserError(f"no sweep was found in {outputs / 'sweeps'}", "", fix)
    return folders[-1]


def compare(folder: Path, baseline: Mapping[str, str] | None = None, columns: Sequence[str] = ()) -> Comparison:
    """Compare the jobs of the sweep in `folder`; the arguments are those of `compare_runs`.

    Raises:
        UserError: If it does not hold a sweep, or an argument matches no job.
    """
    index = read_index(folder)
    runs = [read_job(job.get("number", place), folder / job["folder"], job) for place, job in enumerate(index.jobs, 1)]
    if (found := index.facts.get("search")) is None:
        return compare_runs(f"sweep {folder.name}", runs, baseline, columns)
    return compare_runs(f"search {folder.name}", runs, baseline, columns, found)
