"""`python -m pipeline.clean`: lists files that old runs no longer need, and removes them after confirmation."""

import argparse
import fcntl
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.command_line.command import command_parser, exit_code, run_command
from pipeline.config.names import split_override
from pipeline.paths import shorter
from pipeline.run_folder.lock import LOCK, LockedError, is_locked, locked
from pipeline.run_folder.runs import Runs, read_run
from pipeline.sweep.index import read_index, sweep_folders
from pipeline.tracking.journal import Journal
from stages.checkpoints.names import START, checkpoint_files
from stages.errors import UserError

KINDS = {
    "checkpoints": "checkpoints of runs that have finished; a run without any can no longer be forked",
    "cache": "decoded images and features that no run has used for as long; they are made again when needed",
    "damaged": "files that were put aside because they were damaged",
    "partial": "files that a process had not finished when it ended",
}

_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

_GLOBS = {
    "checkpoints": ["{run}/checkpoints/*.npz"],
    "cache": ["cache/[!.]*/"],
    "damaged": ["{run}/damaged-*", "{run}/checkpoints/damaged-*", "cache/damaged-*"],
    "partial": ["{run}/.*.partial", "{run}/.partial-*", "{run}/checkpoints/.partial-*", "cache/.partial-*"],
}


@dataclass(frozen=True)
class Removable:
    """A file or folder that may be removed. age: seconds since its last use; size: in bytes."""

    kind: str
    path: Path
    age: float
    size: int

    @property
    def owner(self) -> Path:
        """The folder of the run, or the entry of the cache, that it belongs to."""
        if self.path.parent.name == "cache":
            return self.path.with_name(self.path.name.removeprefix(".partial-"))
        return self.path.parents[self.path.parent.name == "checkpoints"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if all is removed, 1 if something could not be, 2 if the command is wrong."""
    parser = command_parser("clean", __doc__)
    parser.add_argument(
        "--older-than", default="30d", help="last used so long ago: 45m, 12h, 30d (default), 2w; 0d: all"
    )
    parser.add_argument("--kind", default=",".join(KINDS), help=f"of {', '.join(KINDS)}, several: a,b (default: all)")
    parser.add_argument("--unfinished", action="store_true", help="also checkpoints of runs that could be resumed")
    parser.add_argument("--dry-run", action="store_true", help="only list what would be removed")
    parser.add_argument("--yes", action="store_true", help="remove it without asking")
    options = parser.parse_args(arguments)
    return exit_code(lambda: _clean(options))


def _clean(options: argparse.Namespace) -> int:
    kinds = _kinds(options.kind)
    outputs = options.outputs
    if not outputs.is_dir():
        raise UserError(f"there is no folder {outputs}", "where runs leave things", "--outputs=<folder>")
    forked = _forked(outputs, options.unfinished)
    removable: list[Removable] = []
    stays: dict[str, None] = {}
    for item in _find(outputs, kinds, _seconds(options.older_than)):
        try:
            with _owned(item, forked, options.unfinished):
                removable.append(item)
        except UserError as error:
            stays[error.problem] = None
    _show(removable, list(stays), outputs)
    if not removable or options.dry_run:
        return 0
    if not options.yes and not _is_confirmed():
        print("nothing is removed")
        return 0
    return _remove_all(removable, outputs, options.unfinished)


def _is_confirmed() -> bool:
    if not sys.stdin.isatty():
        raise UserError(
            "standard input is no terminal, so there is no one to confirm", "", "python -m pipeline.clean --yes"
        )
    try:
        return input("remove all of it? [y/N] ").strip().lower() in ("y", "yes")
    except (KeyboardInterrupt, EOFError):
        print("\nnothing is removed")
        raise KeyboardInterrupt from None


def _find(outputs: Path, kinds: Sequence[str], older: float) -> Iterator[Removable]:
    """Yield what is of one of `kinds` and was last used `older` seconds ago; nothing beyond a link."""
    top = outputs.resolve()
    for kind in kinds:
        patterns = [text.format(run=run) for text in _GLOBS[kind] for run in ("runs/*/*", "sweeps/*/*")]
        for path in sorted({path for pattern in patterns for path in top.glob(pattern)}):
            if path.resolve() != path or (kind == "cache" and path.name.startswith("damaged-")):
                continue
            if kind == "checkpoints" and path.name != START and path not in checkpoint_files(path.parent):
                continue
            with suppress(FileNotFoundError):  # removed in the meantime
                age = time.time() - max(file.lstat().st_mtime for file in _files(path))
                if age >= older:
                    yield Removable(kind, path, age, _size(path))


def _files(path: Path) -> list[Path]:
    """Return `path`, all that is in it, and for an entry of the cache the file that notes its use."""
    used = path.with_name(f".{path.name}.use")
    return [path, *(path.rglob("*") if path.is_dir() else ()), *([used] if used.exists() else ())]


def _size(path: Path) -> int:
    """Return the bytes that removing `path` frees: none for a file that has another hard link."""
    facts = [file.lstat() for file in [path, *(path.rglob("*") if path.is_dir() else ())]]
    return sum(one.st_blocks * 512 for one in facts if one.st_nlink == 1 or path.is_dir())


def _forked(outputs: Path, unfinished: bool) -> dict[Path, str]:
    """Return the runs whose checkpoints jobs of sweeps have yet to start from, and why they stay.

    Args:
        unfinished: whether a sweep counts only while a process works on it.
    """
    forked: dict[Path, str] = {}
    for folder in sweep_folders(outputs):
        runs = is_locked(folder)
        try:
            status, jobs, _ = read_index(folder)
        except UserError:  # it cannot be resumed either
            continue
        if not runs and (unfinished or status == "FINISHED"):
            continue
        more = "" if runs else " (--unfinished removes them)"
        overrides = {text for job in jobs for text in job["overrides"]}
        for name, value in map(split_override, overrides):
            if name == "fork" and value not in ("", "null"):
                with suppress(UserError):
                    run = Path(Runs(outputs).find(value.strip("'\"")).folder).resolve()
                    forked[run] = f"{shorter(folder)}, which has not finished, forks it{more}"
    return forked


@contextmanager
def _owned(item: Removable, forked: dict[Path, str], unfinished: bool) -> Iterator[None]:
    """Lock what `item` belongs to, so that no process uses it.

    Raises:
        UserError: where one does, or the item is still needed.
    """
    owner = item.owner
    with ExitStack() as held:
        try:
            if owner.parent.name == "cache":
                for mark in ("use", "lock"):  # see `stages.storage.cache`
                    file = held.enter_context(owner.with_name(f".{owner.name}.{mark}").open("a"))
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield
                return
            for place in (owner.parent, owner):  # its sweep, too
                if place == owner or (place / LOCK).exists():
                    held.enter_context(locked(place, patience=0))
            reason = _reason_to_keep(item, forked, unfinished)
        except (BlockingIOError, LockedError) as error:
            raise UserError(f"{shorter(owner)}: a process works on it") from error
        except OSError as error:
            raise UserError(f"{shorter(owner)}: {error.strerror}") from error
        if reason:
            raise UserError(f"{shorter(owner)}: {reason}")
        yield


def _reason_to_keep(item: Removable, forked: dict[Path, str], unfinished: bool) -> str:
    if Journal(item.owner).unsent:
        return "not all of it has been sent (python -m pipeline.sync)"
    if item.kind != "checkpoints":
        return ""
    run = read_run(item.owner)
    if not unfinished and (run is None or run.status != "FINISHED"):
        return "its checkpoints could be resumed from (--unfinished removes them)"
    return forked.get(item.owner, "")


def _remove_all(removable: Sequence[Removable], outputs: Path, unfinished: bool) -> int:
    """Remove the listed files that are still unused; return the exit code."""
    freed = 0
    failures = 0
    for item in removable:
        try:
            with _owned(item, _forked(outputs, True), unfinished):
                size = _size(item.path)
                _remove(item.path)
                freed += size
        except UserError as error:
            print(f"stays: {error.problem}")
        except FileNotFoundError:  # another process has removed it
            continue
        except OSError as error:
            failures += 1
            print(f"error: {shorter(item.path)} cannot be removed ({error.strerror})", file=sys.stderr)
    print(f"{_bytes(freed)} freed")
    return 1 if failures else 0


def _remove(path: Path) -> None:
    """Remove a file, or a folder whole or not at all."""
    if not path.is_dir():
        path.unlink()
        return
    if not path.name.startswith(".partial-"):
        aside = path.with_name(f".partial-{path.name}")  # never half an entry under its own name
        shutil.rmtree(aside, ignore_errors=True)
        path = path.replace(aside)
    shutil.rmtree(path)


def _show(removable: Sequence[Removable], stays: Sequence[str], outputs: Path) -> None:
    for item in removable:
        print(f"{item.kind:11}  {_bytes(item.size):>10}  {_age(item.age):>6}  {shorter(item.path)}")
    for line in stays:
        print(f"stays: {line}")
    for kind in KINDS:
        items = [item for item in removable if item.kind == kind]
        if items:
            print(f"{len(items)} × {kind}, {_bytes(sum(item.size for item in items))}: {KINDS[kind]}")
    print(f"{_bytes(sum(item.size for item in removable))} to free in {shorter(outputs)}")


def _kinds(text: str) -> list[str]:
    kinds = text.split(",")
    for kind in kinds:
        if kind not in KINDS:
            raise UserError(f"--kind={text}: {kind or 'nothing'} is no kind", KINDS, "--kind=checkpoints")
    return kinds


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d{1,6})([mhdw])", text)
    if match is None:
        raise UserError(f"--older-than={text} is no age", "a number and m, h, d or w", "--older-than=30d")
    return int(match[1]) * _UNITS[match[2]]


def _age(seconds: float) -> str:
    unit = next((unit for unit in ("d", "h") if seconds >= _UNITS[unit]), "m")
    return f"{seconds / _UNITS[unit]:.0f} {unit}"


def _bytes(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB" if count < 2**30 else f"{count / 2**30:,.2f} GiB"


if __name__ == "__main__":
    run_command(main)
