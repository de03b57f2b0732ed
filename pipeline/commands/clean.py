"""`python -m pipeline clean`: list files that old runs no longer need, and delete them after confirmation."""

import argparse
import fcntl
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from pipeline.command_line.command import Command, print_error, say
from pipeline.paths import LOCK, shorter
from pipeline.runs.lock import LockedError, locked
from stages.errors import UserError
from stages.storage.atomic import PARTIAL, remove

KINDS = {
    "checkpoints": ["{run}/checkpoints/step-*.npz", "{run}/checkpoints/start.npz"],
    "cache": ["cache/[!.]*/"],
    "partial": ["{run}/.partial-*", "{run}/checkpoints/.partial-*", "cache/.partial-*"],
}
"""Patterns of the files of each kind.

These are `checkpoints` of finished runs, the `cache` of prepared data, and `partial` files of killed processes."""

Removable = tuple[str, Path, float, int]
"""A file or folder that may be deleted: its kind, path, seconds since its last use, and size in bytes."""


def _clean(options: argparse.Namespace) -> int:
    """List the files and delete them after confirmation; return 1 if some could not be deleted, else 0."""
    removable = list(_find(options))
    for kind, path, age, size in removable:
        say(f"{kind:11}  {_megabytes(size):>14}  {age / 86400:4.0f} d  {shorter(path)}")
    say(f"{_megabytes(sum(size for *_, size in removable))} can be freed in {shorter(options.outputs)}")
    if not removable or options.dry_run:
        return 0
    if not options.yes and not sys.stdin.isatty():
        raise UserError("standard input is not a terminal, so nobody can confirm", "", "python -m pipeline clean --yes")
    if not options.yes and input("delete all of them? [y/N] ").strip().lower() not in ("y", "yes"):
        say("nothing was deleted")
        return 0
    return _remove(removable)


def _find(options: argparse.Namespace) -> Iterator[Removable]:
    """Yield the files and folders that the options select, without following links."""
    from pipeline.runs.folder import RunFolder

    top = options.outputs.resolve()
    for kind in options.kind or KINDS:
        patterns = {text.format(run=run) for text in KINDS[kind] for run in ("runs/*/*", "sweeps/*/*")}
        paths = {path for pattern in patterns for path in top.glob(pattern)}
        if kind == "partial":
            never_begun = {folder for folder in top.glob("runs/*/*/") if not any(folder.glob("[!.]*"))}
            paths = {path for path in paths if path.parent not in never_begun} | never_begun
        for path in sorted(paths):
            is_kept = kind == "checkpoints" and not options.unfinished and not RunFolder(path.parents[1]).has_finished
            if is_kept or path.resolve() != path:
                continue
            with suppress(OSError):  # the file may have been deleted in the meantime
                facts = [file.lstat() for file in [path, *path.rglob("*")]]
                age = time.time() - max(one.st_mtime for one in facts)
                if age >= 86400 * options.older_than:
                    yield kind, path, age, sum(one.st_blocks * 512 for one in facts)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the owner of `path`: an entry of the cache (see `stages.storage.cache`), or a run and its sweep.

    Raises:
        BlockingIOError, LockedError: If a process uses it.
    """
    with ExitStack() as held:
        if path.parent.name == "cache":
            lock = path.with_name(f".{path.name.removeprefix(PARTIAL)}.lock")
            fcntl.flock(held.enter_context(lock.open("a")), fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            is_run = path.parent.name != "checkpoints" and not path.name.startswith(PARTIAL)
            run = path if is_run else path.parents[path.parent.name == "checkpoints"]
            for folder in (run.parent, run):
                if folder == run or (folder / LOCK).exists():
                    held.enter_context(locked(folder, patience=0))
        yield


def _remove(removable: Sequence[Removable]) -> int:
    """Delete the files that are still unused; return the exit code."""
    freed = failures = 0
    for _, path, _, size in removable:
        try:
            with _locked(path):
                remove(path)
            if path.exists():
                raise OSError(f"{path} cannot be deleted")
            freed += size
        except (BlockingIOError, LockedError):
            say(f"skipped {shorter(path)}: in use by a process")
        except OSError as error:
            failures += 1
            print_error(str(error))
    say(f"{_megabytes(freed)} freed")
    return 1 if failures else 0


def _megabytes(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"


main = Command("clean", _clean, "List files that old runs no longer need, and delete them after confirmation.")
main.add_argument(
    "--older-than",
    type=float,
    default=30.0,
    metavar="DAYS",
    help="only files last used more than DAYS ago (default: %(default)g); 0: all",
)
main.add_argument(
    "--kind", choices=[*KINDS], action="append", help="only files of this kind; may be repeated (default: all)"
)
main.add_argument(
    "--unfinished",
    action="store_true",
    help="also delete checkpoints from which unfinished runs could resume",
)
main.add_argument("--dry-run", action="store_true", help="list the files without deleting them")
main.add_argument("--yes", action="store_true", help="delete without asking for confirmation")
