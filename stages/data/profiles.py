"""Facts of the columns of a table, by which their kinds are found; numbers that would be taken for texts."""

import re
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from shlex import quote
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stages.data.tables import Rows, Values, cast, place_of
from stages.data.written_dates import Dates, dates_in
from stages.data.written_numbers import NumberFormat, are_alike, are_grouped, are_nearly_numbers, formats_of
from stages.errors import UserError
from stages.settings.date_formats import ISO, UNIX, DateFormat
from stages.settings.headers import UNNAMED
from stages.settings.ranges import quoted
from stages.settings.table import declaring

FEW = 10
"""Different whole numbers that make a category, at most: a class of cabin, a grade."""

MOST_VALUES = 100_000
"""Different values of a category, at most."""

NEARLY_ALL = 0.95
"""Share of different values from which a column is an identifier, and of numbers from which it is one of numbers."""

LOOKED_AT = 10_000
"""Maximum number of different texts of a column that are examined for marks and units."""

WORDS = 4
"""Words of a value, on average, from which a column of different texts is one of sentences."""

NUMBERED = (("%Y", 1000, 2999), ("%Y%m", 190001, 219912), ("%Y%m%d", 19000101, 21991231), ("unix_ms", 10**11, 10**14))
"""Notations of dates as whole numbers, with the least and the greatest number. Others are `unix`."""

DAYS_BELOW = 100_000
"""Numbers below this are days since some date, such as those of spreadsheets, rather than seconds since 1970."""

_IDENTIFIER = re.compile(r"(^|[^A-Za-z])(id|uuid|key|index|rownames)$|[a-z]I[dD]$", re.IGNORECASE)


@dataclass(frozen=True)
class Profile:
    """Facts of a column.

    present: values that are not missing. numbers: those that are numbers; wrong: the first that is none, and its row.
    nearly: those that would be numbers without marks of thousands, units and the like; others: different texts that
    would not, of LOOKED_AT. are_alike: whether all have one form, see `are_alike`. are_grouped: see there, too.
    different: values; 0 of numbers that are not whole.
    """

    name: str
    missing: int = 0
    present: int = 0
    numbers: int = 0
    nearly: int = 0
    others: int = 0
    are_alike: bool = False
    are_grouped: bool = False
    spaces: int = 0
    dates: Dates = Dates()
    wrong: tuple[str, int] | None = None
    is_whole: bool = True
    has_leading_zeros: bool = False
    different: int = 0
    low: int | None = None
    high: int | None = None

    @classmethod
    def of(cls, name: str, column: Values, form: NumberFormat, date: DateFormat, is_date: bool = False) -> "Profile":
        """Count the values of a column. form: of its numbers. date: of its dates. is_date: whether it is declared."""
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
        elif is_text and (form.decimal != "." or cast(present, pa.float64()) is None):
            texts, times = present.value_counts().flatten()  # each text is looked at once
            is_number = pc.is_valid(form.plain(texts))
            facts |= {"numbers": _sum(times, is_number), "different": len(texts)}
            facts["spaces"] = pc.sum(pc.multiply(pc.count_substring(texts, " "), times)).as_py()
            facts["dates"] = dates_in(texts, times, date, is_date)
            rest = texts.filter(pc.invert(is_number))
            is_nearly = are_nearly_numbers(rest[:LOOKED_AT])[0]
            others = rest[:LOOKED_AT].filter(pc.invert(is_nearly))
            facts |= {"others": len(others), "are_alike": not len(rest) and are_alike(texts)}
            facts["nearly"] = facts["numbers"] + _sum(times.filter(pc.invert(is_number))[:LOOKED_AT], is_nearly)
            wrong = others[0] if len(others) else rest[0] if len(rest) else texts[0]
            if len(rest) or facts["are_alike"]:
                facts["wrong"] = wrong.as_py(), pc.index(column, wrong).as_py()
        elif is_text and form.thousands is None and are_grouped(present):
            wrong = pc.index(pc.match_substring(column, "."), True).as_py()
            facts |= {"are_grouped": True, "wrong": (column[wrong].as_py(), wrong)}
        if is_text:
            facts["has_leading_zeros"] = pc.any(
                pc.match_substring_regex(present, r"^0[\dxX]")
            ).as_py()  # Arrow reads 0x1f as 31
        return cls(name, **facts)

    @property
    def is_number(self) -> bool:
        """Whether all values are numbers, or so many that the others must be mistakes."""
        is_code = self.has_leading_zeros or self.are_alike
        return self.present > 0 and self.numbers >= NEARLY_ALL * self.present and not is_code

    @property
    def is_mixed(self) -> bool:
        """Whether many different numbers have marks, or few other texts, such as `?`, among them."""
        if self.is_date:
            return False
        if self.is_number:
            return self.are_grouped or self.numbers < self.present == self.nearly
        if self.has_leading_zeros or self.different - self.others <= FEW:
            return False
        return self.others <= FEW or self.nearly >= NEARLY_ALL * self.present

    @property
    def is_date(self) -> bool:
        """Whether all values have the form of dates, or so many that the others must be mistakes."""
        return bool(self.dates.patterns) and not self.is_number and self.dates.count >= NEARLY_ALL * self.present

    @property
    def is_prose(self) -> bool:
        """Whether it holds different sentences."""
        is_worded = self.spaces >= (WORDS - 1) * self.present
        return is_worded and not self.is_number and not self.is_date and self.different > FEW

    def kind(self) -> tuple[str, str]:
        """Return `number`, `category`, `date` or `leave_out`, and why it is left out."""
        different, name = self.different, self.name
        are_all_different = different > max(NEARLY_ALL * min(self.present, MOST_VALUES), FEW)
        if not self.present or name.startswith(UNNAMED):
            return "leave_out", "no values" if not self.present else "no name"
        if different == 1 and not self.missing and (self.is_whole or not self.is_number):
            return "leave_out", "only one value"
        if self.is_number and not (self.is_whole and different <= FEW):
            ends = 0 if self.low is None or self.high is None else self.high - self.low
            is_counted = 0 < ends < 2 * self.present  # other splits have the others
            is_identifier = self.is_whole and are_all_different and (_IDENTIFIER.search(name) or is_counted)
            return ("leave_out", f"an identifier, {different:,} different values") if is_identifier else ("number", "")
        if self.is_date:
            return "date", ""
        if not self.is_number and (are_all_different or different > MOST_VALUES):
            return "leave_out", f"{'a text' if self.is_prose else 'an identifier'}, {different:,} different values"
        return "category", ""


def _sum(times: Values, which: Values) -> int:
    return pc.sum(times.filter(which)).as_py() or 0


def scan(
    rows: Rows, places: Mapping[str, np.ndarray | None] | None = None, dates: Collection[str] = ()
) -> dict[str, Profile]:
    """Return the facts of columns.

    Args:
        places: from each column to the rows that are looked at, int64; None: all of them, or all columns.
        dates: the columns that are declared as dates.
    """
    places = dict.fromkeys(rows.table.column_names) if places is None else places

    def profile(name: str) -> Profile:
        of_dates = rows.date_of(name), name in dates
        return Profile.of(name, rows.column(name, places[name]), rows.format_of(name), *of_dates)

    with ThreadPoolExecutor() as pool:
        return dict(zip(places, pool.map(profile, places), strict=True))


def date_format_of(rows: Rows, profile: Profile) -> DateFormat:
    """Return the notation of a column of dates: the given one, or the one that reads its values.

    Raises:
        UserError: If it is not given, and the values do not say what it is.
    """
    name, found, given = profile.name, profile.dates, rows.date_of(profile.name)
    if rows.has_date_format(name) or (given.pattern and profile.is_number):
        if given.pattern in UNIX:
            return replace(given, zone=given.zone or "UTC")
        return DateFormat(given.pattern, found.zone if found.patterns == (given.pattern,) else "")
    if profile.is_number:
        low, high = profile.low or 0, profile.high or 0
        if max(abs(low), abs(high)) < DAYS_BELOW and not 1000 <= low <= high <= 2999:
            problem = f"the column {name} is declared as dates, but has numbers such as {low}, which may count days"
            raise UserError(problem, "dates such as 2024-12-31 (spreadsheets count days since 1899-12-30)")
        pattern = next((one for one, least, most in NUMBERED if least <= low <= high <= most), "unix")
        problem = f"the column {name} is declared as dates, but has numbers such as {low}"
        raise UserError(problem, "the pattern of its dates in data.date_format", _typed_date(rows, name, pattern))
    if not found.is_clear:
        text = profile.wrong[0] if profile.wrong else ""
        several = (
            " or ".join(found.patterns) if found.patterns[1:] else f"{found.patterns[0]}, with a year of two digits"
        )
        problem = f"{rows.parts[0][0]}: the dates of {name}, such as {text!r}, may be {several}"
        expected = "the pattern of its dates in data.date_format, or another kind for the column in data.features"
        raise UserError(problem, expected, _typed_date(rows, name, found.patterns[0]))
    return DateFormat(found.patterns[0] if found.patterns else ISO, found.zone)


def _typed_date(rows: Rows, column: str, pattern: str) -> str:
    """Return what to type for a column whose dates have a pattern."""
    if rows.date_format is None and pattern not in UNIX:
        return f"data.date_format='{pattern}'"
    return declaring({column: pattern}, setting="date_format")


def refuse_texts(rows: Rows, profile: Profile, is_target: bool, places: np.ndarray | None) -> None:
    """Refuse numbers that other texts, or marks, would make a category or an identifier, and such dates."""
    if profile.dates.others and not is_target:
        _refuse_other_dates(rows, profile, places)
    if profile.wrong is None or not profile.is_mixed:
        return
    text, row = profile.wrong
    row = row if places is None else int(places[row])
    where, count = place_of(rows.parts, row, profile.name), f"{profile.numbers:,} of {profile.present:,}"
    problem = f"{where} is {text!r}, but {count} values in this column are numbers"
    expected = "numbers such as -1234.5"
    if profile.are_grouped:
        problem = f"{where} is {text!r} while other values are integers, so . may separate thousands or decimals"
        form = NumberFormat(",", ".", rows.units.get(profile.name, ""))
        expected = "the kind number for decimals, data.thousands=. for thousands, or the format of the other columns"
        fix = "" if _is_spoiled(rows, profile.name, form) else _typed_format(form, rows.format, profile.name)
        raise UserError(problem, expected, fix)
    if profile.are_alike:
        problem = f"{where} is {text!r}, and all values have this form, which may be a code or a number"
        raise UserError(problem, "a kind for the column in data.features", declaring({profile.name: "number"}))
    texts = pc.unique(rows.column(profile.name, places).drop_null())
    form = rows.format_of(profile.name)
    if profile.others:
        rest = texts.filter(pc.is_null(form.plain(texts)))
        others = rest.filter(pc.invert(are_nearly_numbers(rest)[0])).to_pylist()
        missing = ", ".join(quoted(one, '"') for one in [*rows.missing, *others])
        fix = quote(f"data.missing=[{missing}]") if profile.others <= FEW else ""
        raise UserError(
            problem, f"{expected}, the text in data.missing, or a kind for the column in data.features", fix
        )
    possible = formats_of(texts, form)
    found = [one for one in possible if not _is_spoiled(rows, profile.name, one)]
    if profile.is_number and not found:  # an error of the row says more
        return
    if found:
        may_be_either = len({one.decimal for one in possible}) > 1 and possible[0].thousands is not None
        marks = "data.thousands or data.decimal" if may_be_either else "settings for how the numbers are written"
        raise UserError(problem, f"{expected}, or {marks}", _typed_format(found[0], form, profile.name))
    if possible:
        expected = f"{expected}, written as in the other columns"
    fix = "" if is_target else declaring({profile.name: "leave_out"})
    raise UserError(problem, f"{expected}, or a kind for the column in data.features", fix)


def _refuse_other_dates(rows: Rows, profile: Profile, places: np.ndarray | None) -> None:
    """Refuse few texts that would make dates a category or an identifier."""
    text = profile.dates.others[0]
    row = pc.index(rows.column(profile.name, places), text).as_py()
    where = place_of(rows.parts, row if places is None else int(places[row]), profile.name)
    missing = ", ".join(quoted(one, '"') for one in [*rows.missing, *profile.dates.others])
    raise UserError(
        f"{where} is {text!r}, but {profile.dates.count:,} of {profile.present:,} values in this column are dates",
        "dates such as 2024-12-31, the text in data.missing, or a kind for the column in data.features",
        quote(f"data.missing=[{missing}]"),
    )


def _is_spoiled(rows: Rows, column: str, form: NumberFormat) -> bool:
    """Return whether `form`, read from `column`, would change the numbers of another column."""
    if (form.decimal, form.thousands) == (rows.format.decimal, rows.format.thousands):
        return False
    for other in rows.table.column_names:
        if other != column and pa.types.is_string(rows.table.column(other).type):
            texts = pc.unique(rows.column(other).drop_null())[:LOOKED_AT]
            now = rows.format_of(other).plain(texts)
            if not now.null_count and not replace(form, unit=rows.units.get(other, "")).plain(texts).equals(now):
                return True
    return False


def _typed_format(form: NumberFormat, given: NumberFormat, column: str) -> str:
    """Return what to type for a column whose numbers have the format `form`, where `given` is that of the settings."""
    marks = {"decimal": form.decimal, "thousands": form.thousands}
    changed = {name: mark for name, mark in marks.items() if mark not in (None, getattr(given, name))}
    words = [quote(f"data.{name}=" + mark.replace(",", r"\,")) for name, mark in changed.items()]
    return " ".join([*words, *([declaring({column: form.unit}, setting="units")] if form.unit != given.unit else [])])
