"""Sweeps on disk: what each is and how far it has come, the one that a command resumes, the comparison of its jobs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.comparison.comparison import Comparison, SearchResult, compare_runs
from pipeline.comparison.rows import read_job
from pipeline.paths import shorter
from pipeline.run_folder.summary import STATUSES
from stages.errors import UserError
from stages.settings.places import regular_file, resolved
from stages.storage.atomic import atomic_write

INDEX = "sweep.json"
"""The file in a sweep's folder that lists its jobs."""


class Index(NamedTuple):
    """A sweep, or a search."""

    status: str
    jobs: list[dict[str, Any]]
    facts: Mapping[str, Any] = {}
    """`identity` and `code`, equal where the same command would run the same.

    `total`: jobs at most. Of a search also `search`: a `SearchResult`.
    """


def write_index(
    jobs: Sequence[Mapping[str, Any]], folder: Path, status: str = "RUNNING", facts: Mapping[str, Any] | None = None
) -> None:
    """Write what a sweep is, and its jobs with the exit codes so far, whole or not at all."""
    atomic_write(folder / INDEX, json.dumps({"status": status, **(facts or {}), "jobs": list(jobs)}, indent=2))


def read_index(folder: Path) -> Index:
    """Return the index of the sweep in `folder`.

    Raises:
        UserError: where it cannot be read.
    """
    try:
        facts = json.loads(regular_file(folder / INDEX).read_bytes())
        status, listed = facts.pop("status"), facts.pop("jobs")
        jobs = [{**job, "folder": str(job["folder"]), "overrides": list(job["overrides"])} for job in listed]
        if status not in STATUSES:
            raise ValueError(f"its status is {status}")
        return Index(status, jobs, facts)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        path = shorter(folder / INDEX)
        raise UserError(f"{path} cannot be read ({error})", "the file as it was written", "resume=never") from error


def is_sweep(folder: Path) -> bool:
    """Return whether `folder` holds a sweep."""
    return (folder / INDEX).is_file()


def find_sweep(text: str, outputs: Path) -> Path | None:
    """Return the sweep that a user means by its folder or its folder's name; None where there is none."""
    places = (resolved(text), resolved(str(outputs / "sweeps" / text)))
    return next((place for place in places if place is not None and is_sweep(place)), None)


def sweep_folders(outputs: Path) -> list[Path]:
    """Return the folders of the sweeps under `outputs`, the oldest first."""
    return sorted(path.parent for path in (outputs / "sweeps").glob(f"*/{INDEX}"))


def sweep_status(folder: Path) -> str | None:
    """Return the status of the sweep in `folder`, or None where there is none."""
    try:
        return read_index(folder).status
    except UserError:
        return None


def latest(outputs: Path) -> Path:
    """Return the folder of the last sweep under `outputs`.

    Raises:
        UserError: where there is none.
    """
    folders = sweep_folders(outputs)
    if not folders:
        raise UserError(
            f"there is no sweep in {outputs / 'sweeps'}",
            "a sweep that has been run",
            "python -m pipeline -m strategy=one_device,mirrored precision=float32,mixed",
        )
    return folders[-1]


def compare(folder: Path, baseline: Mapping[str, str] | None = None, columns: Sequence[str] = ()) -> Comparison:
    """Compare the jobs of the sweep in `folder`; the arguments are those of `compare_runs`.

    Raises:
        UserError: where it holds no sweep, or an argument fits no job.
    """
    if not is_sweep(folder):
        raise UserError(
            f"{folder} holds no sweep",
            "a folder under outputs/sweeps",
            "python -m pipeline -m strategy=one_device,mirrored",
        )
    index = read_index(folder)
    runs = [read_job(job.get("number", place), folder / job["folder"], job) for place, job in enumerate(index.jobs, 1)]
    if (found := index.facts.get("search")) is None:
        return compare_runs(f"sweep {folder.name}", runs, baseline, columns)
    return compare_runs(f"search {folder.name}", runs, baseline, columns, SearchResult(**found))
