"""Numbers as people write them: with marks of thousands, a decimal comma, a unit, in parentheses."""

import re
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from stages.settings.headers import INVISIBLE

Texts: TypeAlias = Any
"""Texts or whether each matches, a `pyarrow.Array` or a `pyarrow.ChunkedArray`."""

SPACES = "[\u00a0\u202f\u2007\u2009]"
"""No-break, narrow no-break, figure and thin spaces, which are read as a space."""

APOSTROPHE = "['\u2019]"
"""The plain and the typographic one."""

MINUS = "[\u2212\u2010-\u2013\ufe63\uff0d]"
"""Signs that are read as a minus: the typographic one, hyphens, the short dash."""

GROUPED = tuple(rf"[1-9]\d{{0,2}}(?:{mark}\d{{3}})+" for mark in (" ", APOSTROPHE, "_"))
"""Groups of three digits, by marks that mean nothing else in a number."""

CURRENCY = (
    r"\p{Sc}|[A-Z]{1,2}\$|AUD|BRL|CAD|CHF|CNY|CZK|DKK|EUR|GBP|INR|JPY|KRW|MXN|NOK|NZD|PLN|RUB|SEK|TRY|USD|ZAR|Rs\.?"
)
"""Words that may stand before a number. Other words there are names of things, such as `Room 12`."""

UNIT = r"[%‰°*†‡'\"′″]|\p{Sc}|°?\p{L}[\p{L}\d²³/·.^%@]{0,11}(?: \p{L}{1,11})?"
"""Units behind a number, of two words at most, and marks of footnotes."""

NEARLY = (
    rf"^(?:=?\"|')?[(+\-]*\s*(?:[<>≤≥~≈±]=?|ca\.|approx\.)?\s*[(+\-]*\s*(?P<before>{CURRENCY})?\s*[(+\-]*"
    rf"(?:(?:\p{{Nd}}{{1,3}}(?:(?:{APOSTROPHE}|[ .,_·٬])\p{{Nd}}{{3}})+|\p{{Nd}}+)(?:[.,·٫]\p{{Nd}}*)?|[.,]\p{{Nd}}+)"
    rf"(?:[eE][+-]?\d+|\s*[x×*·]\s*10\^?[+-]?\d+)?(?:\s*±\s*[\d.,]+)?\s*(?P<after>{UNIT})?\s*[)\-\"]*$"
)
"""A number, whatever its marks and unit are."""

ALIKE = rf"^[^.,]*0(?:{APOSTROPHE}|[ _])0[^.,]*$|^\([^.,]*\)$|^[^.,]*-$"
"""Form of whole numbers with groups of digits, in parentheses, or with a sign behind."""

DIVIDED = r"\d[-/:]\d"
"""Part of dates and times, and of no number without a unit."""

MOST_UNITS = 3
"""Different units of a column, at most. Of more, such as those of `12A` and `7c`, none is a unit."""


@dataclass(frozen=True)
class NumberFormat:
    """The marks of a column's numbers that are texts.

    A mark or form that has only one meaning is read with any format: groups of three digits by spaces, apostrophes or
    underscores, parentheses or a trailing minus for negative numbers, a typographic minus.
    """

    decimal: str = "."
    thousands: str | None = None
    """Comma or point. Without it, only what cannot be a decimal mark is one: `1,200.00` and `1,200,000`."""
    unit: str = ""
    """Stands before or after the numbers, or before some of them."""

    def plain(self, texts: Texts) -> Texts:
        """Return numbers as `-1234.5`, and null for any other text."""
        if not self.unit:  # the patterns that follow take much longer
            texts = pc.if_else(pc.match_substring_regex(texts, DIVIDED), pa.scalar(None, pa.string()), texts)
        texts = _with_plain_marks(texts)
        if self.unit:
            unit = re.escape(self.unit)
            texts = pc.replace_substring_regex(texts, rf"^([+\-(]?)\s*{unit}\s*", r"\1")
            texts = pc.replace_substring_regex(texts, rf"\s*{unit}([)\-]?)$", r"\1")
        texts = pc.replace_substring_regex(texts, r"^\(\s*(.*\d)\s*\)$", r"-\1")
        texts = pc.replace_substring_regex(texts, r"^(\d.*\d)\s*-$", r"-\1")
        texts = pc.replace_substring_regex(texts, r"^([+\-])\s+", r"\1")
        is_number = pc.match_substring_regex(texts, self._pattern)
        texts = pc.if_else(is_number, texts, pa.scalar(None, pa.string()))
        if self.decimal == ",":
            texts = pc.replace_substring(pc.replace_substring(texts, ".", ""), ",", ".")
        return pc.replace_substring_regex(texts, rf"{APOSTROPHE}|[ +,_]", "")

    @property
    def _pattern(self) -> str:
        decimal = re.escape(self.decimal)
        mark = re.escape("," if self.decimal == "." else ".")
        fraction = rf"(?:{decimal}\d*)?"
        first = r"[1-9]\d{0,2}"
        forms = [
            rf"(?:\d+{fraction}|{decimal}\d+)(?:[eE][+-]?\d+)?",
            *(form + fraction for form in GROUPED),
            rf"{first}(?:{mark}\d{{3}})+{decimal}\d+",
            rf"{first}(?:{mark}\d{{3}}){{2,}}{fraction}",
            rf"[1-9]\d?(?:{mark}\d\d)+{mark}\d{{3}}{fraction}",  # 12,34,567, as in India
        ]
        if self.thousands is not None:
            forms.append(rf"{first}{mark}\d{{3}}{fraction}")
        return rf"^[+-]?(?:{'|'.join(forms)}|(?i:inf(?:inity)?))$"


def _with_plain_marks(texts: Texts) -> Texts:
    for pattern, plain in ((MINUS, "-"), (SPACES, " "), (INVISIBLE, "")):
        texts = pc.replace_substring_regex(texts, pattern, plain)
    return texts


def are_nearly_numbers(texts: Texts) -> tuple[Texts, list[str]]:
    """Return which of some different texts are numbers, whatever their marks and units are, and the units."""
    parts = pc.extract_regex(_with_plain_marks(texts), NEARLY)
    before, after = (pc.struct_field(parts, name) for name in ("before", "after"))
    is_nearly = pc.and_(pc.is_valid(parts), pc.invert(pc.match_substring_regex(texts, r"^0\d")))
    unit = pc.if_else(is_nearly, pc.binary_join_element_wise(before, after, ""), "")
    units = [one for one in pc.unique(unit).to_pylist() if one]
    if len(units) > MOST_UNITS:
        return pc.and_(is_nearly, pc.equal(unit, "")), []
    return is_nearly, units


def are_alike(texts: Texts) -> bool:
    """Return whether all of some different texts have one form that groups digits, as telephone numbers have."""
    shapes = pc.unique(pc.replace_substring_regex(_with_plain_marks(texts), r"\d", "0")).to_pylist()
    return len(shapes) == 1 < len(texts) and bool(re.search(ALIKE, shapes[0]))


def are_grouped(texts: Texts) -> bool:
    """Return whether points seem to be marks of thousands: `1.250` and `950`, but neither `1.25` nor `950.000`.

    Numbers with a fixed count of decimals have no whole ones among them, and others no zeros at the end.
    """
    are_groups = pc.match_substring_regex(texts, r"^[+-]?(?:[1-9]\d{0,2}(?:\.\d{3})+|[1-9]\d{0,2})$")
    has_point = pc.match_substring(texts, ".")
    ends_in_zero = pc.and_(has_point, pc.ends_with(texts, "0"))
    return bool(pc.all(are_groups).as_py() and pc.any(ends_in_zero).as_py() and not pc.all(has_point).as_py())


def formats_of(texts: Texts, given: NumberFormat) -> list[NumberFormat]:
    """Return the formats by which all of some different texts are numbers."""
    units = [given.unit] if given.unit else ["", *are_nearly_numbers(texts)[1]]
    marks = [(given.decimal, given.thousands), (".", ","), (",", None), (",", ".")]
    formats = [replace(given, decimal=a, thousands=b, unit=unit) for unit in units for a, b in marks]
    return [one for one in formats if not one.plain(texts).null_count]
