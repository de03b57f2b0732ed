"""The comparison as a table: on a terminal, in Markdown, as CSV."""

import csv
import io
from collections.abc import Sequence

from rich.table import Table

from pipeline.comparison.answer import choice, run_it, sentences
from pipeline.comparison.columns import columns_of, difference_text, p_text, speed_text
from pipeline.comparison.compared_run import ComparedRun
from pipeline.comparison.comparison import Comparison
from pipeline.comparison.rows import Row

NARROWEST_SETTING = 14
"""Characters that a setting is folded to, before a column of values is left out."""

_GAP = 2


def terminal_table(comparison: Comparison, width: int = 80) -> Table:
    """Return the rows with as many columns as `width` characters have room for, the most important first."""
    names = list(comparison.names)
    fixed = [["", *(_marks(comparison, row) for row in comparison.rows)]]
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
    """Return what is said below the table: the choice, the answers, the warnings, and what has not finished.

    Args:
        most: sentences and unfinished runs at most; the files have all.
    """
    lines = []
    if comparison.rows:
        marks = f"* {best_mark(comparison)}" if comparison.best is not None and len(comparison.rows) > 1 else ""
        base = f"= baseline: {comparison.baseline.label}" if comparison.baseline and len(comparison.rows) > 1 else ""
        lines += [mark for mark in (f"{marks}{'; ' if marks and base else ''}{base}",) if mark]
    lines.append(choice(comparison))
    lines += _cut(sentences(comparison), most)
    lines += [f"warning: {line}" for line in comparison.warnings]
    lines += [f"{'run it':11} {command}"] if (command := run_it(comparison)) else []
    lines += _cut([unfinished_line(run) for run in comparison.unfinished], most)
    return lines


def markdown(comparison: Comparison) -> str:
    """Return the comparison as Markdown: the answer, the table with every column, what has not finished."""
    lines = [f"# Comparison of {comparison.title}", "", f"**{choice(comparison)}**", ""]
    lines += [f"    {command}", ""] if (command := run_it(comparison)) else []
    lines += [f"- {line}" for line in sentences(comparison)]
    columns = columns_of(comparison)
    if comparison.rows:
        with_differences = bool(comparison.differences)
        header = ["", *comparison.names, "n", *(column.heading for column in columns)]
        header += ["speed (95 %)"] if len(comparison.rows) > 1 else []
        header += ["test % − baseline's (95 %)", "McNemar's p"] if with_differences else []
        lines += ["", _markdown_row(header), _markdown_row(["---"] * len(header))]
        for row in comparison.rows:
            cells = [_marks(comparison, row), *(row.settings.get(name, "") for name in comparison.names)]
            cells += [str(len(row.runs)), *(column.text(row) for column in columns)]
            cells += [speed_text(comparison, row)] if len(comparison.rows) > 1 else []
            found = comparison.differences.get(row)
            if with_differences:
                cells += [difference_text(comparison, row), p_text(found.p) if found else ""]
            lines.append(_markdown_row(cells))
        lines += [
            "",
            f"`*` {best_mark(comparison)}, `=` baseline.",
            "",
            *(f"- {column.heading}: {column.explained}" for column in columns),
        ]
    lines += ["", *(f"- warning: {line}" for line in comparison.warnings)]
    lines += ["", *(f"- {unfinished_line(run)}" for run in comparison.unfinished)]
    return "\n".join(lines).strip() + "\n"


def as_csv(comparison: Comparison) -> str:
    """Return every row with all its numbers, at full precision; settings first, `_std` of a metric beside it.

    Rows are followed by the runs that have not finished, with their status.
    """
    metrics = sorted({name for row in comparison.rows for name in row.metrics})
    derived = [column for column in columns_of(comparison) if column.key in ("speed-up", "efficiency")]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    header = [*comparison.names, "status", "n", "seeds", "best", "tied", "baseline"]
    header += ["difference", "difference_low", "difference_high", "mcnemar_p", "speed-up_low", "speed-up_high"]
    header += [column.key for column in derived]
    header += [part for name in (*metrics, "seconds") for part in (name, f"{name}_std")]
    writer.writerow(header)
    for row in comparison.rows:
        found = comparison.differences.get(row)
        cells = [*(row.settings.get(name, "") for name in comparison.names), "FINISHED", str(len(row.runs))]
        cells += [" ".join(run.seed for run in row.runs if run.seed is not None)]
        chosen = comparison.choice
        marks = (
            row is chosen.row,
            row in chosen.tied or (row is chosen.best and chosen.tied),
            row is comparison.baseline,
        )
        cells += [str(bool(mark)).lower() for mark in marks]
        speed = comparison.speeds.get(row)
        numbers: list[float | None] = [found.difference, found.low, found.high, found.p] if found else [None] * 4
        numbers += [speed.low, speed.high] if speed else [None] * 2
        numbers += [column.value(row) for column in derived]
        numbers += [part for name in (*metrics, "seconds") for part in (row.mean(name), row.std(name))]
        writer.writerow([*cells, *("" if value is None else repr(value) for value in numbers)])
    for run in comparison.unfinished:
        settings = [run.setting(name) or "" for name in comparison.names]
        writer.writerow([*settings, run.status, "0", run.seed or "", *[""] * (len(header) - len(settings) - 3)])
    return file.getvalue()


def _marks(comparison: Comparison, row: Row) -> str:
    several = len(comparison.rows) > 1
    return ("*" if several and row is comparison.best else "") + ("=" if several and row is comparison.baseline else "")


def best_mark(comparison: Comparison) -> str:
    """Return what the marked row is: `best`, or one of several that cannot be told apart."""
    return "recommended" if comparison.choice.tied else "best"


def unfinished_line(run: ComparedRun) -> str:
    """Return what became of a run that has not finished, and why."""
    return f"job {run.number} {run.status}: {run.reason or run.folder.name}"


def _cut(lines: Sequence[str], most: int) -> list[str]:
    more = len(lines) - most
    return [*lines[:most], f"… and {more} more in comparison.md"] if more > 0 else list(lines)


def _width(cells: Sequence[str]) -> int:
    return max(map(len, cells))


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
