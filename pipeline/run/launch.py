"""Runs one job, on the engine that its configuration names."""

from dataclasses import replace
from pathlib import Path

from pipeline.checks.combinations import advice
from pipeline.config.experiment import Experiment
from pipeline.console import Console
from pipeline.exit_codes import DONE
from pipeline.planning.earlier import announce, other_run, prepare, resolve
from pipeline.planning.job import Job
from pipeline.planning.plan import after_training
from pipeline.run.engine import engine_of
from pipeline.run.facts import show_plan, show_summary
from pipeline.run_folder.lock import locked
from pipeline.run_folder.pending import send_pending, settings_for
from pipeline.run_folder.runs import read_run
from pipeline.run_folder.summary import Summary
from pipeline.system import signals
from pipeline.system.streams import all_written
from pipeline.tracking.store import Store


def run_job(job: Job, console: Console) -> int:
    """Runs `job` and returns its exit code.

    Raises:
        UserError: where the configuration is wrong; nothing has been recorded then.
    """
    experiment = job.experiment
    plan = prepare(experiment)
    if job.only_trains:
        left_out = after_training(experiment)
        plan = tuple(replace(stage, is_needed=stage.is_needed and stage.name not in left_out) for stage in plan)
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
    return engine_of(experiment).run(job, plan, console)


def _close_finished(summary: Summary, experiment: Experiment, console: Console) -> int:
    """Sends the unsent records of a finished run, prints its summary, and returns the exit code.

    Raises:
        UserError: where the store cannot be used.
    """
    folder = Path(summary.folder)
    store = Store(settings_for(folder, experiment.tracking), experiment.outputs)
    with locked(folder):
        tracker = send_pending(folder, store, console.warn, console.log)
    if (request := signals.requested()) is not None and tracker.unsent:
        return request.exit_code
    show_summary(read_run(folder, console.warn) or summary, tracker.open_with, console)
    for line in tracker.notes:
        console.log(line)
    console.log("the run had finished: nothing was trained. resume=never begins a new one")
    return 0
