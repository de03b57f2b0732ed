"""`python -m pipeline.sync`: sends every run's unsent records to its store.

These are records made while a store did not answer, or left when a process died. A run that was completely sent is sent
again only where it is named, or all are (`--again`): so one that was deleted in MLflow's pages stays deleted.
"""

import argparse
from pathlib import Path

from pipeline.command_line.command import Command, print_error, print_warning, run_command, say
from pipeline.config.schemas import MLFLOW_RUN, TrackingSettings
from pipeline.paths import shorter
from pipeline.run_folder.journal import NAME, Journal
from pipeline.run_folder.lock import LockedError, locked
from pipeline.sweep.index import is_sweep, read_index
from pipeline.tracking.pending import send_pending, settings_for
from pipeline.tracking.store import Store
from stages.errors import UserError
from stages.settings.places import resolved


def _send_all(options: argparse.Namespace) -> int:
    """Return 0 if nothing is left to send, else 1."""
    outputs = options.outputs
    folders = [resolved(folder) for folder in options.folder] or _tracked(outputs)
    unsent = 0
    for folder in folders:
        try:
            unsent += _sync(folder, outputs, options)
        except (UserError, OSError) as error:  # of one run: the others are sent
            print_error(f"{shorter(folder)}: {error}")
            unsent += 1
    if not unsent:
        say(f"{len(folders)} tracked runs and sweeps under {shorter(outputs)}: everything has been sent")
    return 1 if unsent else 0


def _tracked(outputs: Path) -> list[Path]:
    """Returns the folders of tracked sweeps and runs, a sweep before its jobs."""
    patterns = ("runs/*/*", "sweeps/*", "sweeps/*/*")
    folders = sorted(path.parent for pattern in patterns for path in outputs.glob(f"{pattern}/{NAME}"))
    return [folder for folder in folders if Journal(folder).run_id is not None]


def _sync(folder: Path, outputs: Path, options: argparse.Namespace) -> int:
    """Sends the unsent records of one run or sweep, and returns how many are still unsent."""
    if not (folder / NAME).is_file():
        raise UserError("this is not the folder of a run or sweep")
    try:
        with locked(folder, patience=0):
            if options.again:
                Journal(folder).mark_sent(0)
            return _send(folder, outputs, options.uri, is_named=bool(options.folder))
    except LockedError:
        say(f"{shorter(folder)}: in use by a process, which sends its records itself")
        return 0


def _send(folder: Path, outputs: Path, uri: str | None, is_named: bool) -> int:
    journal = Journal(folder)
    if journal.is_closed and (not is_named or journal.store.get("target") not in (None, MLFLOW_RUN)):
        return 0
    settings = TrackingSettings("server", uri) if uri else settings_for(folder, TrackingSettings())
    if "***" in (settings.uri or ""):
        raise UserError(
            f"the password of {settings.uri} was not stored", "the complete address", f"--uri={settings.uri}"
        )
    top = folder.parent if is_sweep(folder) else folder.parent.parent  # also after a move
    store = Store(settings, top.parent if top.name in ("runs", "sweeps") else outputs)
    count = journal.unsent
    status = read_index(folder).status if is_sweep(folder) else None
    tracker = send_pending(folder, store, print_warning, print, status=status)
    sent = count if tracker.run_id == journal.run_id else len(Journal(folder).entries)
    if sent or tracker.unsent:
        say(f"{shorter(folder)}: {max(sent - tracker.unsent, 0)} entries sent, {tracker.unsent} pending")
    for line in tracker.notes:
        say(f"{shorter(folder)}: {line}")
    return tracker.unsent


DESCRIPTION = """Send pending records of runs and sweeps to MLflow.

Records are pending if the MLflow server was not available, or if the process of a run died. A run that was sent
completely is sent again only if you name it or use --again, so a run that you deleted in MLflow stays deleted."""

main = Command("sync", _send_all, DESCRIPTION)
main.add_argument("folder", nargs="*", help="folders of runs or sweeps (default: all)")
main.add_argument(
    "--uri", help="address of the MLflow server, if it needs a user name or password, which are never stored"
)
main.add_argument("--again", action="store_true", help="send all records, for example to a new or restored database")

if __name__ == "__main__":
    run_command(main)
