"""How a run ends: well, by an error, by a signal, or with its process."""

import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pipeline.config.experiment import Experiment
from pipeline.redaction.mask import redact, redact_file
from pipeline.run.begin import Run
from pipeline.run.console import Console
from pipeline.run.job import FAILED
from pipeline.run.lock import locked
from pipeline.run.rebuild import read_run
from pipeline.run.runner import failed_stage, one_line
from pipeline.run.settle import settings_for, settle
from pipeline.run.summary import Summary
from pipeline.system.signal_listener import Interrupted, Request
from pipeline.system.signals import stopping
from pipeline.tracking.journal import Journal
from pipeline.tracking.tracker import Patience, Tracker
from stages.errors import UserError

PATIENCE_SECONDS, STOPPED_PATIENCE_SECONDS = 20.0, 4.0
"""How long the end of a run waits for a store that does not answer; what it has not got then is kept."""

LONGEST_SECONDS = 600.0
"""How long the end of a run that has finished waits for a store that answers, but slowly."""


def failed(error: BaseException, run: Run, console: Console) -> int:
    """Notes what went wrong, and returns the exit code."""
    summary = run.summary
    if isinstance(error, Interrupted):
        summary.status, summary.error = "KILLED", f"stopped by {error}"
        return error.exit_code
    summary.status, summary.error = "FAILED", str(redact(one_line(error)))
    if not isinstance(error, UserError):
        text = "".join(traceback.format_exception(error))
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            console.say(text)
        else:
            console.log_only(text)
        summary.error += f" (traceback in {run.folder / 'pipeline.log'})"
    return FAILED


def keep_last_checkpoint(folder: Path) -> None:
    """Deletes what a finished run in `folder` has no more use for: earlier checkpoints, and what a fork started from.

    `fork=` starts from the last checkpoint. A fork that has written none keeps what it started from.
    """
    by_step = sorted(folder.glob("checkpoints/step-*.npz"), key=lambda path: (len(path.name), path.name))
    unused = [*by_step[:-1], folder / "checkpoints" / "start.npz"] if by_step else []
    for path in unused:
        with suppress(OSError):  # what cannot be deleted is in nobody's way
            path.unlink(missing_ok=True)


def end(run: Run, code: int, console: Console, started: float) -> int:
    """Writes the summary and ends the tracked run; returns the exit code.

    In this order: once the summary says how the run ended, nothing of it runs again, whenever the process dies; and
    the store says so last, when it has everything.

    Args:
        started: when the user began to wait, in seconds of `time.monotonic()`: the times of the run are up to its end.
    """
    summary, tracker, stage = run.summary, run.tracker, failed_stage(run.summary) or "recording"
    summary.run_id = tracker.run_id  # another one where the store has lost the first
    summary.take_time(started)
    try:
        summary.write(run.folder)
    except OSError as error:  # the disk is full, or gone: what happened is said all the same
        console.error(f"{run.folder / 'summary.json'} cannot be written ({error.strerror})")
        code = code or FAILED
    if summary.status == "FINISHED":
        keep_last_checkpoint(run.folder)
    redact_file(run.folder)  # what stages and callbacks have written beside what they recorded
    console.summary(summary, tracker.how_to_open())
    if summary.error:
        console.error(f"{stage}: {summary.error}")
        tracker.tags({"failed_stage": stage, "error": summary.error})
    for name in ("summary.json", "pipeline.log"):
        if (run.folder / name).exists():
            tracker.artifact(run.folder / name)
    tracker.status(summary.status)
    flush(tracker, summary.status == "FINISHED", console)
    if summary.run_id != tracker.run_id:
        summary.run_id = tracker.run_id
        try:
            summary.write(run.folder)
            tracker.artifact(run.folder / "summary.json")
            tracker.flush(Patience(STOPPED_PATIENCE_SECONDS))
        except OSError as error:
            console.error(f"{run.folder / 'summary.json'} cannot be written ({error.strerror})")
    tracker.close()
    summary.take_time(started)  # again: the store may have taken its time
    with suppress(OSError):
        summary.write(run.folder)
    console.times(summary)
    console.close()
    return code


def flush(tracker: Tracker, finished: bool, console: Console) -> int:
    """Waits until the store has everything, and returns how many entries it misses; a signal ends the wait.

    Args:
        finished: whether the run was not stopped; one that was is to end soon.
    """
    left = 0
    try:
        with stopping() as stop:
            patience = (
                patience_of(console.say, lambda: stop.requested) if finished else Patience(STOPPED_PATIENCE_SECONDS)
            )
            left = tracker.flush(patience)
    except Interrupted:  # the run is over: its end is what it was
        console.say("the rest is sent by the same command, or by `python -m pipeline.sync`")
    return left


def patience_of(say: Callable[[str], None], stopped: Callable[[], bool] = lambda: False) -> Patience:
    """Returns how long a run that has finished waits for its store."""
    return Patience(PATIENCE_SECONDS, LONGEST_SECONDS, say, stopped)


LOST = "its process was killed or did not answer"


def end_lost(folder: Path, experiment: Experiment, status: str, console: Console, reason: str = LOST) -> None:
    """Ends a run whose process died before it could, and says so; one that has ended or lives, it leaves."""
    try:
        with locked(folder):
            summary = read_run(folder, console.warn)
            if summary is None:
                return
            if summary.status == "RUNNING":
                summary = replace(summary, status=status, error=reason)
                console.error(f"the run is {status}: {summary.error}")
                summary.write(folder)
            elif not is_unsent(summary, experiment):
                return
            _send(folder, experiment, console, Patience(STOPPED_PATIENCE_SECONDS))
    except (OSError, ValueError):
        return
    except UserError as error:
        console.error(f"recording: {one_line(error)}")


def mark_killed(folder: Path, experiment: Experiment, wanted: Request, console: Console) -> None:
    """Marks this process's own run as KILLED, for it is about to be ended by force, wherever it is."""
    with suppress(OSError, ValueError, UserError):
        summary = Summary.read(folder)
        if summary.status == "RUNNING":
            replace(summary, status="KILLED", error=f"stopped by {wanted.reason}, by force").write(folder)
            _send(folder, experiment, console, Patience(STOPPED_PATIENCE_SECONDS))


def is_unsent(summary: Summary, experiment: Experiment) -> bool:
    """Returns whether a run that has ended was recorded, but not to its end: its process died, or the store was away.

    Nothing is known of that under `tracking=off`.
    """
    journal = Journal(Path(summary.folder))
    tracked = summary.run_id is not None or journal.run_id is not None
    return experiment.tracking.kind != "off" and tracked and not journal.is_closed


def send_rest(folder: Path, experiment: Experiment, console: Console, parent: str | None = None) -> int:
    """Sends what a run that has ended has left when its process died; returns how many entries are left.

    Args:
        parent: the id of the sweep's run that it now belongs to.
    """
    try:
        with locked(folder):
            return _send(folder, experiment, console, patience_of(console.say), parent)
    except (OSError, UserError) as error:
        console.warn(f"recording: {one_line(error)}")
        return 1


def close_finished(summary: Summary, experiment: Experiment, console: Console) -> int:
    """Sends what a run that has finished has left, prints what it came to, and returns the exit code.

    Raises:
        UserError: where the store cannot be used.
    """
    folder = Path(summary.folder)
    settings = settings_for(folder, experiment.tracking)
    try:
        with locked(folder), stopping() as stop:
            patience = patience_of(console.say, lambda: stop.requested)
            settled = settle(folder, settings, experiment.outputs, console.warn, patience)
    except Interrupted as interrupted:
        return interrupted.exit_code
    found = read_run(folder, console.warn) or summary
    console.summary(found, settled.open_with)
    console.say("it had finished: nothing was trained. resume=never begins a new run")
    return 0


def _send(folder: Path, experiment: Experiment, console: Console, patience: Patience, parent: str | None = None) -> int:
    if experiment.tracking.kind == "off":
        return 0
    settings = settings_for(folder, experiment.tracking)
    return settle(folder, settings, experiment.outputs, console.warn, patience, parent).left
