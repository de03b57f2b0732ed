"""Early checks of a table's target in its first rows, before the whole table is read.

A table with at most ROWS rows is checked completely. A larger table is refused here only if its first rows prove that
it cannot be used; other errors are reported when it is loaded. Doubtful values are accepted here.
"""

import csv
import gzip
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from stages.errors import UserError
from stages.settings.folders import same_name
from stages.settings.npz import values_in
from stages.settings.table import Header, TableSettings
from stages.settings.table_files import files_of, format_of

ROWS = 10_000
"""Maximum number of rows that are read."""

CHARACTERS = 2**23
"""Maximum number of characters that are read from a text file."""

LABELS = (0.0, 1.0)
"""Numbers that are valid labels."""

WORDS = ("true", "false", "yes", "no")
"""Texts that are valid labels, compared case-insensitively."""

NO_VALUES = ("", "na", "n/a", "#n/a", "nan", "null", "<na>", "none", "inf", "infinity", "+inf", "-inf")
"""Texts without a digit that a column of numbers may contain, compared case-insensitively."""


@dataclass(frozen=True)
class FirstRows:
    """The targets in the first rows of a table."""

    values: Mapping[str, Sequence[str]]
    """The values of each target, as stripped texts."""
    are_all: bool
    """Whether the table has no other rows."""

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))


def check_target(settings: TableSettings) -> None:
    """Refuse a target that cannot be learned, or that does not fit the task.

    Raises:
        UserError: For a split without rows, a target with a single value or with values that do not fit the task, or a
            class that is too rare for the splits.
    """
    by_split = settings.files if isinstance(settings.files, Mapping) else {"": settings.files}
    parts = {split: first_rows(files_of(files), settings) for split, files in by_split.items()}
    for split, part in parts.items():
        if part.are_all and not len(part):
            raise UserError(f"data.files has no {split} rows".replace("  ", " "), "rows below the header")
    are_all = all(part.are_all for part in parts.values())
    values = {name: [value for part in parts.values() for value in part.values[name]] for name in settings.targets}
    rows = FirstRows(values, are_all)
    _check_values(settings, rows)
    is_cut = len(parts) == 1 and "" in parts and not {*settings.roles} & {"split_column", "group", "time"}
    if are_all and is_cut and settings.on_error == "fail":
        _check_counts(settings, rows)


def has_words(settings: TableSettings) -> bool:
    """Return whether the only target has words in the first rows, also True and False, and no value with a digit."""
    if len(settings.targets) != 1:
        return False
    part = next(iter(settings.files.values())) if isinstance(settings.files, Mapping) else settings.files
    rows = first_rows(files_of(part), settings)
    present = [value for value in _present(rows) if value.casefold() not in NO_VALUES]
    return bool(present) and not any(re.search(r"\d", value) for value in present)


def _check_values(settings: TableSettings, rows: FirstRows) -> None:
    """Refuse values that do not fit the task, and a target with fewer than two values."""
    task, several = settings.predicts, len(settings.targets) > 1
    if task == "classification" and several:
        fix = "task=multi_label" if all(map(_is_label, _present(rows))) else ""
        problem = f"task=classification needs one target, but data.target has {len(settings.targets)}"
        raise UserError(problem, "one target, or task=multi_label for columns of 0 and 1", fix)
    for name, values in rows.values.items():
        present = [value for value in values if value]
        if rows.are_all and not present:
            raise UserError(f"data.target={name} has no values", "a column with values")
        if rows.are_all and len({*present}) == 1 and (not several or task == "regression"):
            raise UserError(
                f"data.target={name} is {present[0]} in all rows", "a column with at least two different values"
            )
        if task == "multi_label" and (wrong := next((value for value in present if not _is_label(value)), None)):
            expected = "one or more targets of 0 and 1, or a different task"
            problem = f"task=multi_label needs labels of 0 and 1, but {name} has {wrong!r}"
            raise UserError(problem, expected, "" if several else "task=auto")
        if settings.declared.get(name) == "number":
            allowed = {*NO_VALUES, *(text.casefold() for text in settings.missing or ())}
            texts = [value for value in present if not re.search(r"\d", value) and value.casefold() not in allowed]
            is_wrong = texts if settings.on_error == "fail" else rows.are_all and len(texts) == len(present)
            if is_wrong and task == "regression" and not several:
                problem = f"task=regression needs numbers, but {name} has {texts[0]!r}"
                raise UserError(problem, "a target of numbers, or task=classification", "task=classification")


def _check_counts(settings: TableSettings, rows: FirstRows) -> None:
    """Refuse a table with too few rows, in total or of a class, for the splits, which are stratified by class."""
    splits = 1 + len(settings.held_out)
    if len(rows) < splits:
        problem = f"data.files has only {len(rows)} {'row' if len(rows) == 1 else 'rows'}"
        raise UserError(problem, f"at least {splits} rows, one for each split")
    if len(settings.targets) > 1:
        return
    present = [value for value in _present(rows) if value]
    are_classes = all(re.fullmatch(r"[^\W\d]\w*", value) for value in present)
    if settings.declared.get(settings.targets[0]) != "category" and not (are_classes and settings.predicts == "auto"):
        return
    counts = Counter(map(same_name, present))
    rarest, count = counts.most_common()[-1]
    if count == 1:
        shown = next(value for value in present if same_name(value) == rarest)
        rare = [*counts.values()].count(1)
        only = f"have only 1 example, such as {shown}" if rare > 1 else f"has only 1 example: {shown}"
        raise UserError(
            f"{rare:,} of {len(counts):,} classes of {settings.targets[0]} {only}",
            f"at least {splits} examples per class, one for each split",
        )


def _present(rows: FirstRows) -> Iterator[str]:
    return (value for values in rows.values.values() for value in values if value)


def _is_label(text: str) -> bool:
    if text.casefold() in (*WORDS, *NO_VALUES):
        return True
    with suppress(ValueError):
        return float(text.replace(",", ".")) in LABELS
    return False


def first_rows(files: Sequence[Path], settings: TableSettings) -> FirstRows:
    """Return the targets in the first ROWS rows of the files."""
    state = tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in files)
    return _first_rows(state, tuple(settings.targets), settings.delimiter, settings.encoding)


@lru_cache(maxsize=64)  # jobs of a sweep share their table
def _first_rows(
    state: tuple[tuple[Path, int, int], ...], targets: tuple[str, ...], delimiter: str | None, encoding: str
) -> FirstRows:
    values: dict[str, list[str]] = {name: [] for name in targets}
    count = 0
    try:
        for path, *_ in state:
            for row in read_first(path, targets, delimiter, encoding, ROWS + 1):
                count += 1
                if count > ROWS:
                    return FirstRows(values, are_all=False)
                for name, value in zip(targets, row, strict=True):
                    values[name].append(str("" if value is None else value).strip())
    except (OSError, EOFError, ValueError, TypeError, csv.Error):  # loading reports the error
        return FirstRows(values, are_all=False)
    return FirstRows(values, are_all=True)


def read_first(
    path: Path, columns: Sequence[str], delimiter: str | None, encoding: str, count: int
) -> Iterator[Sequence[Any]]:
    """Yield some columns of the first rows of a file, at least `count` rows.

    Raises:
        ValueError: If a row has a different number of values than the header, or the file is too long.
    """
    if format_of(path) == "npz":
        yield from zip(*(values_in(path, name, count) for name in columns), strict=True)
        return
    if format_of(path) != "csv":
        import pyarrow.dataset

        data = pyarrow.dataset.dataset(path, format="parquet" if format_of(path) == "parquet" else "ipc")
        rows = data.head(count, columns=list(columns))
        yield from zip(*(rows.column(name).to_pylist() for name in columns), strict=True)
        return
    header = Header.of([path], delimiter, encoding)
    places = [header.columns.index(name) for name in columns]
    opened: Any = gzip.open if path.suffix == ".gz" else Path.open
    with opened(path, "rt", encoding=encoding, newline="") as file:
        for row in csv.reader(_bounded(islice(file, header.lines, None)), delimiter=header.delimiter or ","):
            if row and len(row) != len(header.columns):
                raise ValueError("a ragged row")
            if row:
                yield [row[place] for place in places]


def _bounded(lines: Iterator[str]) -> Iterator[str]:
    size = 0
    for line in lines:
        size += len(line)
        if size > CHARACTERS:
            raise ValueError("a long file")
        yield line
