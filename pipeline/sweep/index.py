"""Sweeps on disk: the list of a sweep's jobs, and the sweep that a command resumes."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.experiment import Experiment
from pipeline.paths import shorter
from pipeline.provenance.source_digest import Sources, new_for_other_code
from pipeline.run_folder.summary import STATUSES
from stages.errors import UserError
from stages.settings.places import regular_file, resolved
from stages.storage.atomic import atomic_write

INDEX = "sweep.json"
"""The file in a sweep's folder that lists its jobs."""


def write_index(
    jobs: Sequence[Mapping[str, Any]],
    folder: Path,
    status: str = "RUNNING",
    search: Mapping[str, str] | None = None,
) -> None:
    """Write the sweep's status and the list of its jobs, with the exit codes so far, whole or not at all.

    Args:
        search: `identity` and `code` of a search, by which it is found.
    """
    told = {"search": dict(search)} if search is not None else {}
    atomic_write(folder / INDEX, json.dumps({"status": status, **told, "jobs": list(jobs)}, indent=2))


def read_search(folder: Path) -> Mapping[str, str]:
    """Return `identity` and `code` of the search in `folder`; empty where there is none, or it cannot be read."""
    try:
        return dict(json.loads((folder / INDEX).read_text())["search"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}


def read_index(folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """Return the status and the jobs of the sweep in `folder`.

    Raises:
        UserError: where the file cannot be read.
    """
    try:
        listed = json.loads(regular_file(folder / INDEX).read_text())
        if isinstance(listed, list) and listed:  # of an earlier version
            listed = {"status": "RUNNING", "jobs": listed}
        jobs = [{**job, "folder": str(job["folder"]), "overrides": list(job["overrides"])} for job in listed["jobs"]]
        if listed["status"] not in STATUSES:
            raise ValueError(f"its status is {listed['status']}")
        return str(listed["status"]), jobs
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        path = shorter(folder / INDEX)
        raise UserError(f"{path} cannot be read ({error})", "the file as it was written", "resume=never") from error


def find_sweep(text: str, outputs: Path) -> Path | None:
    """Returns the sweep that a user means by its folder or its folder's name; None where there is none."""
    places = (resolved(text), resolved(str(outputs / "sweeps" / text)))
    return next((place for place in places if place is not None and is_sweep(place)), None)


def sweep_folders(outputs: Path) -> list[Path]:
    """Returns the folders of the sweeps under `outputs`, the oldest first."""
    return sorted(path.parent for path in (outputs / "sweeps").glob(f"*/{INDEX}"))


def is_sweep(folder: Path) -> bool:
    """Return whether `folder` holds a sweep."""
    return (folder / INDEX).is_file()


def sweep_status(folder: Path) -> str | None:
    """Returns the status of the sweep in `folder`, or None where there is none."""
    try:
        return read_index(folder)[0]
    except UserError:
        return None


def unfinished(
    index: Sequence[Mapping[str, Any]],
    experiment: Experiment,
    sources: Sources,
    log: Callable[[str], None],
    is_sent: Callable[[Path], bool],
) -> Path | None:
    """Returns the folder of the sweep to resume, by `experiment.resume`; None for a new one.

    A sweep that has finished is one to resume where the store does not have all of it: the rest is sent.

    Args:
        sources: of all jobs, to name what has changed.
        log: gets a line for each sweep that cannot be read, and on why a sweep of the same jobs is not resumed.
        is_sent: tells of a sweep's folder whether the store has everything.

    Raises:
        UserError: where the sweep that is asked for is not of the same jobs.
    """
    choice = experiment.resume
    if choice == "never":
        return None
    if choice != "auto":
        folder = find_sweep(choice, experiment.outputs)
        if folder is None or _jobs(read_index(folder)[1]) != _jobs(index):
            raise UserError(
                f"resume={choice} is no sweep of these jobs",
                f"auto, never, a folder in {shorter(experiment.outputs / 'sweeps')}",
                "resume=auto",
            )
        return folder
    for folder in reversed(sweep_folders(experiment.outputs)):
        try:
            status, before = read_index(folder)
        except UserError as error:
            log(f"warning: {error}; this sweep is passed over")
            continue
        if _jobs(before) == _jobs(index):
            done = status == "FINISHED" and is_sent(folder)
            same_code = [job.get("code") for job in before] == [job.get("code") for job in index]
            if not done and not same_code:
                log(new_for_other_code(sources, folder, folder.name, "sweep"))
            return None if done or not same_code else folder
    return None


def _jobs(index: Sequence[Mapping[str, Any]]) -> list[tuple[Any, Any]]:
    return [(job["folder"], job.get("identity")) for job in index]
