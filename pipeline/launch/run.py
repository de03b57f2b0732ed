"""Run a job from the decision to the exit code: decide, show, start, supervise."""

import time

from pipeline.checks.combinations import advice
from pipeline.console import Console
from pipeline.decide.decision import AlreadyFinished, Decision, decide
from pipeline.decide.job import Job
from pipeline.execute.facts import show_next, show_plan, show_summary
from pipeline.execute.link import Link
from pipeline.exit_codes import DONE
from pipeline.launch.launcher import launcher_of
from pipeline.launch.supervise import supervise
from pipeline.system import signals
from pipeline.system.streams import all_written


def run_job(job: Job, console: Console, link: Link | None = None, started: float | None = None) -> int:
    """Decide what to do for `job`, print it, do it, and return the exit code.

    Args:
        job: The run to make.
        console: Prints everything that the user reads.
        link: The connections of a job to its sweep.
        started: When the user began to wait, in seconds of `time.monotonic()`; None: now.

    Raises:
        UserError: If the configuration is wrong; nothing has been recorded then.
    """
    started = time.monotonic() if started is None else started
    decision = decide(job)
    show_decision(decision, console)
    if decision.experiment.dry_run:
        console.log("dry_run=true: the settings are valid, and nothing was run")
        return all_written(DONE)
    if isinstance(decision.start, AlreadyFinished):
        return show_finished(decision, console)
    return carry_out(decision, console, link, started)


def carry_out(decision: Decision, console: Console, link: Link | None = None, started: float | None = None) -> int:
    """Start the run of `decision` with the launcher of its configuration, watch it to its end, return its exit code.

    Raises:
        UserError: If it cannot be started.
        Interrupted: After a signal, when the run has ended.
    """
    launcher = launcher_of(decision.experiment)
    with signals.listening(), signals.allow(signals.RUN_SECONDS):
        try:
            handle = launcher.start(decision, console, link, started)
            supervise([handle])
        finally:
            launcher.close()
    assert handle.exit_code is not None
    return handle.exit_code


def show_decision(decision: Decision, console: Console) -> None:
    """Print what a command will do."""
    show_plan(decision.experiment, decision.plan, console)
    for line in advice(decision.experiment):
        console.warn(line)
    decision.notes.show(console)


def show_finished(decision: Decision, console: Console) -> int:
    """Send the unsent records of a finished run, print its results, and return the exit code.

    Raises:
        UserError: If the store cannot be used.
    """
    # here, because a dry run does not need it
    from pipeline.tracking.pending import send_pending, settings_for
    from pipeline.tracking.store import Store

    experiment, run = decision.experiment, decision.folder
    store = Store(settings_for(run.path, experiment.tracking), experiment.outputs)
    with signals.allow(signals.RUN_SECONDS), run.locked():
        tracker = send_pending(run.path, store, console.warn, console.log)
        summary = run.summary
        if summary.ending:
            summary.ending = False
            run.write(summary)
    if (request := signals.requested()) is not None and tracker.unsent:
        return request.exit_code
    show_summary(summary, tracker.links, console)
    for line in tracker.notes:
        console.log(line)
    if decision.part is None:
        show_next(summary, experiment.outputs, console)
    console.log("already finished, so nothing was trained. To train again: resume=never")
    return DONE
