"""Tables as text: aligned for a console, and in Markdown."""

import re
from collections.abc import Sequence

from stages.errors import printable


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line a row, with columns of equal width: the first to the left, the others to the right."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]


def plain_markdown(text: str) -> str:
    """Return a text, such as the name of a column, that ends no cell, and begins no code, link or HTML."""
    return re.sub(r"([\\|`<\[\]])", r"\\\1", printable(" ".join(text.split())))


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first row is its header."""
    header, *others = [[plain_markdown(cell) for cell in row] for row in rows]
    lines = (header, ["---", *["---:"] * (len(header) - 1)], *others)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
