"""End a run whose process cannot do so itself, and record that in its journal."""

from contextlib import suppress
from pathlib import Path

from pipeline.console import Console
from pipeline.exit_codes import FAILED, STOPPED, TIMED_OUT
from pipeline.runs.folder import LOG, RunFolder
from pipeline.runs.journal import ENDED
from pipeline.runs.summary import NAME, one_line
from pipeline.tracking.tracker import Recorder
from stages.errors import UserError

LOST = "its process was killed or did not respond"


def record_end(recorder: Recorder, run: RunFolder) -> None:
    """Record the end of a run; its status last, when the store has everything else."""
    summary = run.summary
    if summary.error:
        recorder.tags({"failed_stage": summary.failed_stage, "error": summary.error})
    for name in (NAME, LOG):
        if (run.path / name).exists():
            recorder.artifact(run.path / name)
    recorder.status(summary.status)


def end_run(run: RunFolder, code: int, reason: str, console: Console) -> None:
    """End the run if it has not ended, and record its end if the journal lacks it. The caller holds the lock.

    Nothing is recorded for a run that was killed before it recorded anything.

    Args:
        run: The run.
        code: The exit code of its process, which decides between KILLED and FAILED.
        reason: Why it ended.
        console: Prints what happened.
    """
    status = "KILLED" if code in (TIMED_OUT, *STOPPED) else "FAILED"
    if run.end(status, reason):
        console.error(f"the run ended as {status}: {reason}")  # not earlier, as it may wait for the terminal
    summary, journal = run.read(console.warn), run.journal
    if summary is not None and summary.status in ENDED and journal.has_begun and journal.status != summary.status:
        record_end(Recorder(journal, console.warn), run)


def end_dead(run: RunFolder, code: int, reason: str, console: Console) -> None:
    """End the run of a process that has ended; see `end_run`. Does nothing if another process works on it."""
    try:
        with run.locked():
            end_run(run, code, reason, console)
    except OSError:
        return
    except UserError as error:
        console.error(f"recording: {one_line(error)}")


def end_without_process(folder: Path) -> bool:
    """End the run or the sweep in `folder` if no process works on it; return False if one does."""
    run = RunFolder(folder)
    if not folder.exists():
        return True
    with suppress(OSError, UserError):
        with run.locked(patience=0):
            end_abandoned(run, Console())
        return True
    return False


def end_abandoned(run: RunFolder, console: Console) -> None:
    """End a run, or a sweep, that no process works on. The caller holds the lock.

    Only the journal of a sweep gets a status. Its own file still shows that it has not ended, so the same command
    resumes it.
    """
    if run.read() is not None:
        end_run(run, FAILED, LOST, console)
    elif run.journal.status == "RUNNING":
        Recorder(run.journal, console.warn).status("KILLED")
