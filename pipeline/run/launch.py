"""Runs one job, on the engine that its configuration names."""

import time
from dataclasses import replace

from pipeline.checks.precision import advice
from pipeline.exit_codes import DONE
from pipeline.run.against import other_run
from pipeline.run.console import Console
from pipeline.run.engine import engine_of
from pipeline.run.job import Job, prepare
from pipeline.run.resume import resolve
from pipeline.run.reuse import announce
from pipeline.run.settle import close_finished


def run_job(job: Job, console: Console) -> int:
    """Runs `job` and returns its exit code.

    Raises:
        UserError: where the configuration is wrong; nothing has been recorded then.
    """
    experiment = job.experiment
    plan = prepare(experiment)
    announce(experiment, plan, console)
    console.plan(experiment, plan)
    for line in advice(experiment):
        console.warn(line)
    job = resolve(job, console)
    other_run(experiment)
    if experiment.dry_run:
        return DONE
    if job.resumed is not None and job.resumed.status == "FINISHED":
        return close_finished(job.resumed, experiment, console)
    if experiment.job_timeout_seconds is not None:
        job = replace(job, deadline=time.monotonic() + experiment.job_timeout_seconds)
    return engine_of(experiment).run(job, plan, console)
