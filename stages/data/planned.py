"""Small tables, which are read before anything runs: files whose state is part of a key, and dates that are refused."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from stages.data.table_source import named_splits, read_rows
from stages.data.tables import read_files
from stages.settings.date_columns import columns_of_dates
from stages.settings.table import TableSettings

PLANNED_BYTES = 2**26
"""Maximum size of the files that are read before anything runs, which takes about a second, or five seconds of CPU time
if all of a million dates with times differ."""

State: TypeAlias = tuple[tuple[str, int, int], ...]
"""The path, size and time of each file."""

T = TypeVar("T")


@dataclass(frozen=True)
class Key(Generic[T]):
    """Settings as a key: equal if their values are."""

    of: T

    def __hash__(self) -> int:
        return hash(repr(self.of))


def state_of_small(files: Sequence[Path]) -> State | None:
    """Return the state of files; None if they are large."""
    state = tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files)
    return None if sum(size for _, size, _ in state) > PLANNED_BYTES else state


def refuse_dates(settings: TableSettings) -> None:
    """Refuse dates that cannot be read, of the columns that have dates in their first rows; large files pass.

    Only the rows that are not named as of another split are looked at, in which the notation of dates is found.

    Raises:
        UserError: If the notation is unclear, a date or a target cannot be used, or the rows cannot be read.
    """
    state = state_of_small(settings.header.files)
    if state is not None:
        _refuse_dates(state, Key(settings))


@lru_cache(maxsize=64)  # jobs of a sweep share their table
def _refuse_dates(state: State, key: Key[TableSettings]) -> None:
    settings = key.of
    header = settings.header
    needed = {*columns_of_dates(settings), *settings.targets, *settings.roles.values()}
    rows = read_files(replace(header, columns=tuple(name for name in header.columns if name in needed)), settings)
    read_rows(rows, settings, partial(named_splits, settings=settings))
