"""One job, in this process or in a cluster of them: a new run, or one that is gone on with."""

import time
from dataclasses import replace
from pathlib import Path

from pipeline.checks.combinations import advice
from pipeline.cluster.task import cluster_settings, given_task
from pipeline.config.schemas import no_fork
from pipeline.paths import shorter
from pipeline.run import resume
from pipeline.run.console import Console
from pipeline.run.end import close_finished, is_unsent
from pipeline.run.executor import work
from pipeline.run.job import DONE, Job, prepare
from pipeline.run.source_digest import new_for_other_code, sources
from pipeline.run.summary import Summary
from pipeline.run.supervisor import run_cluster
from stages.errors import UserError


def run_job(job: Job, console: Console) -> int:
    """Runs `job` and returns its exit code.

    Raises:
        UserError: where the configuration is wrong; nothing has been recorded then.
    """
    job = job if job.started is not None else replace(job, started=time.monotonic())
    experiment = job.experiment
    plan = prepare(experiment)
    console.plan(experiment, plan)
    for line in advice(experiment):
        console.warn(line)
    job = continued(job, console)
    if experiment.dry_run:
        return DONE
    if job.resumed is not None and job.resumed.status == "FINISHED":
        return close_finished(job.resumed, experiment, console)
    if experiment.job_timeout_seconds is not None:
        job = replace(job, deadline=time.monotonic() + experiment.job_timeout_seconds)
    settings = cluster_settings(experiment)
    if settings is None:
        return work(job, plan, console)
    if experiment.cluster.kind == "local":
        return run_cluster(job, plan, console)
    return work(job, plan, console, given_task(settings))


def continued(job: Job, console: Console) -> Job:
    """Returns `job` with the run that it goes on with, or starts from, if there is one.

    Raises:
        UserError: where the one that is asked for cannot be.
    """
    experiment, outputs = job.experiment, job.experiment.outputs
    if job.folder is not None:  # of a sweep, which has looked for it
        begun = resume.begun_in(job.folder, console.warn)
        if begun is not None:
            return replace(job, resumed=begun)
    elif experiment.resume not in ("auto", "never"):
        run = resume.find(experiment.resume, outputs, "resume")
        if run.status == "FINISHED" and is_unsent(run, experiment):
            return _to_be_closed(job, run, console)
        if run.status == "FINISHED":
            raise UserError(
                f"resume={experiment.resume} has finished",
                "a run that has not",
                f"fork={experiment.resume} train.epochs=<more>",
            )
        resume.check_same(experiment, run)
        return _going_on(job, run, console)
    elif experiment.resume == "auto":
        last = resume.last_of(experiment, console.warn)
        if last is not None and last.status == "FINISHED" and not is_unsent(last, experiment):
            last = None
        if last is not None and last.code == sources(experiment).digest:
            finished = last.status == "FINISHED"
            return _to_be_closed(job, last, console) if finished else _going_on(job, last, console)
        if last is not None and last.status == "FINISHED":
            place = shorter(Path(last.folder))
            console.warn(
                f"the store does not have all of {place} yet; `python -m pipeline.sync {place}` sends the rest"
            )
        elif last is not None:
            place = shorter(Path(last.folder))
            console.say(new_for_other_code(sources(experiment), Path(last.folder), place, "run"))
    if experiment.fork is None and any(given.lstrip("+").startswith("fork_weights=") for given in job.overrides):
        raise no_fork(experiment.fork_weights)
    if experiment.fork is not None:
        run = resume.find(experiment.fork, outputs, "fork")
        if resume.checkpoints_in(run) is None:
            raise UserError(
                f"fork={experiment.fork} has no checkpoint in {shorter(Path(run.folder))}", "a run that has one", ""
            )
        console.say(f"starts from {shorter(Path(run.folder))}, which is {run.status}")
        _say_settings(run, console)
        return replace(job, fork=run)
    return job


def _to_be_closed(job: Job, run: Summary, console: Console) -> Job:
    console.say(
        f"{shorter(Path(run.folder))} has finished, and the store does not have all of it: the rest is sent, "
        "nothing is trained"
    )
    return replace(job, folder=Path(run.folder), resumed=run)


def _going_on(job: Job, run: Summary, console: Console) -> Job:
    console.say(f"goes on with {shorter(Path(run.folder))}, which is {run.status}")
    _say_settings(run, console)
    return replace(job, folder=Path(run.folder), resumed=run)


def _say_settings(run: Summary, console: Console) -> None:
    if run.overrides:
        console.say(f"with its settings, where this command gives no others: {' '.join(run.overrides)}")
