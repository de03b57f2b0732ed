"""Has the store learn all of a run whose process is over: what its journal has left, and what the journal lost."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config.schemas import TrackingSettings
from pipeline.run.origin import Origin
from pipeline.run.rebuild import checkpoint_rows, read_run
from pipeline.run.runner import failed_stage
from pipeline.run.summary import Summary
from pipeline.tracking.journal import ENDED, Journal
from pipeline.tracking.tracker import Patience, Tracker

if TYPE_CHECKING:
    from pipeline.tracking.journaled import JournaledTracker


@dataclass(frozen=True)
class Settled:
    """left: how many entries the store has not; refused: what it will never take, and why."""

    run_id: str | None
    entries: int
    left: int
    refused: list[str]
    open_with: str | None


def settings_for(folder: Path, given: TrackingSettings) -> TrackingSettings:
    """Returns where the run in `folder` is recorded: `given`, with its password, where that is of the same kind."""
    store = Journal(folder).store
    kind = store.get("kind")
    if kind is None or kind == given.kind:
        return given
    return TrackingSettings(kind=kind, uri=store.get("uri"))


def settle(
    folder: Path,
    settings: TrackingSettings,
    outputs: Path,
    warn: Callable[[str], None],
    patience: Patience,
    parent: str | None = None,
    sweep_status: str | None = None,
) -> Settled:
    """Sends all that is left of the run in `folder`, which the caller has locked, and tells how much is left then.

    A run that the store has lost is begun again there. Where the journal was lost, too, what it had is rebuilt from the
    run's files, as far as the store does not have it.

    Args:
        parent: the id of the sweep's run that it belongs to; None: the one in its journal.
        sweep_status: the status of the sweep in `folder`; None where it holds a run.

    Raises:
        UserError: where the store cannot be used.
    """
    from pipeline.tracking.journaled import JournaledTracker
    from pipeline.tracking.spec import RunSpec

    journal, origin, summary = Journal(folder), Origin.read(folder), read_run(folder, warn)
    was_lost = not journal.trusted or journal.run_id is None
    sweep = Journal(folder.parent)
    spec = RunSpec(
        settings=settings,
        outputs=outputs,
        folder=folder,
        experiment=sweep.store.get("experiment")
        or journal.store.get("experiment")
        or (origin.name if origin else folder.parent.name),
        name=journal.store.get("name") or folder.name,
        parent=parent or sweep.run_id or journal.store.get("parent"),
    )
    tracker = JournaledTracker(spec, {}, warn)
    if summary is not None and summary.status in ENDED:
        if was_lost:
            _record_again(tracker, folder, summary)
        if tracker.recorded_status != summary.status:
            _record_end(tracker, folder, summary)
    elif summary is None and sweep_status in ENDED and tracker.recorded_status != sweep_status:
        for path in sorted(folder.glob("comparison.*")):
            tracker.artifact(path)
        tracker.status(sweep_status)
    tracker.flush(patience)
    if summary is not None and summary.run_id != tracker.run_id:
        replace(summary, run_id=tracker.run_id).write(folder)
        tracker.artifact(folder / "summary.json")
        tracker.flush(patience)
    left = tracker.close()
    return Settled(tracker.run_id, tracker.entries, left, tracker.refused, tracker.how_to_open())


def _record_end(tracker: Tracker, folder: Path, summary: Summary) -> None:
    """Records what `pipeline.run.end` records of a run."""
    if summary.error:
        tracker.tags({"failed_stage": failed_stage(summary) or "recording", "error": summary.error})
    for name in ("summary.json", "pipeline.log"):
        if (folder / name).exists():
            tracker.artifact(folder / name)
    tracker.status(summary.status)


def _record_again(tracker: "JournaledTracker", folder: Path, summary: Summary) -> None:
    """Records what files tell of a run whose journal was lost; what the store has, the tracker leaves out."""
    for epoch, row in checkpoint_rows(folder).items():
        tracker.metrics(row, epoch)
    tracker.missing_metrics(summary.metrics)
    for path in (folder / "config.yaml", folder / "plots", folder / "summary.json"):
        if path.exists():
            tracker.artifact(path, "plots" if path.is_dir() else "")
