"""Send the pending records of runs and sweeps to their stores.

Records are pending if a store was not available, or if a process died. A run that was sent completely is sent again
only if it is named or if everything is sent again, so a run that was deleted in MLflow stays deleted.
"""

from collections.abc import Sequence
from pathlib import Path

from pipeline.command_line.command import print_error, print_warning, say
from pipeline.config.schemas import MLFLOW_RUN, TrackingSettings
from pipeline.console import Console
from pipeline.paths import shorter
from pipeline.runs.folder import RunFolder
from pipeline.runs.journal import NAME, Journal
from pipeline.runs.lock import LockedError, locked
from pipeline.sweep.index import is_sweep, read_index
from pipeline.tracking.ending import end_abandoned
from pipeline.tracking.follower import is_followed
from pipeline.tracking.pending import send_pending, settings_for
from pipeline.tracking.store import Store
from stages.errors import UserError
from stages.settings.places import resolved


def send_all(named: Sequence[str], outputs: Path, uri: str | None = None, again: bool = False) -> int:
    """Send the pending records and print what was sent; return the number of records that are still pending.

    Args:
        named: Folders of runs or sweeps; empty for all in `outputs` that are tracked.
        outputs: The folder of all results.
        uri: The address of the MLflow server, if it needs a user name or password.
        again: Whether to send all records, including those that were sent before.
    """
    folders = [resolved(folder) for folder in named] or _tracked(outputs)
    unsent = 0
    for folder in folders:
        try:
            unsent += _sync(folder, outputs, uri, again, is_named=bool(named))
        except (UserError, OSError) as error:  # the records of other runs are still sent
            print_error(f"{shorter(folder)}: {error}")
            unsent += 1
    if not unsent:
        say(f"{len(folders)} tracked runs and sweeps under {shorter(outputs)}: everything has been sent")
    return unsent


def _tracked(outputs: Path) -> list[Path]:
    """Return the folders of tracked sweeps and runs, a sweep before its jobs."""
    patterns = ("runs/*/*", "sweeps/*", "sweeps/*/*")
    folders = sorted(path.parent for pattern in patterns for path in outputs.glob(f"{pattern}/{NAME}"))
    return [folder for folder in folders if Journal(folder).is_tracked]


def _sync(folder: Path, outputs: Path, uri: str | None, again: bool, is_named: bool) -> int:
    """Send the pending records of one run or sweep, unless a process uses it; return how many are still pending."""
    if not (folder / NAME).is_file():
        raise UserError("this is not the folder of a run or sweep")
    try:
        if is_followed(folder):
            raise LockedError(folder)
        with locked(folder, patience=0):
            if again:
                Journal(folder).send_again()
            end_abandoned(RunFolder(folder), Console())
            return _sync_locked(folder, outputs, uri, is_named)
    except LockedError:
        say(f"{shorter(folder)}: in use by a process, which sends its records itself")
        return 0


def _sync_locked(folder: Path, outputs: Path, uri: str | None, is_named: bool) -> int:
    """Send the pending records of a run or sweep that this process has locked; return how many are still pending."""
    journal = Journal(folder)
    if journal.is_closed and (not is_named or journal.header.target not in (None, MLFLOW_RUN)):
        return 0
    settings = TrackingSettings("server", uri) if uri else settings_for(folder, TrackingSettings())
    if "***" in (settings.uri or ""):
        raise UserError(
            f"the password of {settings.uri} was not stored", "the complete address", f"--uri={settings.uri}"
        )
    top = folder.parent if is_sweep(folder) else folder.parent.parent  # also after a move
    store = Store(settings, top.parent if top.name in ("runs", "sweeps") else outputs)
    count, run_id = journal.unsent, journal.run_id
    status = read_index(folder).status if is_sweep(folder) else None
    tracker = send_pending(folder, store, print_warning, print, status=status)
    sent = count if tracker.run_id == run_id else len(Journal(folder).entries)
    if sent or tracker.unsent:
        say(f"{shorter(folder)}: {max(sent - tracker.unsent, 0)} entries sent, {tracker.unsent} pending")
    for line in tracker.notes:
        say(f"{shorter(folder)}: {line}")
    return tracker.unsent
