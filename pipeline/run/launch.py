"""Runs one job, on the engine that its configuration names."""

import time
from dataclasses import replace
from pathlib import Path

from pipeline.checks.precision import advice
from pipeline.config.experiment import Experiment
from pipeline.console import Console
from pipeline.exit_codes import DONE
from pipeline.planning.earlier import announce, other_run, prepare, resolve
from pipeline.planning.job import Job
from pipeline.run.engine import engine_of
from pipeline.run.facts import show_plan, show_summary
from pipeline.run_folder.lock import locked
from pipeline.run_folder.runs import read_run
from pipeline.run_folder.settle import settings_for, settle
from pipeline.run_folder.summary import Summary
from pipeline.system.signal_listener import Interrupted
from pipeline.system.signals import stopping
from pipeline.system.streams import all_written
from pipeline.tracking.tracker import Patience


def run_job(job: Job, console: Console) -> int:
    """Runs `job` and returns its exit code.

    Raises:
        UserError: where the configuration is wrong; nothing has been recorded then.
    """
    experiment = job.experiment
    plan = prepare(experiment)
    announce(experiment, plan, console)
    show_plan(experiment, plan, console)
    for line in advice(experiment):
        console.warn(line)
    job = resolve(job, console)
    other_run(experiment)
    if experiment.dry_run:
        return all_written(DONE)
    if job.resumed is not None and job.resumed.status == "FINISHED":
        return _close_finished(job.resumed, experiment, console)
    if experiment.job_timeout_seconds is not None:
        job = replace(job, deadline=time.monotonic() + experiment.job_timeout_seconds)
    return engine_of(experiment).run(job, plan, console)


def _close_finished(summary: Summary, experiment: Experiment, console: Console) -> int:
    """Sends the unsent records of a finished run, prints its summary, and returns the exit code.

    Raises:
        UserError: where the store cannot be used.
    """
    folder = Path(summary.folder)
    settings = settings_for(folder, experiment.tracking)
    try:
        with locked(folder), stopping() as stop:
            patience = Patience.of_finished(console.log, lambda: stop.requested)
            settled = settle(folder, settings, experiment.outputs, console.warn, patience)
    except Interrupted as interrupted:
        return interrupted.exit_code
    show_summary(read_run(folder, console.warn) or summary, settled.open_with, console)
    for line in settled.notes:
        console.log(line)
    console.log("the run had finished: nothing was trained. resume=never begins a new one")
    return 0
