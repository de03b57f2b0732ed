"""Sends the records of runs to the store: at their end, or later, from their files."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config.experiment import Experiment
from pipeline.config.schemas import MLFLOW_RUN, TrackingSettings
from pipeline.console import Console
from pipeline.exit_codes import FAILED
from pipeline.paths import shorter
from pipeline.run_folder.lock import locked
from pipeline.run_folder.runs import read_run
from pipeline.run_folder.summary import NAME, Summary, one_line
from pipeline.system.signal_listener import Interrupted, Request
from pipeline.system.signals import stopping
from pipeline.tracking.journal import ENDED, Journal
from pipeline.tracking.tracker import Patience, RunSpec, Tracker
from stages.errors import UserError

if TYPE_CHECKING:
    from pipeline.tracking.journaled import JournaledTracker

LOST = "its process was killed or did not answer"


@dataclass(frozen=True)
class Settled:
    """The state of a run in its store. unsent: entries that it misses; refused: those that it rejects, and why.

    notes: lines on what came of those that were sent.
    """

    run_id: str | None
    entries: int
    unsent: int
    refused: list[str]
    open_with: str | None
    notes: list[str]


def settings_for(folder: Path, tracking: TrackingSettings) -> TrackingSettings:
    """Returns the settings of the store of the run in `folder`: `tracking`, if of the same kind, with its password.

    Raises:
        UserError: where the user's own class recorded it and `tracking` does not name it; a folder may not name code.
    """
    store = Journal(folder).store
    kind = store.get("kind")
    target = store.get("target") or MLFLOW_RUN
    if kind is None or (kind, target) == (tracking.kind, tracking._target_):
        return tracking
    if target not in (MLFLOW_RUN, tracking._target_):
        raise UserError(
            f"{shorter(folder)} was recorded by {target}", "the same setting again", f"tracking._target_={target}"
        )
    return replace(tracking, kind=kind, uri=store.get("uri"), _target_=target)


def settle(
    folder: Path,
    settings: TrackingSettings,
    outputs: Path,
    warn: Callable[[str], None],
    patience: Patience,
    parent: str | None = None,
) -> Settled:
    """Sends all unsent records of the run in `folder`, which the caller has locked.

    A run that the store has lost is recorded again there.

    Args:
        parent: the id of the sweep's run that it belongs to; None: the one in its journal.

    Raises:
        UserError: where the store cannot be used.
    """
    summary = read_run(folder, warn)
    tracker = _tracker(folder, settings, outputs, warn, parent)
    if summary is not None and summary.status in ENDED and tracker.recorded_status != summary.status:
        record_end(tracker, folder, summary)
    tracker.flush(patience)
    if summary is not None and summary.run_id != tracker.run_id:
        replace(summary, run_id=tracker.run_id).write(folder)
        tracker.artifact(folder / NAME)
        tracker.flush(patience)
    return _closed(tracker)


def settle_sweep(
    folder: Path,
    settings: TrackingSettings,
    outputs: Path,
    warn: Callable[[str], None],
    patience: Patience,
    status: str,
) -> Settled:
    """Sends all unsent records of the sweep in `folder`, which the caller has locked; see `settle`."""
    tracker = _tracker(folder, settings, outputs, warn)
    if status in ENDED and tracker.recorded_status != status:
        for path in sorted(folder.glob("comparison.*")):
            tracker.artifact(path)
        tracker.status(status)
    tracker.flush(patience)
    return _closed(tracker)


def _tracker(
    folder: Path, settings: TrackingSettings, outputs: Path, warn: Callable[[str], None], parent: str | None = None
) -> "JournaledTracker":
    from pipeline.tracking.journaled import JournaledTracker  # seconds to import

    journal = Journal(folder)
    sweep = Journal(folder.parent)
    spec = RunSpec(
        settings=settings,
        outputs=outputs,
        folder=folder,
        experiment=sweep.store.get("experiment") or journal.store.get("experiment") or folder.parent.name,
        name=journal.store.get("name") or folder.name,
        parent=parent or sweep.run_id or journal.store.get("parent"),
    )
    return JournaledTracker(spec, warn)


def _closed(tracker: "JournaledTracker") -> Settled:
    unsent = tracker.close()
    return Settled(tracker.run_id, tracker.entries, unsent, tracker.refused, tracker.how_to_open(), tracker.notes)


def record_end(tracker: Tracker, folder: Path, summary: Summary) -> None:
    """Records the end of a run; its status last, when the store has everything else."""
    if summary.error:
        tracker.tags({"failed_stage": summary.failed_stage or "recording", "error": summary.error})
    for name in (NAME, "pipeline.log"):
        if (folder / name).exists():
            tracker.artifact(folder / name)
    tracker.status(summary.status)


def flush(tracker: Tracker, finished: bool, console: Console) -> int:
    """Waits until the store has everything, and returns how many entries it misses; a signal ends the wait.

    Args:
        finished: False for a run that was stopped and should end soon.
    """
    try:
        with stopping() as stop:
            of_finished = Patience.of_finished(console.log, lambda: stop.requested)
            return tracker.flush(of_finished if finished else Patience.of_stopped())
    except Interrupted:  # the run has ended, and its status stays
        console.log("the same command, or `python -m pipeline.sync`, sends the rest")
        return 0


def is_unsent(summary: Summary, experiment: Experiment) -> bool:
    """Returns whether the store misses records of a tracked run: its process died, or the store did not answer.

    False under `tracking=off`.
    """
    journal = Journal(Path(summary.folder))
    is_tracked = summary.run_id is not None or journal.run_id is not None
    return experiment.tracking.kind != "off" and is_tracked and not journal.is_closed


def end_lost(
    folder: Path, experiment: Experiment, status: str, console: Console, reason: str = LOST, shared: bool = False
) -> None:
    """Mark a run whose process died as ended; no-op for one that has ended or still runs.

    Args:
        shared: whether this process has supervised the run, and shares its lock.
    """
    try:
        with locked(folder, shared=shared):
            _mark(folder, experiment, status, reason, console)
    except (OSError, ValueError):
        return
    except UserError as error:
        console.error(f"recording: {one_line(error)}")


def mark_killed(folder: Path, experiment: Experiment, request: Request, console: Console) -> None:
    """Mark this process's run before the process is ended by force: KILLED, or FAILED where that was no one's wish."""
    status = "FAILED" if request.exit_code == FAILED else "KILLED"
    with suppress(OSError, ValueError, UserError):
        _mark(folder, experiment, status, f"stopped by {request.reason}, by force", console)


def _mark(folder: Path, experiment: Experiment, status: str, reason: str, console: Console) -> None:
    """Mark a RUNNING run as ended, and send what the store misses; the caller has locked the folder."""
    summary = read_run(folder, console.warn)
    if summary is None:
        return
    is_running = summary.status == "RUNNING"
    if is_running:
        replace(summary, status=status, error=reason).write(folder)
        console.error(f"the run is {status}: {reason}")  # after it is written: it may wait for the terminal
    if is_running or is_unsent(summary, experiment):
        _send(folder, experiment, console, Patience.of_stopped())


def send_rest(folder: Path, experiment: Experiment, console: Console, parent: str | None = None) -> None:
    """Sends the unsent records of a run that has ended.

    Args:
        parent: the id of the sweep's run that it now belongs to.
    """
    try:
        with locked(folder):
            _send(folder, experiment, console, Patience.of_finished(console.log), parent)
    except (OSError, UserError) as error:
        console.warn(f"recording: {one_line(error)}")


def _send(
    folder: Path, experiment: Experiment, console: Console, patience: Patience, parent: str | None = None
) -> None:
    if experiment.tracking.kind != "off":
        settings = settings_for(folder, experiment.tracking)
        settle(folder, settings, experiment.outputs, console.warn, patience, parent)
