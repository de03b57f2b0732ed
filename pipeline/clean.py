"""`python -m pipeline.clean`: lists files that old runs no longer need, and removes them after confirmation."""

import argparse
import fcntl
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.command_line.command import command_parser, exit_code, run_command
from pipeline.config.keys import split_override
from pipeline.paths import shorter
from pipeline.redaction.mask import redact
from pipeline.run_folder.finding import find_run
from pipeline.run_folder.lock import LockedError, is_locked, locked
from pipeline.run_folder.summary import NAME, Summary
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
_LEFTOVERS = {"damaged": ("damaged-*",), "partial": (".*.partial", "partial-*", ".partial-*")}


@dataclass(frozen=True)
class Removable:
    """A file or folder that may be removed.

    owner: the run's folder, or the cache's entry, which is locked for the removal. age: seconds since the last use.
    """

    kind: str
    path: Path
    owner: Path
    age: float
    size: int

    @property
    def is_shared(self) -> bool:
        """Whether it belongs to the cache, not to a run."""
        return self.owner.parent == self.path.parent

    def locked_owner(self) -> AbstractContextManager[None]:
        return _locked_entry(self.owner) if self.is_shared else _locked_run(self.owner)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0 if all is removed, 1 if something could not be, 2 if the command is wrong."""
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
    if not options.outputs.is_dir():
        raise UserError(f"there is no folder {options.outputs}", "where runs leave things", "--outputs=<folder>")
    removable, staying = find(options.outputs, _seconds(options.older_than), kinds, options.unfinished)
    _show(removable, staying, options.outputs)
    if not removable or options.dry_run:
        return 0
    if not options.yes and not _is_confirmed():
        print("nothing is removed")
        return 0
    return _remove_all(removable, options.outputs)


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


def find(outputs: Path, older: float, kinds: Sequence[str], unfinished: bool) -> tuple[list[Removable], list[str]]:
    """Returns the files that may be removed, and a line for each run whose files stay although they are old enough.

    Args:
        older: seconds since the last use.
        unfinished: whether to include checkpoints of runs that could be resumed.
    """
    removable: list[Removable] = []
    staying: list[str] = []
    forked = _forked(outputs, unfinished)
    for folder in _runs(outputs):
        items = [item for item in _of_run(folder) if item.kind in kinds and item.age >= older]
        if items and (why := _reason_to_keep(folder)):
            staying.append(f"{shorter(folder)}: {why}")
        elif items:
            why = forked.get(folder.resolve(), "")
            if not unfinished and _status(folder) != "FINISHED":
                why = "its checkpoints could be resumed from (--unfinished removes them)"
            removable += [item for item in items if not why or item.kind != "checkpoints"]
            if why and any(item.kind == "checkpoints" for item in items):
                staying.append(f"{shorter(folder)}: {why}")
    for item in _of_cache(outputs / "cache"):
        if item.kind in kinds and item.age >= older:
            try:
                with item.locked_owner():
                    removable.append(item)
            except LockedError as error:
                staying.append(error.problem)
            except OSError as error:
                staying.append(f"{shorter(item.path)}: {error.strerror}")
    return removable, staying


def _forked(outputs: Path, unfinished: bool) -> dict[Path, str]:
    """Returns the runs whose checkpoints jobs of sweeps have yet to start from, and why they stay.

    Args:
        unfinished: whether a sweep counts only while a process works on it.
    """
    forked: dict[Path, str] = {}
    for folder in sweep_folders(outputs):
        runs = is_locked(folder)
        try:
            status, jobs = read_index(folder)
        except UserError:  # damaged, and not to be resumed either
            continue
        if not runs and (unfinished or status == "FINISHED"):
            continue
        more = "" if runs else " (--unfinished removes them)"
        for text in {text for job in jobs for text in _forks(job["overrides"])}:
            with suppress(UserError):
                run = Path(find_run(text, outputs).folder).resolve()
                forked[run] = f"{shorter(folder)}, which has not finished, forks it{more}"
    return forked


def _forks(overrides: Sequence[str]) -> Iterator[str]:
    for name, value in map(split_override, overrides):
        if name == "fork" and value not in ("", "null"):
            yield value.strip("'\"")


def _runs(outputs: Path) -> Iterator[Path]:
    """Yields the folders of runs below `outputs`, without following links."""
    for top in ("runs", "sweeps"):
        if (outputs / top).is_symlink():
            continue
        for folder in sorted((outputs / top).glob("*/*")):
            if folder.is_dir() and not folder.is_symlink() and not folder.parent.is_symlink():
                yield folder


def _of_run(folder: Path) -> Iterator[Removable]:
    checkpoints = folder / "checkpoints"
    places = [folder, *([checkpoints] if checkpoints.is_dir() and not checkpoints.is_symlink() else [])]
    for kind, patterns in _LEFTOVERS.items():
        paths = [path for place in places for pattern in patterns for path in place.glob(pattern)]
        yield from (_removable(kind, path, folder) for path in paths if not path.is_symlink())
    if len(places) == 2:
        paths = [*checkpoint_files(checkpoints), *checkpoints.glob(START)]
        yield from (_removable("checkpoints", path, folder) for path in paths if not path.is_symlink())


def _of_cache(cache: Path) -> Iterator[Removable]:
    for path in sorted(cache.iterdir()) if cache.is_dir() and not cache.is_symlink() else ():
        if path.is_symlink():
            continue
        if path.name.startswith(".partial-"):
            yield _removable("partial", path, path.with_name(path.name.removeprefix(".partial-")))
        elif path.is_dir() and not path.name.startswith("."):
            kind = "damaged" if path.name.startswith("damaged-") else "cache"
            yield _removable(kind, path, path)


def _removable(kind: str, path: Path, owner: Path) -> Removable:
    files = [path, *(path.rglob("*") if path.is_dir() else ())]
    used = path.with_name(f".{path.name}.use")
    modified = max(_modified(file) for file in [*files, *([used] if used.exists() else [])])
    return Removable(kind, path, owner, time.time() - modified, sum(map(_on_disk, files)))


def _modified(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:  # removed in the meantime
        return 0.0


def _on_disk(path: Path) -> int:
    """Returns the bytes that removing a file frees: none where it has another hard link."""
    try:
        facts = path.lstat()
    except OSError:
        return 0
    return facts.st_blocks * 512 if facts.st_nlink == 1 or path.is_dir() else 0


def _reason_to_keep(folder: Path) -> str:
    """Returns why a run's files must stay, or an empty string."""
    try:
        with _locked_run(folder):
            return "not all of it has been sent (python -m pipeline.sync)" if _unsent(folder) else ""
    except LockedError:
        return "a process works on it"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"it cannot be read ({error})"


def _unsent(folder: Path) -> bool:
    return Journal(folder).unsent > 0


def _status(folder: Path) -> str:
    try:
        return Summary.read(folder).status
    except (OSError, ValueError, KeyError, TypeError):  # may be resumed, like any run of unknown status
        return "UNKNOWN"


@contextmanager
def _locked_run(folder: Path) -> Iterator[None]:
    """Locks a run's folder; raises LockedError where a process works on it, or on its sweep."""
    with ExitStack() as stack:
        for place in (folder.parent, folder) if folder.parent.parent.name == "sweeps" else (folder,):
            if (place / NAME).exists() or (place / "sweep.json").exists() or (place / ".lock").exists():
                stack.enter_context(locked(place, patience=0))
        yield


@contextmanager
def _locked_entry(entry: Path) -> Iterator[None]:
    """Locks an entry of the cache; raises LockedError while a run uses or makes it: `stages.storage.cache`."""
    with ExitStack() as stack:
        for mark in ("use", "lock"):
            file = stack.enter_context(entry.with_name(f".{entry.name}.{mark}").open("a"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LockedError(f"{shorter(entry)}: a run uses it") from error
        yield


def _remove_all(removable: Sequence[Removable], outputs: Path) -> int:
    """Removes the listed files that are still unused; returns the exit code."""
    freed = 0
    failures = 0
    for item in removable:
        try:
            with item.locked_owner():
                if item.kind == "checkpoints" and (why := _forked(outputs, True).get(item.owner.resolve())):
                    print(f"stays: {shorter(item.path)} ({why})")
                    continue
                if not item.is_shared and _unsent(item.owner):
                    print(f"stays: {shorter(item.path)} (not all of the run has been sent)")
                    continue
                size = sum(map(_on_disk, [item.path, *(item.path.rglob("*") if item.path.is_dir() else ())]))
                _remove(item.path)
                freed += size
        except LockedError as error:
            print(f"stays: {shorter(item.path)} ({error.problem})")
        except FileNotFoundError:  # another process has removed it
            continue
        except OSError as error:
            failures += 1
            print(f"error: {shorter(item.path)} cannot be removed ({error.strerror})", file=sys.stderr)
    print(f"{_bytes(freed)} freed")
    return 1 if failures else 0


def _remove(path: Path) -> None:
    """Removes a file, a folder whole or not at all, or, if its place was taken by a link, the link alone."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    aside = path
    if not path.name.startswith(".partial-"):
        aside = path.with_name(f".partial-{path.name}")  # never half an entry under its own name
        shutil.rmtree(aside, ignore_errors=True)
        path.replace(aside)
    shutil.rmtree(aside)


def _show(removable: Sequence[Removable], staying: Sequence[str], outputs: Path) -> None:
    for item in removable:
        print(f"{item.kind:11}  {_bytes(item.size):>10}  {_age(item.age):>6}  {redact(shorter(item.path))}")
    for line in staying:
        print(f"stays: {redact(line)}")
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
