"""How a run ends: well, by an error, by a signal, or with its process."""

import os
import traceback
from contextlib import suppress
from pathlib import Path

from pipeline.begin import Run
from pipeline.config import Experiment
from pipeline.console import Console
from pipeline.job import FAILED
from pipeline.runner import failed_stage, one_line
from pipeline.runs import locked
from pipeline.secrets import redact, redact_file
from pipeline.signals import Interrupted
from pipeline.summary import Summary
from pipeline.tracking.journal import Journal
from stages.errors import UserError

PATIENCE_SECONDS, STOPPED_PATIENCE_SECONDS = 20.0, 4.0
"""How long the end of a run waits for a store that does not answer; what it has not got then is kept."""


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


def end(run: Run, code: int, console: Console) -> int:
    """Writes the summary and ends the tracked run; returns the exit code."""
    summary, tracker, stage = run.summary, run.tracker, failed_stage(run.summary) or "recording"
    if summary.error:
        tracker.tags({"failed_stage": stage, "error": summary.error})
    tracker.status(summary.status)  # in the journal before the summary says so: nothing can fall between
    try:
        summary.write(run.folder)
    except OSError as error:  # the disk is full, or gone: what happened is said all the same
        console.error(f"{run.folder / 'summary.json'} cannot be written ({error.strerror})")
        code = code or FAILED
    if summary.status == "FINISHED" and any(run.folder.glob("checkpoints/step-*.npz")):
        with suppress(OSError):  # a fork has checkpoints of its own by now
            (run.folder / "checkpoints" / "start.npz").unlink(missing_ok=True)
    redact_file(run.folder)  # what stages and callbacks have written beside what they recorded
    console.summary(summary, tracker.how_to_open())
    if summary.error:
        console.error(f"{stage}: {summary.error}")
    for name in ("summary.json", "pipeline.log"):
        if (run.folder / name).exists():
            tracker.artifact(run.folder / name)
    tracker.close(PATIENCE_SECONDS if summary.status == "FINISHED" else STOPPED_PATIENCE_SECONDS)
    console.close()
    return code


def end_lost(folder: Path, experiment: Experiment, status: str, console: Console) -> None:
    """Ends a run whose process died before it could, and says so; nothing where it has ended itself, or lives."""
    try:
        with locked(folder):
            summary = Summary.read(folder)
            if summary.status != "RUNNING":
                return
            summary.status, summary.error = status, "its process was killed or did not answer"
            console.error(f"the run is {status}: {summary.error}")
            summary.write(folder)
            _send(folder, experiment, console, summary)
    except (OSError, ValueError):
        return
    except UserError as error:
        console.error(f"recording: {one_line(error)}")


def send_rest(folder: Path, experiment: Experiment, console: Console) -> None:
    """Sends what a run that has finished has left when its process died."""
    try:
        with locked(folder):
            if Journal(folder).unsent:
                _send(folder, experiment, console)
    except (OSError, UserError) as error:
        console.warn(f"recording: {one_line(error)}")


def _send(folder: Path, experiment: Experiment, console: Console, lost: Summary | None = None) -> None:
    if experiment.tracking.kind == "off":
        return
    from pipeline.tracking.journaled import JournaledTracker

    tracker = JournaledTracker.reopen(experiment.tracking, experiment.outputs, folder, console.warn)
    if tracker is None:
        return
    if lost is not None:
        tracker.tags({"error": lost.error or ""})
        tracker.status(lost.status)
    tracker.close(STOPPED_PATIENCE_SECONDS)
