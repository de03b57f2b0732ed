"""`python -m pipeline.sync`: sends what runs have recorded while their store did not answer."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline import environment
from pipeline.config import TrackingSettings
from pipeline.paths import default_outputs, shorter
from pipeline.runs import LockedError, locked
from pipeline.secrets import guard_output, learn_arguments, redact
from pipeline.tracking.journal import NAME, Journal
from stages.errors import UserError

PATIENCE_SECONDS = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Sends what the command line asks for; returns 0 where nothing is left to send, else 1."""
    parser = argparse.ArgumentParser("python -m pipeline.sync", description=__doc__)
    parser.add_argument("folder", nargs="*", type=Path, help="of runs or sweeps; all of them if left out")
    parser.add_argument("--outputs", type=Path, default=default_outputs(), help="where runs leave things")
    parser.add_argument("--uri", help="of the store, where it has a user name or a password: those are never kept")
    given = parser.parse_args(arguments)
    environment.prepare()
    outputs = given.outputs.expanduser().resolve()
    patterns = ("runs/*/*", "sweeps/*", "sweeps/*/*")
    folders = given.folder or sorted(path.parent for one in patterns for path in outputs.glob(f"{one}/{NAME}"))
    left = 0
    for folder in folders:
        try:
            left += _send(folder.resolve(), outputs, given.uri)
        except UserError as error:
            print(f"error: {redact(str(error))}", file=sys.stderr)
            left += 1
    return 1 if left else 0


def _send(folder: Path, outputs: Path, uri: str | None) -> int:
    """Sends the entries of one run, and returns how many are left."""
    if not (folder / NAME).is_file():
        raise UserError(f"{shorter(folder)} has no {NAME}", "the folder of a run or a sweep that was tracked")
    try:
        with locked(folder, patience=0):
            return _send_unsent(folder, outputs, uri)
    except LockedError:
        print(f"{shorter(folder)}: a process works on it, and sends what it has itself")
        return 0


def _send_unsent(folder: Path, outputs: Path, uri: str | None) -> int:
    journal = Journal(folder)
    count = journal.unsent
    if not count:
        return 0
    kind, address = journal.store.get("kind") or "local", uri or journal.store.get("uri")
    if address and "***" in address:
        raise UserError(
            f"{shorter(folder)}: the password of {address} was not kept", "the whole address", f"--uri={address}"
        )
    from pipeline.tracking.journaled import JournaledTracker

    noted = Path(journal.store.get("outputs") or outputs)
    outputs = noted if noted.is_dir() else outputs
    settings = TrackingSettings(kind="server" if uri else kind, uri=address)
    tracker = JournaledTracker.reopen(settings, outputs, folder, lambda line: print(f"warning: {line}"))
    assert tracker is not None
    left = tracker.close(PATIENCE_SECONDS)
    print(f"{shorter(folder)}: {count - left} entries sent, {left} left")
    return left


if __name__ == "__main__":
    learn_arguments(sys.argv[1:])
    guard_output()
    sys.exit(main())
