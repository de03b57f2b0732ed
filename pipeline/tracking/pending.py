"""Sends the records of runs to the store: at their end, or later, from their files."""

import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pipeline.config.experiment import Experiment
from pipeline.config.schemas import MLFLOW_RUN, TrackingSettings
from pipeline.console import Console
from pipeline.exit_codes import STOPPED, TIMED_OUT
from pipeline.paths import shorter
from pipeline.runs.folder import RunFolder
from pipeline.runs.journal import ENDED, Journal
from pipeline.runs.summary import NAME, Summary, one_line
from pipeline.system.signals import Request
from pipeline.tracking.store import Store, is_named_by_user
from pipeline.tracking.stored_run import RunSpec
from pipeline.tracking.tracker import Tracker
from stages.errors import UserError

LOST = "its process was killed or did not respond"


def settings_for(folder: Path, tracking: TrackingSettings) -> TrackingSettings:
    """Return the settings of the store of the run in `folder`: `tracking`, if of the same kind, with its password.

    Raises:
        UserError: where the user's own class recorded it and `tracking` does not name it, as a folder may not name
            code; or where only a folder from elsewhere names the address, which gets the user's credentials and files.
    """
    journal = Journal(folder)
    store = journal.store
    kind = store.get("kind")
    target = store.get("target") or MLFLOW_RUN
    if kind is None or (kind, target) == (tracking.kind, tracking._target_):
        return tracking
    if target not in (MLFLOW_RUN, tracking._target_):
        problem = f"{shorter(folder)} was recorded by {target}"
        raise UserError(problem, "the same class", f"tracking._target_={target}")
    uri = store.get("uri")
    if uri and not journal.is_own and not is_named_by_user(uri):
        problem = f"{shorter(folder)} was recorded in {uri}, but is a copy or belongs to another user"
        expected = (
            "this address in your command or MLFLOW_TRACKING_URI, because it would receive your credentials and files"
        )
        fix = f"python -m pipeline sync {shlex.quote(shorter(folder))} --uri={shlex.quote(uri)}"
        raise UserError(problem, expected, fix)
    return replace(tracking, kind=kind, uri=uri, _target_=target)


def send_pending(
    folder: Path,
    store: Store,
    warn: Callable[[str], None],
    log: Callable[[str], None] | None = None,
    status: str | None = None,
) -> Tracker:
    """Send all unsent records of the run or sweep in `folder`, which the caller has locked; return its closed tracker.

    A run that the store has lost is recorded again there.

    Args:
        log: see `Tracker.flush`.
        status: of a sweep; None: `folder` is that of a run, whose summary has it.

    Raises:
        UserError: where the store cannot be used.
    """
    own, sweep = Journal(folder), Journal(folder.parent)
    spec = RunSpec(
        settings=store.settings,
        outputs=store.outputs,
        folder=folder,
        experiment=sweep.store.get("experiment") or own.store.get("experiment") or folder.parent.name,
        name=own.store.get("name") or folder.name,
        parent=sweep.run_id or own.store.get("parent"),
    )
    tracker = Tracker(spec, warn)
    run = RunFolder(folder).read(warn)
    if run is not None and run.run_id != tracker.run_id:
        run.run_id = tracker.run_id
        RunFolder(folder).write(run)
        tracker.artifact(folder / NAME)
    status = run.status if run is not None else status
    if status in ENDED and tracker.recorded_status != status:
        if run is not None:
            record_end(tracker, folder, run)
        else:
            for path in sorted(folder.glob("comparison.*")):
                tracker.artifact(path)
            tracker.status(status)
    tracker.flush(log)
    tracker.close()
    return tracker


def record_end(tracker: Tracker, folder: Path, summary: Summary) -> None:
    """Record the end of a run; its status last, when the store has everything else."""
    if summary.error:
        tracker.tags({"failed_stage": summary.failed_stage, "error": summary.error})
    for name in (NAME, "pipeline.log"):
        if (folder / name).exists():
            tracker.artifact(folder / name)
    tracker.status(summary.status)


def is_unsent(summary: Summary, tracking: TrackingSettings) -> bool:
    """Return whether the store misses records of a tracked run: its process died, or the store did not answer.

    False under `tracking=off`.
    """
    journal = Journal(summary.folder)
    is_tracked = summary.run_id is not None or journal.run_id is not None
    return tracking.kind != "off" and is_tracked and not journal.is_closed


def end_lost(
    run: RunFolder, experiment: Experiment, code: int, console: Console, reason: str = LOST, shared: bool = False
) -> None:
    """End a run whose process died, and send what the store lacks; no-op for one that still runs.

    Args:
        run: The run.
        experiment: Its configuration, which names the store.
        code: The exit code of its process.
        console: Prints what happened.
        reason: Why it ended.
        shared: Whether this process has supervised the run, and shares its lock.
    """
    try:
        with run.locked(shared=shared):
            end_and_send(run, Store(experiment.tracking, experiment.outputs), code, reason, console)
    except OSError:
        return
    except UserError as error:
        console.error(f"recording: {one_line(error)}")


def mark_killed(run: RunFolder, store: Store, request: Request, console: Console, sends: bool) -> None:
    """End this process's run before the process is ended by force: KILLED, or FAILED if nobody requested it.

    Args:
        run: The run, which this process has claimed.
        store: Where it is recorded.
        request: Why the process ends.
        console: Prints what happened.
        sends: Whether its end is sent from here; otherwise the helper process does so.
    """
    from_file = RunFolder(run.path)  # as the main thread may be changing its own summary
    with suppress(OSError, UserError):
        if not from_file.has_begun:
            from_file.forget()
            return
        end_and_send(from_file, store, request.exit_code, f"forcibly stopped by {request.reason}", console, sends)


def end_and_send(run: RunFolder, store: Store, code: int, reason: str, console: Console, sends: bool = True) -> None:
    """End the run, whose lock the caller holds, if it has not ended; send what the store lacks.

    Args:
        run: The run.
        store: Where it is recorded.
        code: The exit code of its process, which makes it KILLED or FAILED.
        reason: Why it ended.
        console: Prints what happened.
        sends: Whether to send.
    """
    status = "KILLED" if code in (TIMED_OUT, *STOPPED) else "FAILED"
    has_ended_now = run.end(status, reason)
    if has_ended_now:
        console.error(f"the run ended as {status}: {reason}")  # after it is written: it may wait for the terminal
    summary = run.read(console.warn)
    if summary is None or not sends or store.settings.kind == "off":
        return
    if has_ended_now or is_unsent(summary, store.settings):
        send_pending(run.path, replace(store, settings=settings_for(run.path, store.settings)), console.warn)
