"""The comparison as a table: on a terminal, in Markdown, as CSV."""

import csv
import io
from collections.abc import Sequence

from rich.table import Table

from pipeline.comparison.answer import choice, sentences
from pipeline.comparison.columns import columns_of, difference_text, p_text
from pipeline.comparison.compared_run import ComparedRun
from pipeline.comparison.comparison import Comparison

NARROWEST_SETTING = 14
"""Characters that a setting is folded to, before a column of values is left out."""

_GAP = 2


def terminal_table(comparison: Comparison, width: int = 80) -> Table:
    """Returns the rows with as many columns as `width` characters have room for, the most important first."""
    names = list(comparison.names)
    fixed = [["", *(_marks(comparison, number) for number in range(len(comparison.rows)))]]
    counts = [len(row.runs) for row in comparison.rows]
    seeds = [["n", *map(str, counts)]] if any(count > 1 for count in counts) else []
    settings = [[name, *(row.settings.get(name, "") for row in comparison.rows)] for name in names]
    values = [[column.heading, *(column.text(row) for row in comparison.rows)] for column in columns_of(comparison)]
    room = width - sum(_width(cells) + _GAP for cells in (*fixed, *seeds))
    room -= sum(min(_width(cells), max(NARROWEST_SETTING, len(cells[0]))) + _GAP for cells in settings)
    shown: list[list[str]] = []
    for cells in values:
        if _width(cells) + _GAP > room and shown:
            continue
        room -= _width(cells) + _GAP
        shown.append(cells)
    table = Table(title=comparison.title, title_justify="left", box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for cells in fixed:
        table.add_column(cells[0], no_wrap=True)
    for cells in settings:
        table.add_column(cells[0], overflow="fold")
    for cells in (*seeds, *shown):
        table.add_column(cells[0], justify="right", no_wrap=True)
    for row in zip(*(cells[1:] for cells in (*fixed, *settings, *seeds, *shown)), strict=True):
        table.add_row(*row)
    return table


def notes(comparison: Comparison, most: int = 4) -> list[str]:
    """Returns what is said below the table: the choice, the answers, the warnings, and what has not finished.

    Args:
        most: sentences and unfinished runs at most; the files have all.
    """
    lines = []
    if comparison.rows:
        marks = "* best" if comparison.best is not None and len(comparison.rows) > 1 else ""
        base = f"= baseline: {comparison.baseline.label}" if comparison.baseline and len(comparison.rows) > 1 else ""
        lines += [mark for mark in (f"{marks}{'; ' if marks and base else ''}{base}",) if mark]
    lines.append(choice(comparison))
    lines += _cut(sentences(comparison), most)
    lines += [f"warning: {line}" for line in comparison.warnings]
    lines += _cut([unfinished_line(run) for run in comparison.unfinished], most)
    return lines


def markdown(comparison: Comparison) -> str:
    """Returns the comparison as Markdown: the answer, the table with every column, what has not finished."""
    lines = [f"# Comparison of {comparison.title}", "", f"**{choice(comparison)}**", ""]
    lines += [f"- {line}" for line in sentences(comparison)]
    columns = columns_of(comparison)
    if comparison.rows:
        with_differences = bool(comparison.differences)
        header = ["", *comparison.names, "n", *(column.heading for column in columns)]
        header += ["test % − baseline's (95 %)", "McNemar's p"] if with_differences else []
        lines += ["", _markdown_row(header), _markdown_row(["---"] * len(header))]
        for number, row in enumerate(comparison.rows):
            cells = [_marks(comparison, number), *(row.settings.get(name, "") for name in comparison.names)]
            cells += [str(len(row.runs)), *(column.text(row) for column in columns)]
            found = comparison.differences.get(number)
            if with_differences:
                cells += [difference_text(comparison, number), p_text(found.p) if found else ""]
            lines.append(_markdown_row(cells))
        lines += ["", "`*` best, `=` baseline.", "", *(f"- {column.heading}: {column.explained}" for column in columns)]
    lines += ["", *(f"- warning: {line}" for line in comparison.warnings)]
    lines += ["", *(f"- {unfinished_line(run)}" for run in comparison.unfinished)]
    return "\n".join(lines).strip() + "\n"


def as_csv(comparison: Comparison) -> str:
    """Returns every row with all its numbers, at full precision; settings first, `_std` of a metric beside it.

    Rows are followed by the runs that have not finished, with their status.
    """
    metrics = sorted({name for row in comparison.rows for name in row.metrics})
    derived = [column for column in columns_of(comparison) if column.key in ("speed-up", "efficiency")]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    header = [*comparison.names, "status", "n", "seeds", "best", "baseline"]
    header += ["difference", "difference_low", "difference_high", "mcnemar_p", *(column.key for column in derived)]
    header += [part for name in (*metrics, "seconds") for part in (name, f"{name}_std")]
    writer.writerow(header)
    for number, row in enumerate(comparison.rows):
        found = comparison.differences.get(number)
        cells = [*(row.settings.get(name, "") for name in comparison.names), "FINISHED", str(len(row.runs))]
        cells += [" ".join(run.seed for run in row.runs if run.seed is not None)]
        cells += [str(row is comparison.best).lower(), str(row is comparison.baseline).lower()]
        numbers: list[float | None] = [None] * 4
        if found is not None:
            numbers = [found.difference, found.low, found.high, found.p]
        numbers += [column.value(row) for column in derived]
        numbers += [part for name in (*metrics, "seconds") for part in (row.mean(name), row.std(name))]
        writer.writerow([*cells, *("" if value is None else repr(value) for value in numbers)])
    for run in comparison.unfinished:
        settings = [run.setting(name) or "" for name in comparison.names]
        writer.writerow([*settings, run.status, "0", run.seed or "", *[""] * (len(header) - len(settings) - 3)])
    return file.getvalue()


def _marks(comparison: Comparison, number: int) -> str:
    row = comparison.rows[number]
    several = len(comparison.rows) > 1
    return ("*" if several and row is comparison.best else "") + ("=" if several and row is comparison.baseline else "")


def unfinished_line(run: ComparedRun) -> str:
    """Returns what became of a run that has not finished, and why."""
    return f"job {run.number} {run.status}: {run.reason or run.folder.name}"


def _cut(lines: Sequence[str], most: int) -> list[str]:
    more = len(lines) - most
    return [*lines[:most], f"… and {more} more in comparison.md"] if more > 0 else list(lines)


def _width(cells: Sequence[str]) -> int:
    return max(map(len, cells))


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
