"""The comparison as text: on a terminal, in Markdown, as CSV."""

import csv
import io
from collections.abc import Sequence

from rich.table import Table

from pipeline.comparison.answer import choice, pruned_line, run_it, sentences, unfinished_line
from pipeline.comparison.comparison import Comparison
from pipeline.comparison.frame import columns_of
from pipeline.comparison.rows import Row

NARROWEST_SETTING = 14
"""Characters that a setting is folded to, before a column of values is left out."""

_GAP = 2


def terminal_table(comparison: Comparison, width: int = 80) -> Table:
    """Return the rows with as many columns as `width` characters have room for, the most important first."""
    rows = comparison.rows
    settings = [[name, *(row.settings.get(name, "") for row in rows)] for name in comparison.names]
    numbers = [["n", *(str(len(row.runs)) for row in rows)]] if any(len(row.runs) > 1 for row in rows) else []
    marks = ["", *(marks_of(comparison, row) for row in rows)]
    room = width - sum(_width(cells) for cells in (marks, *numbers))
    room -= sum(min(_width(cells), max(NARROWEST_SETTING, len(cells[0])) + _GAP) for cells in settings)
    first, *more = [
        [column.heading, *(column.text(row, interval=False) for row in rows)]
        for column in columns_of(comparison)
        if column.heading
    ] or [[""] * (len(rows) + 1)]
    numbers.append(first)
    room -= _width(first)
    for cells in more:
        if _width(cells) <= room:
            room -= _width(cells)
            numbers.append(cells)
    table = Table(title=comparison.title, title_justify="left", box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    table.add_column(marks[0], no_wrap=True)
    for cells in settings:
        table.add_column(cells[0], overflow="fold")
    for cells in numbers:
        table.add_column(cells[0], justify="right", no_wrap=True)
    for texts in zip(*(cells[1:] for cells in (marks, *settings, *numbers)), strict=True):
        table.add_row(*texts)
    return table


def notes(comparison: Comparison, most: int = 4) -> list[str]:
    """Return what is said below the table: the choice, the answers, the warnings, and what has not finished.

    Args:
        most: sentences and unfinished runs at most; the files have all.
    """
    lines = []
    if len(comparison.rows) > 1:
        marks = [f"* {best_mark(comparison)}"] if comparison.best is not None else []
        marks += [f"= baseline: {comparison.baseline.label}"] if comparison.baseline else []
        lines = ["; ".join(marks)] if marks else []
    lines += [choice(comparison), *_cut(sentences(comparison), most)]
    lines += [f"warning: {line}" for line in comparison.warnings]
    lines += [f"{'run it':11} {command}" for command in (run_it(comparison) or "").splitlines()]
    lines += [line] if (line := pruned_line(comparison)) else []
    return [*lines, *_cut([unfinished_line(run) for run in comparison.unfinished], most)]


def markdown(comparison: Comparison) -> str:
    """Return the comparison as Markdown: the answer, the table with every column, what has not finished."""
    lines = [f"# Comparison of {comparison.title}", "", f"**{choice(comparison)}**", ""]
    lines += [*(f"    {command}" for command in commands.splitlines()), ""] if (commands := run_it(comparison)) else []
    lines += [f"- {line}" for line in sentences(comparison)]
    if comparison.rows:
        columns = [column for column in columns_of(comparison) if column.heading]
        header = ["", *comparison.names, "n", *(column.heading for column in columns)]
        lines += ["", _markdown_row(header), _markdown_row(["---"] * len(header))]
        for row in comparison.rows:
            cells = [marks_of(comparison, row), *(row.settings.get(name, "") for name in comparison.names)]
            lines.append(_markdown_row([*cells, str(len(row.runs)), *(column.text(row) for column in columns)]))
        lines += ["", f"`*` {best_mark(comparison)}{', `=` baseline' if comparison.baseline else ''}.", ""]
        lines += [f"- {column.heading}: {column.explained}" for column in columns]
    lines += ["", *(f"- warning: {line}" for line in comparison.warnings)]
    lines += ["", f"- {line}"] if (line := pruned_line(comparison)) else []
    lines += ["", *(f"- {unfinished_line(run)}" for run in comparison.unfinished)]
    return "\n".join(lines).strip() + "\n"


def as_csv(comparison: Comparison) -> str:
    """Return every row with all its numbers, at full precision; settings first.

    Beside a figure are its `_std` over runs and the `_low` and `_high` ends of its interval, where any row has them.
    Rows are followed by the runs that have not finished, with their status.
    """
    rows, chosen = comparison.rows, comparison.choice
    columns: dict[str, list[float | None]] = {}
    for column in columns_of(comparison):
        figures = [column.figure(row) for row in rows]
        for place, suffix in enumerate(("", "_std", "_low", "_high")):
            values = [None if figure is None else figure[place] for figure in figures]
            if any(value is not None for value in values):
                columns[column.key + suffix] = values
    header = [*comparison.names, "status", "n", "seeds", "best", "tied", "baseline", *columns]
    file = io.StringIO()
    writer = csv.DictWriter(file, header, restval="", lineterminator="\n")
    writer.writeheader()
    for number, row in enumerate(rows):
        tied = (chosen.best, *chosen.tied) if chosen.tied else ()
        settings = {name: row.runs[0].setting(name) or "" for name in comparison.names}
        cells = {**settings, "status": "FINISHED", "n": len(row.runs), "best": str(row is chosen.row).lower()}
        cells |= {"seeds": " ".join(run.seed for run in row.runs if run.seed is not None)}
        cells |= {"tied": str(row in tied).lower(), "baseline": str(row is comparison.baseline).lower()}
        cells |= {key: "" if values[number] is None else repr(values[number]) for key, values in columns.items()}
        writer.writerow(cells)
    for run in (run for run in comparison.runs if not run.has_finished):
        settings = {name: run.setting(name) or "" for name in comparison.names}
        writer.writerow({**settings, "status": run.status, "n": 0, "seeds": run.seed or ""})
    return file.getvalue()


def marks_of(comparison: Comparison, row: Row) -> str:
    """Return the marks of a row: `*` for the one to take, `=` for the baseline."""
    if len(comparison.rows) < 2:
        return ""
    return "*" * (row is comparison.best) + "=" * (row is comparison.baseline)


def best_mark(comparison: Comparison) -> str:
    """Return what the marked row is: `best`, or one of several that cannot be told apart."""
    return "recommended" if comparison.choice.tied else "best"


def _cut(lines: Sequence[str], most: int) -> list[str]:
    more = len(lines) - most
    return [*lines[:most], f"… and {more} more in comparison.md"] if more > 0 else list(lines)


def _width(cells: Sequence[str]) -> int:
    return max(map(len, cells)) + _GAP


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
