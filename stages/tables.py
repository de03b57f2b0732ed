"""Tables as text: aligned for a console, and in Markdown."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns a line a row, with columns of equal width: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Returns a table whose first row is its header."""
    header, *others = rows
    lines = (header, ["---", *["---:"] * (len(header) - 1)], *others)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
