"""Output of a comparison for the terminal, as Markdown, as CSV, and as one self-contained HTML page."""

import base64
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.table import Table

from pipeline.comparison.answer import answer_of, best_mark, marks_of
from pipeline.comparison.comparison import Comparison
from pipeline.comparison.curves import COLORS, DASHES, STYLE, draw_curves, styles_of
from pipeline.comparison.frame import DIFFERENCE, SPEED_UP, Column, columns_of, shown_columns
from pipeline.comparison.words import metric_label
from pipeline.console import wrapped_lines
from stages import tables
from stages.errors import printable, printable_lines
from stages.storage.atomic import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATE = Path(__file__).with_name("page.html")

MAX_COLUMNS = 3
"""Number of columns of figures on a terminal. The differences are separate lines; the files have all columns."""

MAIN_COLUMNS = 4
"""Number of columns of figures in the first table of the page, after the settings."""

MAX_SETTINGS = 3
"""Number of settings up to which each has its own column on the page; more settings share one column."""

LONG_PART = 20
"""Length of a part of a name above which the page may break a line within it."""

MAX_TABLE_COLUMNS = 6
"""Number of columns of figures in each of the page's other tables."""


def terminal_table(comparison: Comparison) -> Table:
    """Return a table of the most important columns, which folds long settings."""
    table = Table(
        title=printable(comparison.title), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    columns = [column for column in shown_columns(comparison) if column.key != DIFFERENCE][:MAX_COLUMNS]
    header, *lines = _cells(comparison, columns, interval=False)
    for place, name in enumerate(header):
        is_setting = place <= len(comparison.names)
        table.add_column(
            printable(name.removesuffix(" vs baseline")),
            overflow="fold",
            no_wrap=not is_setting,
            justify="left" if is_setting else "right",
        )
    for line in lines:
        table.add_row(*map(printable, line))
    return table


def show(comparison: Comparison, console: Console) -> None:
    """Print the table and the notes below it."""
    if comparison.rows:
        console.print(terminal_table(comparison))
    for note in notes(comparison):
        lines = [note] if note.startswith(COMMAND) else wrapped_lines(note, console.width)
        for line in lines:
            console.print(printable(line), soft_wrap=True)


def _cells(comparison: Comparison, columns: Sequence[Column], interval: bool = True) -> list[list[str]]:
    """Return the header of a table and one line per row: its marks, settings, number of seeds and figures."""
    lines = [["", *comparison.names, _runs_heading(comparison), *(column.heading for column in columns)]]
    for row in comparison.ranked:
        marks = "*" * (row in comparison.choice.rows) + "=" * (row is comparison.baseline)
        cells = [marks if len(comparison.rows) > 1 else "", *(row.settings.get(name, "") for name in comparison.names)]
        lines.append([*cells, str(len(row.runs)), *(column.text(row, interval) for column in columns)])
    return lines


def _runs_heading(comparison: Comparison) -> str:
    """Return the heading of the number of runs: `seeds`, or `runs` if a seed was repeated or it is a search."""
    are_seeds = all(len(row.by_seed(lambda run: run.number)) == len(row.runs) for row in comparison.rows)
    return "seeds" if are_seeds and comparison.search is None else "runs"


COMMAND = "run it "
"""Label of the lines with the command of the recommended combination."""


def notes(comparison: Comparison, most: int = 4) -> list[str]:
    """Return the lines below the table: the answer, the command, the differences, warnings, and unfinished runs.

    Args:
        comparison: The comparison.
        most: The maximum number of differences and of unfinished runs; the files have all.
    """
    answer = answer_of(comparison)
    marks = [f"* {best_mark(comparison)}"] if comparison.choice.rows else []
    marks += [f"= baseline: {comparison.baseline.label}"] if comparison.baseline else []
    differences = [f"  {line}" for line in answer.sentences]
    return [
        *(["; ".join(marks)] if marks and len(comparison.rows) > 1 else []),
        answer.choice,
        *(f"{COMMAND:11} {command}" for command in answer.commands),
        *(["compared with the baseline:", *_cut(differences, most)] if differences else []),
        *answer.notes,
        *(f"warning: {line}" for line in comparison.warnings),
        *_cut(answer.unfinished, most),
    ]


def _cut(lines: Sequence[str], most: int) -> list[str]:
    more = len(lines) - most
    return [*lines[:most], f"  … and {more} more in comparison.md"] if more > 0 else list(lines)


def markdown(comparison: Comparison) -> str:
    """Return the comparison as Markdown: the answer, the table with all columns, and the unfinished runs."""
    answer, plain = answer_of(comparison), tables.plain_markdown
    columns = shown_columns(comparison)
    baseline = ", `=` baseline" if comparison.baseline else ""
    marks = f"`*` {best_mark(comparison)}{baseline}. Values are means ± standard deviations over the runs of a row."
    remarks = [*answer.notes, *(f"Warning: {line}" for line in comparison.warnings), *answer.unfinished]
    parts = [
        [f"# Comparison of {plain(comparison.title)}"],
        [plain(answer.choice)],
        [f"    {printable(command)}" for command in answer.commands],
        [tables.markdown(_cells(comparison, columns)).rstrip()] if comparison.rows else [],
        [marks] if comparison.rows else [],
        [f"- {plain(line)}" for line in remarks],
        [f"- {plain(column.heading)} ({plain(column.key)}): {plain(column.meaning)}" for column in columns],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def as_csv(comparison: Comparison) -> str:
    """Return all rows as CSV with all numbers at full precision, settings first.

    A figure is followed by its standard deviation over runs (`_std`) and the ends of its interval (`_low`, `_high`),
    if any row has them. Unfinished runs come last, with their status.
    """
    chosen = comparison.choice
    tied = (chosen.best, *chosen.tied) if chosen.tied else ()
    columns = columns_of(comparison)
    lines: list[dict[str, Any]] = []
    for row in comparison.rows:
        line: dict[str, Any] = {name: row.runs[0].setting(name) or "" for name in comparison.names}
        line |= {"status": "FINISHED", "n": len(row.runs), "seeds": " ".join(run.seed for run in row.runs if run.seed)}
        marks = {"best": row in chosen.rows, "tied": row in tied, "baseline": row is comparison.baseline}
        line |= {name: str(mark).lower() for name, mark in marks.items()}
        for column in columns:
            figures = zip(("", "_std", "_low", "_high"), column.figures.get(row, ()), strict=False)
            line |= {column.key + suffix: repr(value) for suffix, value in figures if value is not None}
        lines.append(line)
    for run in comparison.runs:
        if not run.has_finished:
            settings = {name: run.setting(name) or "" for name in comparison.names}
            lines.append({**settings, "status": run.status, "n": 0, "seeds": run.seed or ""})
    import pandas as pd  # half a second to import

    return str(pd.DataFrame(lines).to_csv(index=False))


def varied(comparison: Comparison) -> dict[str, str]:
    """Return the settings that differ between the rows, with their values."""
    values = {name: dict.fromkeys(row.settings.get(name, "") for row in comparison.rows) for name in comparison.names}
    return {name: ", ".join(texts) for name, texts in values.items()}


def winning(comparison: Comparison) -> dict[str, float]:
    """Return the best validation and test metrics of the recommended row, and its speed relative to the baseline."""
    row = next(iter(comparison.choice.rows), None)
    if row is None:
        return {}
    names = sorted(name for name in row.metrics if name.startswith(("val/best_", "test/")))
    means = {name: mean for name in names if (mean := row.mean(name)) is not None}
    return means | ({"speed_up": comparison.speeds[row].ratio} if row in comparison.speeds else {})


class Swatch(NamedTuple):
    """The style of a row's curve, as shown in the legend and the table."""

    color: str
    dashes: str
    """A value for `stroke-dasharray` of SVG."""


def page(comparison: Comparison) -> str:
    """Return the page as HTML."""
    import jinja2
    import matplotlib

    with matplotlib.rc_context(STYLE):
        curves = draw_curves(comparison)
    template = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, finalize=_escaped
    )
    answer, columns = answer_of(comparison), shown_columns(comparison)
    labels = [row.label for row in comparison.rows if row.settings]
    of_settings = list(comparison.names) if len(comparison.names) <= MAX_SETTINGS else []
    first, rest = columns[:MAIN_COLUMNS], columns[MAIN_COLUMNS:]
    styles = styles_of(comparison)
    return template.from_string(TEMPLATE.read_text("utf-8")).render(
        comparison=comparison,
        answer=answer,
        sentence=pieces(answer.choice, labels),
        marks=marks_of(comparison),
        counted=_runs_heading(comparison),
        of_settings=of_settings,
        columns=first,
        others=_parts(rest),
        meanings=[column for column in columns if column.meaning],
        sorted_by=metric_label(comparison.choice.metric) if comparison.choice.metric else "",
        curves=_image(curves) if curves is not None else None,
        swatches={row: Swatch(COLORS[place], DASHES[place]) for row, place in styles.items()} if curves else {},
        compared=(DIFFERENCE, SPEED_UP),
        is_open=comparison.search is None and best_mark(comparison) != "winner",
        parts=breakable,
    )


def _parts(columns: Sequence[Column]) -> list[Sequence[Column]]:
    """Return the columns in parts of about equal size, each of at most `MAX_TABLE_COLUMNS`."""
    tables = math.ceil(len(columns) / MAX_TABLE_COLUMNS)
    ends = [len(columns) * place // tables for place in range(1, tables + 1)] if tables else []
    return [columns[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def breakable(name: str) -> list[str]:
    """Return the parts of a name between which the page may break a line.

    A name breaks after dots and at spaces. Parts longer than `LONG_PART` also break after `_`, `/` and `=`.
    """
    parts = re.findall(r"[^.\s]+\.?|\.|\s+", name)
    return [piece for part in parts for piece in (re.findall(r"[^_/=]{1,16}[_/=]?|[_/=]", part)
            if len(part) > LONG_PART else [part])]  # fmt: skip


def pieces(text: str, labels: Sequence[str]) -> list[tuple[bool, str]]:
    """Split a text at the labels in it; return the parts, and for each whether it is a label."""
    longest = sorted(map(re.escape, labels), key=len, reverse=True)
    if not longest:
        return [(False, text)]
    parts = re.split(f"(?<!\\S)({'|'.join(longest)})(?![^\\s.,:;])", text)
    return [(place % 2 == 1, part) for place, part in enumerate(parts) if part]


def _escaped(value: Any) -> Any:
    """Return a value for the page, with control characters escaped if it is a text."""
    return printable_lines(value) if type(value) is str else value


def _image(figure: "Figure") -> str:
    """Return a figure as a data URL for the page."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", transparent=True)
    return f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}"


def write(comparison: Comparison, folder: Path) -> list[Path]:
    """Write `comparison.md`, `comparison.csv` and `comparison.html`; return their paths."""
    texts = {"md": markdown(comparison), "csv": as_csv(comparison), "html": page(comparison)}
    for suffix, text in texts.items():
        atomic_write(folder / f"comparison.{suffix}", text, durable=False)
    return [folder / f"comparison.{suffix}" for suffix in texts]
