"""Send the pending records of runs that no process works on."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pipeline.config.experiment import Experiment
from pipeline.config.schemas import MLFLOW_RUN, TrackingSettings
from pipeline.console import Console
from pipeline.paths import shorter
from pipeline.runs.folder import RunFolder
from pipeline.runs.journal import ENDED, Journal
from pipeline.runs.summary import NAME, one_line
from pipeline.system import signals
from pipeline.tracking.ending import LOST, end_run, record_end
from pipeline.tracking.follower import followed_here, run_spec
from pipeline.tracking.store import Store, is_named_by_user
from pipeline.tracking.tracker import Tracker
from stages.errors import UserError


def settings_for(folder: Path, tracking: TrackingSettings) -> TrackingSettings:
    """Return the settings of the store of the run in `folder`: `tracking` if it is of the same kind, with its password.

    Raises:
        UserError: If a custom class recorded the run and `tracking` does not name that class, as a folder must not
            choose the code to execute. Also if the address is named only by a folder that is not the user's own, as
            the server at that address would receive the user's credentials and files.
    """
    journal = Journal(folder)
    kind, uri, target = journal.header.kind, journal.header.uri, journal.header.target or MLFLOW_RUN
    if kind in (None, "off") or (kind, target) == (tracking.kind, tracking._target_):
        return tracking
    if target not in (MLFLOW_RUN, tracking._target_):
        problem = f"{shorter(folder)} was recorded by {target}"
        raise UserError(problem, "the same class", f"tracking._target_={target}")
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
    """Send all unsent records of the run or sweep in `folder`, which the caller has locked; return its tracker.

    If the store has lost the run, it is recorded there again.

    Args:
        folder: The folder.
        store: The store.
        warn: Gets a line about each problem.
        log: See `Tracker.flush`.
        status: The status of a sweep. None for a run, whose summary has its status.

    Raises:
        UserError: If the store cannot be used.
    """
    sweep, run = Journal(folder.parent), RunFolder(folder)
    spec = run_spec(Journal(folder), store)
    if sweep.has_begun:
        spec = replace(spec, experiment=sweep.header.experiment or spec.experiment, parent=sweep.run_id or spec.parent)
    with followed_here(folder, store):
        tracker = Tracker(spec, warn)
        tracker.wait_until_open()
        signals.check()
        summary = run.read(warn)
        if summary is not None and summary.run_id != tracker.run_id:
            summary.run_id = tracker.run_id
            run.write(summary)
            tracker.artifact(folder / NAME)
        status = summary.status if summary is not None else status
        if status in ENDED and tracker.recorded_status != status:
            if summary is not None:
                record_end(tracker, run)
            else:
                for path in sorted(folder.glob("comparison.*")):
                    tracker.artifact(path)
                tracker.status(status)
        tracker.flush(log)
        tracker.close()
    return tracker


def end_lost(run: RunFolder, experiment: Experiment, code: int, console: Console, reason: str = LOST) -> None:
    """End a run whose process died, and send its pending records. Do nothing if another process works on it.

    Args:
        run: The run.
        experiment: Its configuration, which names the store.
        code: The exit code of its process.
        console: Prints what happened.
        reason: Why it ended.
    """
    store = Store(experiment.tracking, experiment.outputs)
    try:
        with run.locked():
            end_run(run, code, reason, console)
            if store.settings.kind != "off" and run.read(console.warn) is not None and run.is_unsent:
                send_pending(run.path, replace(store, settings=settings_for(run.path, store.settings)), console.warn)
    except OSError:
        return
    except UserError as error:
        console.error(f"recording: {one_line(error)}")
