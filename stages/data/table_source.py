"""The kinds of the columns of a table, and the columns by these, in memory or mapped from the cache."""

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stages.data.columns import Column, Streamed
from stages.data.free_memory import memory_for_data
from stages.data.tables import NUMBER, NUMBERS, Rows, Typed, Values, argument_names, cast, place_of, read, read_files
from stages.errors import UserError
from stages.features.kinds import Feature
from stages.reporter import Reporter
from stages.settings.table import UNNAMED, Header, TableSettings, TrainedTableSettings, declaring, files_of, format_of
from stages.storage.cache import Contents, cached

FEW = 10
"""Different whole numbers that make a category, at most: a class of cabin, a grade."""

MOST_VALUES = 100_000
"""Different values of a category, at most."""

NEARLY_ALL = 0.95
"""Share of different values from which a column is an identifier, and of numbers from which it is one of numbers."""

WORDS = 4
"""Words of a value, on average, from which a column of different texts is one of sentences."""

MARKED = r"^\s*[+-]?[$€£¥]?\s?(\d{1,3}([.,]\d{3})+|\d+)([.,]\d+)?\s?[%$€£¥]?\s*$"
"""Numbers as people write them: 1.234,5 or $1,200.00 or 12 %."""

DATE = r"^(\d{4}-\d\d-\d\d|\d{1,2}[./-]\d{1,2}[./-]\d{4})([T ]\d{1,2}:\d\d.*)?$"
_IDENTIFIER = re.compile(r"(^|[^A-Za-z])(id|uuid|key|index|rownames)$|[a-z]I[dD]$", re.IGNORECASE)

DTYPES = {"number": "float64", "category": "string", "whole": "int64", "text": "string"}
"""Of features, by how they are read."""

VERSION = 5
"""Of what a table becomes in the cache."""


@dataclass(frozen=True)
class Profile:
    """Facts of a column.

    present: values that are not missing. numbers: those that are numbers; wrong: the first that is none, and its row.
    others: different texts that are no numbers, nor would be without marks of thousands, currencies and the like.
    different: values; 0 of numbers that are not whole.
    """

    name: str
    missing: int = 0
    present: int = 0
    numbers: int = 0
    others: int = 0
    spaces: int = 0
    dates: int = 0
    wrong: tuple[str, int] | None = None
    is_whole: bool = True
    has_leading_zeros: bool = False
    different: int = 0
    low: int | None = None
    high: int | None = None

    @classmethod
    def of(cls, name: str, column: Values) -> "Profile":
        """Counts the values of a column."""
        facts: dict[str, Any] = {"missing": column.null_count, "present": len(column) - column.null_count}
        if not facts["present"]:
            return cls(name, **facts)
        present = column.drop_null()
        is_text = pa.types.is_string(present.type)
        wholes = (cast(present, kind) for kind in (pa.int64(), pa.uint64()) if is_text)
        whole = present if pa.types.is_integer(present.type) else next((one for one in wholes if one is not None), None)
        facts |= {"is_whole": whole is not None, "numbers": len(present)}
        if whole is not None:
            ends = pc.min_max(whole).as_py()
            facts |= {"low": ends["min"], "high": ends["max"], "different": pc.count_distinct(column).as_py()}
        elif is_text and cast(present, pa.float64()) is None:
            texts, times = present.value_counts().flatten()  # each text is looked at once
            is_number = pc.match_substring_regex(texts, NUMBER)
            facts |= {"numbers": pc.sum(pc.if_else(is_number, times, 0)).as_py(), "different": len(texts)}
            facts["spaces"] = pc.sum(pc.multiply(pc.count_substring(texts, " "), times)).as_py()
            facts["dates"] = pc.sum(pc.if_else(pc.match_substring_regex(texts, DATE), times, 0)).as_py()
            is_plain = pc.or_(is_number, pc.match_substring_regex(texts, MARKED))
            facts["others"] = pc.sum(pc.invert(is_plain)).as_py()
            if (place := pc.index(is_plain if facts["others"] else is_number, False).as_py()) >= 0:
                facts["wrong"] = texts[place].as_py(), pc.index(column, texts[place]).as_py()
        if is_text:
            facts["has_leading_zeros"] = pc.any(pc.match_substring_regex(present, r"^0\d")).as_py()
        return cls(name, **facts)

    @property
    def is_number(self) -> bool:
        """Whether all values are numbers, or so many that the others must be mistakes."""
        return self.present > 0 and self.numbers >= NEARLY_ALL * self.present and not self.has_leading_zeros

    @property
    def is_mixed(self) -> bool:
        """Whether many different numbers have marks, or few other texts, such as `?`, among them."""
        is_plain = self.is_number or self.has_leading_zeros
        return not is_plain and self.others <= FEW < self.different - self.others

    @property
    def is_date(self) -> bool:
        return 0 < self.present == self.dates

    @property
    def is_prose(self) -> bool:
        """Whether it holds different sentences."""
        is_worded = self.spaces >= (WORDS - 1) * self.present
        return is_worded and not self.is_number and not self.is_date and self.different > FEW

    def kind(self) -> tuple[str, str]:
        """Returns `number`, `category` or `leave_out`, and why it is left out."""
        different, name = self.different, self.name
        are_all_different = different > max(NEARLY_ALL * min(self.present, MOST_VALUES), FEW)
        if not self.present or name.startswith(UNNAMED):
            return "leave_out", "no values" if not self.present else "no name"
        if different == 1 and not self.missing and (self.is_whole or not self.is_number):
            return "leave_out", "one value alone"
        if self.is_number and not (self.is_whole and different <= FEW):
            is_counted = self.high is not None and self.low is not None and self.high - self.low == self.present - 1
            is_identifier = self.is_whole and are_all_different and (_IDENTIFIER.search(name) or is_counted)
            return ("leave_out", f"an identifier, {different:,} different values") if is_identifier else ("number", "")
        if self.is_date:
            return "leave_out", "dates"
        if not self.is_number and (are_all_different or different > MOST_VALUES):
            return "leave_out", f"{'a text' if self.is_prose else 'an identifier'}, {different:,} different values"
        return "category", ""


def scan(rows: Rows, left_out: Collection[str] = ()) -> dict[str, Profile]:
    """Returns what is known of each column: nothing of those that are `left_out`, whatever they hold.

    Raises:
        UserError: where there is no row.
    """
    if not len(rows):
        raise UserError(f"{rows.name} has a header and no rows", "rows below it")

    names = rows.table.column_names

    def profile(name: str) -> Profile:
        return Profile(name) if name in left_out else Profile.of(name, rows.column(name))

    with ThreadPoolExecutor() as pool:
        return dict(zip(names, pool.map(profile, names), strict=True))


@dataclass(frozen=True)
class ColumnFacts:
    """A column of the files.

    feature: its name as an argument of the model. kind: how it is read, of DTYPES; or `image` (paths of files),
    `leave_out`, `target`, or the setting that names it. note: why it is left out. different: values, 0 where they
    are not counted.
    """

    name: str
    feature: str
    kind: str
    note: str
    different: int
    missing: int


@dataclass(frozen=True)
class TableSource:
    """A table as typed columns, in memory or mapped from the cache.

    texts: of categories, by the numbers that stand for them. skipped: where rows are that are left out, and why.
    numbers: of the rows in the files, from 0. parts: files, and how many rows each has.
    """

    name: str
    columns: Sequence[ColumnFacts]
    texts: Mapping[str, Sequence[str]]
    skipped: Sequence[Sequence[str]]
    arrays: Mapping[str, np.ndarray]
    numbers: np.ndarray
    parts: Sequence[tuple[str, int]]
    is_mapped: bool

    @property
    def used(self) -> list[ColumnFacts]:
        """The columns that are features."""
        return [column for column in self.columns if column.kind in DTYPES]

    def take(self, rows: np.ndarray, skipped: Sequence[tuple[str, str]]) -> "TableSource":
        """Returns some rows, int64 [n], in memory.

        Args:
            skipped: where the other rows are, and why they are left out.
        """
        arrays = {name: array[rows] for name, array in self.arrays.items()}
        return replace(
            self, arrays=arrays, numbers=self.numbers[rows], is_mapped=False, skipped=[*self.skipped, *skipped]
        )

    def of(self, name: str) -> np.ndarray:
        """Returns all values of a column; of a category texts, object."""
        values = self.arrays[name]
        return np.array(self.texts[name], object)[values] if name in self.texts else values

    def where(self, row: int, column: str) -> str:
        """Names a value by its file or split, and its row in it."""
        return place_of(self.parts, int(self.numbers[row]), column)

    def column(self, name: str) -> Column:
        """Returns a column, in memory or read at each use."""
        if not self.is_mapped:
            return self.of(name)
        values = Streamed.of(self.arrays[name])
        texts = np.array(self.texts[name], object) if name in self.texts else None
        return values if texts is None else replace(values, read=lambda rows: texts[values[rows]], dtype=texts.dtype)


def feature_of_column(column: ColumnFacts) -> Feature:
    """Returns the feature that a column is; its facts have the column's name where that is another one."""
    facts = {"column": column.name} if column.name != column.feature else {}
    kind = "category" if column.kind == "whole" else column.kind
    return Feature(kind, DTYPES[column.kind], facts=facts)


def read_table(settings: TableSettings, cache: Path | None, reporter: Reporter) -> TableSource:
    """Returns the table: in memory where it fits or there is no cache, else mapped from the cache."""
    header = Header.of(files_of(settings.files), settings.delimiter, settings.encoding)
    if cache is None or settings.cache == "off" or _bytes_of(header) <= memory_for_data(settings.memory_gib):
        return read_rows(read_files(header, settings), settings)
    status = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in header.files]
    of_splits = ("split_seed", "memory_gib", "val_fraction", "test_fraction", "task")
    facts = sorted((key, str(value)) for key, value in vars(settings).items() if key not in of_splits)
    facts.append(("task", settings.predicts))
    place = cache / f"table-{hashlib.sha256(repr((VERSION, status, facts)).encode()).hexdigest()[:32]}"

    def make(folder: Path) -> Contents:
        with TemporaryDirectory(dir=folder) as scratch:
            return _contents(read_files(header, settings, Path(scratch)), settings, folder)

    entry, is_new = cached(place, make, reporter)
    reporter.log(f"{'converted' if is_new else 'found'} {header.name} in {place}: training reads it from the disk")
    return _source(header.name, entry, is_mapped=True)


def read_rows(rows: Rows, settings: TableSettings) -> TableSource:
    """Returns the table in memory."""
    return _source(rows.name, _contents(rows, settings, None), is_mapped=False)


def _source(name: str, contents: Contents, is_mapped: bool) -> TableSource:
    arrays = {column: contents.arrays[f"column_{place}"] for place, column in enumerate(contents.facts["read"])}
    numbers = arrays.pop(NUMBERS)
    columns = [ColumnFacts(**column) for column in contents.facts["columns"]]
    texts, skipped, parts = (contents.facts[key] for key in ("texts", "skipped", "parts"))
    return TableSource(name, columns, texts, skipped, arrays, numbers, parts, is_mapped)


def _bytes_of(header: Header) -> float:
    """Returns about how many bytes the columns take in memory; compressed files grow about eightfold."""
    packed = [path for path in header.files if path.suffix == ".gz" or format_of(path) == "parquet"]
    return sum(path.stat().st_size * (8 if path in packed else 1.5) for path in header.files)


def _contents(rows: Rows, settings: TableSettings, folder: Path | None) -> Contents:
    """Finds the kinds of the columns, then takes their values.

    Args:
        folder: takes the columns as files; None: they are held in memory.
    """
    names = argument_names(rows.table.column_names)
    profiles = scan(rows, [name for name in names if _left_out(name, settings)])
    facts = [_facts(rows, profiles[name], settings, feature) for name, feature in names.items()]
    reads = [_typed(column, profiles[column.name]) for column in facts if column.kind != "leave_out"]
    arrays, texts, skipped = read(rows, reads, settings.on_error, folder)
    if not len(arrays[NUMBERS]):
        raise UserError(f"{rows.name}: no row can be used ({skipped[0][0]}: {skipped[0][1]})", "rows that can be")
    named = {f"column_{place}": array for place, array in enumerate(arrays.values())}
    content = {
        "columns": [asdict(column) for column in facts],
        "read": list(arrays),
        "texts": texts,
        "skipped": skipped,
        "parts": rows.parts,
    }
    return Contents(content, named)


def _facts(rows: Rows, profile: Profile, settings: TableSettings, feature: str) -> ColumnFacts:
    role = _role(profile.name, settings)
    found, note = ("text", "") if rows.takes_texts and profile.is_prose else profile.kind()
    if role == "target" and profile.different == 1 and len(settings.targets) > 1:
        found, note = "category", ""  # a label that all examples have, or none
    kind = settings.declared.get(profile.name, found)
    if why := _left_out(profile.name, settings):
        kind, note = "leave_out", why
    elif kind != found:
        note = "by data.features" if kind == "leave_out" else ""
    elif role in (None, "target") and profile.name not in settings.declared:
        _refuse_texts(rows, profile)
    fits = profile.high is not None and profile.high <= np.iinfo(np.int64).max
    is_found = role is not None or not isinstance(settings, TrainedTableSettings)
    kind = "whole" if kind == "category" and is_found and fits and profile.is_number and not profile.missing else kind
    kind = "category" if kind == "text" and role is not None else kind
    if role == "target" and kind == "leave_out":
        has = f"is left out {note}" if note == "by data.features" else f"has {note}"
        raise UserError(f"data.target={profile.name} {has}", "a column of numbers, or of several values that repeat")
    different = 0 if kind == "number" else profile.different
    if kind == "category" and not different and profile.present:  # of numbers that are not whole, declared as one
        different = pc.count_distinct(rows.column(profile.name)).as_py()
    return ColumnFacts(profile.name, feature, role or kind, note if role is None else kind, different, profile.missing)


def _role(column: str, settings: TableSettings) -> str | None:
    """Returns what a column is for: `target`, or the setting that names it; None: a feature, if anything."""
    role = "target" if column in settings.targets else None
    return next((role for role, named in settings.roles.items() if named == column), role)


def _left_out(column: str, settings: TableSettings) -> str:
    """Returns why the settings leave a column out; empty where they do not."""
    role = _role(column, settings)
    if settings.declared.get(column) == "leave_out" and role in (None, "target"):
        return "by data.features"
    if role is not None:
        return ""
    if isinstance(settings.features, list) and column not in settings.features:
        return "not in data.features"
    if isinstance(settings, TrainedTableSettings) and column not in settings.declared:
        return "not in the training"
    return "beside images" if settings.image not in (None, column) else ""


def _refuse_texts(rows: Rows, profile: Profile) -> None:
    """Refuses numbers that other texts, or marks, would make a category or an identifier."""
    if profile.wrong is not None and profile.is_mixed:
        text, row = profile.wrong
        where, count = place_of(rows.parts, row, profile.name), f"{profile.numbers:,} of {profile.present:,}"
        raise UserError(
            f"{where} has {text!r}, and {count} are numbers",
            "numbers alone, such as -1234.5 without other marks, or the column's kind in data.features",
            f"'data.missing=[\"{text}\"]'" if profile.others else declaring({profile.name: "leave_out"}),
        )


def _typed(column: ColumnFacts, profile: Profile) -> Typed:
    """Returns how a column is read, by what it is for; only features may have missing values."""
    kinds = {"target": column.note, "weight": "number", "time": "number" if profile.is_number else "date"}
    is_plain = column.kind in ("number", "whole")
    kind = kinds.get(column.kind, column.kind if is_plain else "category")
    return Typed(column.name, kind, column.kind not in DTYPES)
