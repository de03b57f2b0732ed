"""Settings of tables: their files and the roles of their columns."""

import json
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import II

from stages.errors import UserError
from stages.settings.data import ImagesSettings, refuse_missing
from stages.settings.date_formats import check_dates
from stages.settings.encodings import not_in_encoding
from stages.settings.folders import name_of_file
from stages.settings.headers import UNNAMED, names_in, refuse_names
from stages.settings.places import is_folder
from stages.settings.ranges import assignment, choice, nearest, number, option, text
from stages.settings.table_files import files_of, format_of

MISSING = ("NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "<NA>")
"""Texts that mean a missing value in text files."""

KINDS = ("number", "category", "date", "text", "image", "leave_out")
"""Kinds that a column can be declared to have."""


@option("data", "table")
@dataclass(kw_only=True)
class TableSettings(ImagesSettings):
    """A table with a target column: CSV, TSV, Parquet or Feather files with the same columns."""

    _target_: str = "stages.load.table.table"
    files: Any = None
    """A file, or a list of files and patterns such as `reviews/*.parquet`; or one of these per split, such as
    `{train: a.csv, test: b.csv}`. Splits that are not given are cut from the training rows."""
    target: Any = None
    """Name of the column to predict, or a list of names."""
    features: Any = None
    """A mapping from columns to kinds (`number`, `category`, `date`, `text`, `image`, `leave_out`), or a list of the
    only columns to use. The mapping corrects kinds that were detected wrongly. Texts and paths of images are used only
    if they are declared there."""
    only_images: bool = True
    """Whether a table with columns of images is a data set of images, without its other columns. The option
    `data=table` chooses false; in runs of earlier versions it was true."""
    root: str | None = None
    """Folder to which the paths of images are relative. null: the folder of the table."""
    weight: str | None = None
    """Column with the weight of each example in the loss and the metrics."""
    split_column: str | None = None
    """Column with the split of each row: `train`, `val` (or `validation`) or `test`. Splits that do not occur in it are
    cut from the training rows."""
    group: str | None = None
    """Column whose equal values stay in the same split, such as the patient."""
    time: str | None = None
    """Column by which rows are ordered. The last rows become the test split, the rows before them the validation
    split."""
    delimiter: str | None = None
    """Character between the values of a text file. null: detected among comma, tab, semicolon and vertical bar."""
    encoding: str = "utf8"
    """Encoding of text files, such as `cp1252`."""
    decimal: str = choice(".", ".", ",")
    """Decimal mark of numbers that are stored as text."""
    thousands: str | None = text(None, "[.,]", "a comma or a point", r"\,")
    """Thousands separator: a comma or a point (`1,200`). Spaces, apostrophes and underscores are always accepted as
    such."""
    units: Any = None
    """A mapping from columns to the unit before or after their numbers, such as `{weight: kg, price: $}`."""
    date_format: Any = None
    """Pattern of dates, with the directives of `strptime`, such as `%d/%m/%Y`; or `unix` or `unix_ms` for seconds
    or milliseconds since 1970. A mapping from columns to patterns also declares these columns as dates. null:
    detected."""
    time_zone: Any = None
    """The time zone to which times with a zone are converted, such as `Europe/Berlin`, or a mapping from columns to
    zones. null: the zone that all times of a column have, or UTC."""
    missing: list[str] | None = None
    """Texts that mean a missing value, in addition to the empty text. null: NA, N/A, NaN and null in text files; none
    in Parquet and Feather files, which have their own missing values."""
    on_error: str = choice("fail", "fail", "skip")
    """Handling of rows that cannot be used. `fail`: end the run with an error that names the first one. `skip`:
    leave them out, and list them in `data/skipped.csv`."""
    memory_gib: float | None = number(None, at_least=0, unit="GiB of memory for a table, or for its images")
    """Memory that a table, or its images, may use, in GiB. Larger ones are converted once, and read from the disk
    during training. null: a third of the free memory."""
    test_fraction: float = number(0.2, above=0, below=1)
    """Fraction of all examples to hold out for the test split. Classes keep their proportions."""
    size: Any = 160
    """Size of the images in pixels: one number for squares, or [height, width]; or a mapping from each column of images
    to its size, such as `{front: 96, back: [64, 48]}`."""
    task: Any = II("task")

    def __post_init__(self) -> None:
        """Convert numbers to names of columns, as in `data.target=2024`."""
        for name in ("target", "features", "date_format", "time_zone"):
            value: Any = getattr(self, name)
            if isinstance(value, Mapping):
                value = {_as_name(column): kind for column, kind in value.items()}
            elif isinstance(value, Sequence) and not isinstance(value, str):
                value = [_as_name(column) for column in value]
            setattr(self, name, _as_name(value))
        if isinstance(self.size, Mapping):
            self.size = {_as_name(column): size for column, size in self.size.items()}

    @property
    def targets(self) -> list[str]:
        """The columns to predict."""
        return [self.target] if isinstance(self.target, str) else list(self.target)

    @property
    def is_without_images(self) -> bool:
        return not self.images

    @property
    def source(self) -> str:
        return name_of_file(files_of(self.files)[0]) if self.files else ""

    @property
    def split_of_each(self) -> list[str]:
        """The split of each file; empty if the files are not given by split."""
        by_split = self.files.items() if isinstance(self.files, Mapping) else ()
        return [split for split, files in by_split for _ in files_of(files)]

    @property
    def roles(self) -> dict[str, str]:
        """The columns of the settings that name a single column, if set."""
        named = {name: getattr(self, name) for name in ("weight", "split_column", "group", "time")}
        return {name: column for name, column in named.items() if column is not None}

    @property
    def predicts(self) -> str:
        """Kind of the task, as in `TaskSettings`."""
        return str(getattr(self.task, "kind", "auto"))

    @property
    def declared(self) -> dict[str, str]:
        """The kinds of columns that the user has declared, and the kinds of targets that the task determines."""
        target_kind = {"classification": "category", "regression": "number"}.get(self.predicts)
        targets = dict.fromkeys(self.targets, target_kind) if target_kind is not None else {}
        dates = dict.fromkeys(self.date_format, "date") if isinstance(self.date_format, Mapping) else {}
        return {**targets, **dates, **(dict(self.features) if isinstance(self.features, Mapping) else {})}

    @property
    def reading(self) -> dict[str, Any]:
        """Settings for reading other tables in the same way, for JSON."""
        numbers = {"decimal": self.decimal, "thousands": self.thousands, "units": dict(self.units or {})}
        return {"delimiter": self.delimiter, "encoding": self.encoding, "missing": self.missing_texts, **numbers}

    @property
    def missing_texts(self) -> list[str]:
        """Texts that mean a missing value, in addition to the empty one."""
        if self.missing is not None:
            return list(self.missing)
        return [*MISSING] if self.files and format_of(files_of(self.files)[0]) == "csv" else []

    @property
    def images(self) -> list[str]:
        """The columns with the paths of images."""
        return [column for column, kind in self.declared.items() if kind == "image"]

    @property
    def image_root(self) -> Path:
        """The folder to which the paths of images are relative."""
        return Path(self.root).expanduser() if self.root else files_of(self.files)[0].parent

    def check(self, path: str) -> None:
        super().check(path)
        self.check_files_and_target(path)
        if isinstance(self.features, Sequence) and not self.features:
            raise UserError(f"{path}.features=[] selects no columns", "at least one column", f"{path}.features=null")
        if isinstance(self.features, str) or not isinstance(self.features or [], (Mapping, Sequence)):
            problem = f"{path}.features={self.features} is not valid"
            expected = "a mapping from columns to kinds, or a list of columns"
            raise UserError(problem, expected, f"'{path}.features=[<column>]'")
        if len({*self.targets}) < len(self.targets):
            raise UserError(f"{path}.target={self.target} has a column twice", "each column only once")
        if self.delimiter is not None and len(self.delimiter) != 1:
            problem = f"{path}.delimiter={self.delimiter} is not a single character"
            raise UserError(problem, "one character", f"{path}.delimiter=null")
        if self.units is not None and not (isinstance(self.units, Mapping) and all(map(str, self.units.values()))):
            problem, expected = f"{path}.units={self.units} is not valid", "a mapping from columns to units"
            raise UserError(problem, expected, f"'{path}.units={{<column>: <unit>}}'")
        check_kinds(path, self.declared)
        check_dates(path, self.date_format, self.time_zone)
        self._check_splits(path)
        self._check_images(path)
        if self.group and self.time:
            raise UserError(f"{path}.group and {path}.time are both set", "only one of them", f"{path}.group=null")
        if self.thousands == self.decimal:
            fix = f"{path}.thousands=." if self.decimal == "," else rf"'{path}.thousands=\,'"
            raise UserError(f"{path}.thousands={self.thousands} is also {path}.decimal", "two different marks", fix)
        header = self.header
        named = {"target": self.targets, "features": list(self.features or ()), "units": list(self.units or ())}
        of_dates = {"date_format": self.date_format, "time_zone": self.time_zone}
        named |= {key: [*value] for key, value in of_dates.items() if isinstance(value, Mapping)}
        fix = "" if {*self.targets} <= {*header.columns} else self._other_delimiter(path, header)
        for setting, columns in {**named, **{key: [value] for key, value in self.roles.items()}}.items():
            known = [*header.columns, *(header.others if setting == "features" else ())]
            is_of_kinds = setting in ("features", "units", *of_dates)
            typed = self._corrected(path, setting, known) if is_of_kinds else fix
            refuse_missing(f"{path}.{setting}", columns, known, header.files[0], typed)

    def _corrected(self, path: str, setting: str, known: Sequence[str]) -> str:
        """Return what to type instead of `features` or `units` with a name that is not among `known`."""
        given = getattr(self, setting) or ()
        names = {name: name if name in known else nearest(name, known) for name in map(str, given)}
        if not isinstance(given, Mapping):
            return f"'{path}.{setting}=[<column>]'"
        fix = declaring({names[str(name)]: kind for name, kind in given.items()}, path, setting)
        return fix.replace("++", "") if all(names.values()) and fix else f"'{path}.{setting}={{<column>: <value>}}'"

    def _other_delimiter(self, path: str, header: "Header") -> str:
        """Return the setting for the delimiter with which the header contains the targets; empty if there is none."""
        marks = [] if header.delimiter is None else re.findall(r"[!-/:-@[-`{-~]", "".join(header.columns))
        for mark in ([None] if self.delimiter else []) + [mark for mark in dict.fromkeys(marks) if mark not in "\"'_"]:
            with suppress(UserError):
                columns = Header.of(header.files[:1], mark, self.encoding).columns
                if {*self.targets} <= {*columns} and len(columns) >= len(header.columns):
                    return f"{path}.delimiter=null" if mark is None else assignment(f"{path}.delimiter", mark)
        return f"{path}.delimiter=<character>" if len(header.columns) == 1 else ""

    @property
    def header(self) -> "Header":
        """The columns of the files."""
        return Header.of(files_of(self.files), self.delimiter, self.encoding, self.leaves_out, self.needed)

    @property
    def needed(self) -> list[str]:
        """The columns that cannot be left out: the targets, and those with another role."""
        return [*self.targets, *self.roles.values()]

    def leaves_out(self, column: str) -> bool:
        """Return whether the settings leave a column out, so files may lack it."""
        if column in self.needed:
            return False
        is_other = isinstance(self.features, Sequence) and column not in self.features
        return is_other or self.declared.get(column) == "leave_out" or self.is_beside_images(column)

    def is_beside_images(self, column: str) -> bool:
        """Return whether a column is not used because only images are."""
        return bool(self.only_images and self.images) and column not in self.images

    def check_files_and_target(self, path: str) -> None:
        """Raise UserError if the files or the target are missing, or of a wrong type."""
        files = self.files.values() if isinstance(self.files, Mapping) and self.files else [self.files]
        for name, value in (*(("files", part) for part in files), ("target", self.target)):
            items = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
            if not value or not all(isinstance(item, str) for item in items):
                expected, fix = "a file, or a list of files", f"{path}.files=<file>"
                if name == "target":
                    columns = Header.of(files_of(self.files), self.delimiter, self.encoding).columns
                    expected, fix = f"one of: {', '.join(columns[:12])}; or a list of them", f"{path}.target=<column>"
                raise UserError(
                    f"{path}.{name}={value} is not valid" if value else f"{path}.{name} is not set", expected, fix
                )

    def _check_splits(self, path: str) -> None:
        if not isinstance(self.files, Mapping):
            return
        fix = f"'{path}.files={{train: <file>, test: <file>}}'"
        if not {"train"} <= {*self.files} <= {"train", "val", "test"}:
            raise UserError(
                f"{path}.files has the splits {', '.join(map(str, self.files))}",
                "train, and optionally val and test",
                fix,
            )
        if self.split_column:
            problem = f"{path}.split_column is set, but {path}.files already has one entry per split"
            raise UserError(problem, "only one of them", f"{path}.split_column=null")
        files = files_of(self.files)
        repeated = next((file for file in files if files.count(file) > 1), None)
        if repeated is not None:
            raise UserError(f"{path}.files has {repeated} in two splits", "each file in only one split", fix)

    def _check_images(self, path: str) -> None:
        images, used = self.images, self.needed
        if wrong := next((column for column in images if column in used), ""):
            raise UserError(f"{path}.features: {wrong} is declared as an image, but it is not a feature", "a feature")
        features = sorted({one for one, kind in self.declared.items() if kind not in ("image", "leave_out")} - {*used})
        if self.only_images and images and features:
            problem = (
                f"{path}.features declares {features[0]}, but {path}.only_images=true uses nothing but {images[0]}"
            )
            fix = f"{path}.only_images=false"
            raise UserError(problem, "only columns of images, or the other columns too", fix)
        if self.root is not None and not images:
            fix = f"'{path}.features={{<column>: image}}'"
            raise UserError(
                f"{path}.root={self.root} requires a column of images", f"such a column in {path}.features", fix
            )
        if self.root is not None and not is_folder(self.root):
            raise UserError(f"{path}.root={self.root} is not a directory", "the directory with the images")


def _as_name(column: Any) -> Any:
    """Return a number as the name of a column; any other value is unchanged."""
    return str(column) if isinstance(column, (int, float)) and not isinstance(column, bool) else column


def declaring(kinds: Mapping[str, str], path: str = "data", setting: str = "features") -> str:
    """Return what to type to declare more kinds of columns; empty if Hydra's grammar cannot express the names.

    Args:
        kinds: The kinds by column.
        path: The group of the data.
        setting: The setting, which may be another mapping from columns, such as `units`.
    """
    if not all(
        re.fullmatch(r"(?!(?i:true|false|null)$)[A-Za-z_]([\w \-+/.$%*@?|\\()\[\]{}:=,]*\S)?", name, re.ASCII)
        for name in kinds
    ):
        return ""
    as_typed = {re.sub(r"([\\()[\]{}:=,])", r"\\\1", column): kind for column, kind in kinds.items()}
    quoted = {
        column: kind if kind in KINDS else json.dumps(kind, ensure_ascii=False) for column, kind in as_typed.items()
    }
    named = ", ".join(f"{column}: {kind}" for column, kind in quoted.items())
    return shlex.quote(f"++{path}.{setting}={{{named}}}")


def check_kinds(path: str, kinds: Mapping[str, str]) -> None:
    """Raise UserError for an unknown kind of a column."""
    for column, kind in kinds.items():
        if kind not in KINDS:
            raise UserError(
                f"{path}.features: the column {column} has the unknown kind {kind}",
                KINDS,
                declaring({column: KINDS[1]}, path),
            )


@dataclass(frozen=True)
class Header:
    """The columns of a table's files."""

    files: tuple[Path, ...]
    columns: tuple[str, ...]
    """The columns that all files have, in the order of the first file."""
    delimiter: str | None
    """The delimiter of text files; None for other formats."""
    lines: int = 1
    """Number of lines up to the end of the first file's header; names may contain line breaks."""
    others: frozenset[str] = frozenset()
    """Columns that only some of the files have."""

    @classmethod
    def of(
        cls,
        files: Sequence[Path],
        delimiter: str | None,
        encoding: str,
        leaves_out: Callable[[str], bool] = lambda _: False,
        needed: Collection[str] = (),
    ) -> "Header":
        """Read the names of the columns of all files.

        The order of the columns may differ between files, and an index of pandas is ignored.

        Args:
            files: The files.
            delimiter: The delimiter of text files; None detects it.
            encoding: The encoding of text files.
            leaves_out: Returns whether a column is not used, so some of the files may lack it.
            needed: Columns that cannot be left out; see `names_in`.

        Raises:
            UserError: If a file is empty or cannot be read, if names are missing, repeated or too many, or if they
                differ from those in the first file.
        """
        first: Header | None = None
        for path in files:
            columns, used, lines = names_in(path, format_of(path), delimiter, encoding, needed)
            if any("\0" in column for column in columns):  # UTF-16 read in a single-byte encoding
                raise not_in_encoding(path, encoding)
            refuse_names(path, columns)
            if first is None:
                first = cls(tuple(files), tuple(columns), used, lines)
            if used != first.delimiter:
                mark = f"the delimiter {used!r}" if used else "no delimiter"
                raise UserError(f"{path} has {mark}, unlike {files[0]}", "files with the same format and delimiter")
            both = {*first.columns} & {*columns}
            unlike = [name for name in dict.fromkeys([*first.columns, *columns]) if name not in both]
            used_ones = [name for name in unlike if not (name.startswith(UNNAMED) or leaves_out(name))]
            if used_ones:
                has, lacks = (path, files[0]) if used_ones[0] in columns else (files[0], path)
                fix = "" if {*used_ones} & {*needed} else declaring(dict.fromkeys(used_ones, "leave_out"))
                raise UserError(
                    f"{lacks} has no column {used_ones[0]}, unlike {has}", "files with the same columns", fix
                )
            common = tuple(name for name in first.columns if name in columns)
            first = replace(first, columns=common, others=first.others | {*unlike})
        assert first is not None
        return first

    @property
    def name(self) -> str:
        """The name of the table for messages."""
        return self.files[0].name + (f" and {len(self.files) - 1} more" if len(self.files) > 1 else "")
