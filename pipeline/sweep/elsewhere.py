"""Jobs of a sweep that have finished elsewhere: on another machine, or in another `outputs`, with the same server."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.experiment import Experiment
from pipeline.config.schemas import MLFLOW_RUN
from pipeline.run_folder.origin import Origin
from pipeline.run_folder.rebuild import read_run
from pipeline.run_folder.summary import Summary, one_line
from pipeline.sweep.jobs import SweepJob
from pipeline.tracking.tracker import Tracker

if TYPE_CHECKING:
    from mlflow import MlflowClient

FACT = "finished_elsewhere"
"""In the facts of a summary: the id of the run that has finished elsewhere, of which only this is here."""

SWEEP_DIGEST = "sweep.digest"
"""Tag by which a server tells that two sweeps are the same."""

IDENTITY = "identity"
CODE = "code"
"""Tags by which it tells that two jobs are."""

CONTINUES = "continues_sweep"
"""Tag with the sweep that another one continues."""


def sweep_digest(jobs: Sequence[SweepJob]) -> str:
    """Returns 32 hexadecimal digits that are equal for sweeps of the same jobs and code."""
    facts = sorted([job.folder, job.identity, job.sources.digest] for job in jobs)
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def was_elsewhere(folder: Path) -> str | None:
    """Returns the id of the run that has finished elsewhere, where `folder` stands for it."""
    summary = read_run(folder)
    run_id = summary.facts.get(FACT) if summary is not None else None
    return None if run_id is None else str(run_id)


def take_finished(
    jobs: Sequence[SweepJob], folder: Path, parent: Tracker, is_new: bool, warn: Callable[[str], None]
) -> dict[int, str]:
    """Writes the results of the jobs that have finished elsewhere into the sweep's `folder`, as summaries.

    A sweep that the same server has as FINISHED is not continued by a new one.

    Args:
        jobs: those that may run. parent: the tracked run of the sweep, which gets the tag to be found by.
        is_new: whether the sweep has just begun, and does not resume one of this machine.
        warn: gets a line where the server does not say what it has; all jobs run then.

    Returns:
        From the numbers of the jobs to the ids of their runs.
    """
    first = jobs[0].experiment
    tracking = first.tracking
    if tracking.kind != "server" or tracking._target_ != MLFLOW_RUN:
        return {}
    digest = sweep_digest(jobs)
    parent.tags({SWEEP_DIGEST: digest})
    if first.resume != "auto":
        return {}
    try:
        others = _sweeps(first, digest, parent.run_id)
        if not others or (is_new and others[0].info.status == "FINISHED"):
            return {}
        runs = _jobs_of(first, others)
    except Exception as error:  # whatever a server or a proxy in front of it answers
        warn(f"the server does not say which jobs have finished elsewhere: {one_line(error)}")
        return {}
    parent.tags({CONTINUES: others[0].info.run_id})
    finished = {(run.data.tags.get(IDENTITY), run.data.tags.get(CODE)): run for run in runs}
    taken = {}
    for job in jobs:
        run = finished.get((job.identity, job.sources.digest))
        place = folder / job.folder
        if run is not None and read_run(place) is None:
            place.mkdir(exist_ok=True)
            summary = _summary(job, place, run)
            Origin.of(summary).write(place)
            summary.write(place)
            taken[job.number] = str(run.info.run_id)
    return taken


def _client(experiment: Experiment) -> "MlflowClient":
    from pipeline.tracking.store import open_client  # MLflow takes seconds to import

    return open_client(experiment.tracking, experiment.outputs)


def _sweeps(experiment: Experiment, digest: str, own: str | None) -> list[Any]:
    """Returns the other sweeps of the same jobs that the server has, the last one first."""
    client = _client(experiment)
    there = client.get_experiment_by_name(experiment.name)
    if there is None:
        return []
    query = f"tags.`{SWEEP_DIGEST}` = '{digest}'"
    runs = client.search_runs([there.experiment_id], query, order_by=["attributes.start_time DESC"])
    return [run for run in runs if run.info.run_id != own]


def _jobs_of(experiment: Experiment, sweeps: Sequence[Any]) -> list[Any]:
    client = _client(experiment)
    runs = []
    for sweep in reversed(sweeps):
        query = f"tags.mlflow.parentRunId = '{sweep.info.run_id}' and attributes.status = 'FINISHED'"
        page = client.search_runs([sweep.info.experiment_id], query)
        runs += page
        while page.token:
            page = client.search_runs([sweep.info.experiment_id], query, page_token=page.token)
            runs += page
    return runs


def _summary(job: SweepJob, place: Path, run: Any) -> Summary:
    """Returns the summary of a run whose files are elsewhere: without a run id, as nothing of it is sent from here."""
    return Summary(
        run_id=None,
        status="FINISHED",
        name=job.experiment.name,
        folder=str(place),
        choices=job.experiment.choices,
        overrides=list(job.shown),
        metrics={name: float(value) for name, value in run.data.metrics.items()},
        seconds=max((run.info.end_time or 0) - (run.info.start_time or 0), 0) / 1000,
        identity=job.identity,
        code=job.sources.digest,
        facts={FACT: str(run.info.run_id)},
    )
