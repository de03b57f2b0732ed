"""Columns of a table that have dates in their first rows."""

import csv
import re
from itertools import islice

from stages.settings.date_formats import ASKED, FOUND, UNIX, DateFormat
from stages.settings.first_rows import read_first
from stages.settings.table import TableSettings

LOOKED_AT = 1_000
"""Number of first rows."""

VALUES = 10
"""Number of different values of a column that are compared with the patterns of dates."""


def columns_of_dates(settings: TableSettings) -> list[str]:
    """Return the columns that are declared as dates, or in which one of the first texts has the form of a date."""
    header = settings.header
    kinds = settings.declared
    used = [name for name in header.columns if not settings.leaves_out(name) and kinds.get(name, "date") == "date"]
    texts: dict[str, set[str]] = {name: set() for name in used}
    missing = {"", *settings.missing_texts}
    try:
        how = settings.delimiter, settings.encoding, LOOKED_AT
        rows = (row for path in header.files for row in read_first(path, used, *how))
        for row in islice(rows, LOOKED_AT):
            for name, value in zip(used, row, strict=True):
                if isinstance(value, str) and len(texts[name]) < VALUES and value.strip() not in missing:
                    texts[name].add(value.strip())
    except (OSError, EOFError, ValueError, TypeError, csv.Error):  # loading reports the error
        return []
    given = [settings.date_format] if isinstance(settings.date_format, str) else []
    forms = [re.compile(DateFormat(one).regex, re.ASCII) for one in (*given, *FOUND, *ASKED) if one not in UNIX]
    are_dates = {name: any(form.match(text) for text in found for form in forms) for name, found in texts.items()}
    return [name for name in used if kinds.get(name) == "date" or are_dates[name]]
