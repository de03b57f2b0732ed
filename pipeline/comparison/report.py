"""Output of a comparison: the terminal, Markdown, CSV, learning curves, and one HTML page without other files."""

import base64
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.table import Table

from pipeline.comparison.answer import answer, best_mark, marks_of
from pipeline.comparison.comparison import Comparison
from pipeline.comparison.curves import COLORS, DASHES, STYLE, draw_curves, styles_of
from pipeline.comparison.frame import DIFFERENCE, SPEED_UP, Column, columns_of, shown_columns
from pipeline.comparison.words import metric_name
from pipeline.console import wrapped_lines
from stages import tables
from stages.errors import printable, printable_lines
from stages.storage.atomic import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATE = Path(__file__).with_name("page.html")

MOST_COLUMNS = 3
"""Columns of figures on a terminal, without the difference, which has lines of its own; the files have all."""

MAIN_COLUMNS = 4
"""Columns of figures in the first table of the page, next to the settings."""

MOST_SETTINGS = 3
"""Settings that have a column each on the page; more of them share one."""

LONGEST = 20
"""Letters of a part of a name in which the page breaks no line."""

WIDEST = 6
"""Columns of figures in each of the page's other tables."""


def terminal_table(comparison: Comparison) -> Table:
    """Return a table of the most important columns; a terminal folds long settings."""
    table = Table(
        title=printable(comparison.title), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    columns = [column for column in shown_columns(comparison) if column.key != DIFFERENCE][:MOST_COLUMNS]
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
    """Print the table and the lines below it."""
    if comparison.rows:
        console.print(terminal_table(comparison))
    for note in notes(comparison):
        lines = [note] if note.startswith(COMMAND) else wrapped_lines(note, console.width)
        for line in lines:
            console.print(printable(line), soft_wrap=True)


def _cells(comparison: Comparison, columns: Sequence[Column], interval: bool = True) -> list[list[str]]:
    """Return the header of a table and a line per row: its marks, settings, number of seeds and figures."""
    lines = [["", *comparison.names, _counted(comparison), *(column.heading for column in columns)]]
    for row in comparison.ranked:
        marks = "*" * (row in comparison.choice.rows) + "=" * (row is comparison.baseline)
        cells = [marks if len(comparison.rows) > 1 else "", *(row.settings.get(name, "") for name in comparison.names)]
        lines.append([*cells, str(len(row.runs)), *(column.text(row, interval) for column in columns)])
    return lines


def _counted(comparison: Comparison) -> str:
    """Return what the runs of a row are: seeds, unless a seed was repeated."""
    are_seeds = all(len(row.by_seed(lambda run: run.number)) == len(row.runs) for row in comparison.rows)
    return "seeds" if are_seeds and comparison.search is None else "runs"


COMMAND = "run it "
"""Label of the lines with the command of the combination to take."""


def notes(comparison: Comparison, most: int = 4) -> list[str]:
    """Return the lines below the table: the answer, the command, the differences, warnings, and unfinished runs.

    Args:
        most: the number of differences and unfinished runs; the files have all.
    """
    said = answer(comparison)
    marks = [f"* {best_mark(comparison)}"] if comparison.choice.rows else []
    marks += [f"= baseline: {comparison.baseline.label}"] if comparison.baseline else []
    differences = [f"  {line}" for line in said.sentences]
    return [
        *(["; ".join(marks)] if marks and len(comparison.rows) > 1 else []),
        said.choice,
        *(f"{COMMAND:11} {command}" for command in said.commands),
        *(["compared with the baseline:", *_cut(differences, most)] if differences else []),
        *said.notes,
        *(f"warning: {line}" for line in comparison.warnings),
        *_cut(said.unfinished, most),
    ]


def _cut(lines: Sequence[str], most: int) -> list[str]:
    more = len(lines) - most
    return [*lines[:most], f"  … and {more} more in comparison.md"] if more > 0 else list(lines)


def markdown(comparison: Comparison) -> str:
    """Return the comparison as Markdown: the answer, the table with every column, the unfinished runs."""
    said, plain = answer(comparison), tables.plain_markdown
    columns = shown_columns(comparison)
    baseline = ", `=` baseline" if comparison.baseline else ""
    marks = f"`*` {best_mark(comparison)}{baseline}. Values are means ± standard deviations over the runs of a row."
    remarks = [*said.notes, *(f"Warning: {line}" for line in comparison.warnings), *said.unfinished]
    parts = [
        [f"# Comparison of {plain(comparison.title)}"],
        [plain(said.choice)],
        [f"    {printable(command)}" for command in said.commands],
        [tables.markdown(_cells(comparison, columns)).rstrip()] if comparison.rows else [],
        [marks] if comparison.rows else [],
        [f"- {plain(line)}" for line in remarks],
        [f"- {plain(column.heading)} ({plain(column.key)}): {plain(column.meaning)}" for column in columns],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def as_csv(comparison: Comparison) -> str:
    """Return every row with all its numbers at full precision, settings first.

    Each figure is followed by its `_std` over runs and the `_low` and `_high` ends of its interval, if any row has
    them. The runs that have not finished come last, with their status.
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
    return {name: ", ".join(found) for name, found in values.items()}


def winning(comparison: Comparison) -> dict[str, float]:
    """Return the best validation and test metrics of the row to take, and its speed relative to the baseline."""
    row = next(iter(comparison.choice.rows), None)
    if row is None:
        return {}
    names = sorted(name for name in row.metrics if name.startswith(("val/best_", "test/")))
    found = {name: mean for name in names if (mean := row.mean(name)) is not None}
    return found | ({"speed_up": comparison.speeds[row].ratio} if row in comparison.speeds else {})


class Swatch(NamedTuple):
    """Appearance of the curve of a row in the legend and the table."""

    color: str
    dashes: str
    """Of SVG's `stroke-dasharray`."""


def page(comparison: Comparison) -> str:
    """Return the page as HTML."""
    import jinja2
    import matplotlib

    with matplotlib.rc_context(STYLE):
        curves = draw_curves(comparison)
    template = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, finalize=_shown
    )
    said, columns = answer(comparison), shown_columns(comparison)
    labels = [row.label for row in comparison.rows if row.settings]
    of_settings = list(comparison.names) if len(comparison.names) <= MOST_SETTINGS else []
    first, rest = columns[:MAIN_COLUMNS], columns[MAIN_COLUMNS:]
    styles = styles_of(comparison)
    return template.from_string(TEMPLATE.read_text("utf-8")).render(
        comparison=comparison,
        said=said,
        sentence=pieces(said.choice, labels),
        marks=marks_of(comparison),
        counted=_counted(comparison),
        of_settings=of_settings,
        columns=first,
        others=_parts(rest),
        meanings=[column for column in columns if column.meaning],
        sorted_by=metric_name(comparison.choice.metric) if comparison.choice.metric else "",
        curves=_image(curves) if curves is not None else None,
        swatches={row: Swatch(COLORS[place], DASHES[place]) for row, place in styles.items()} if curves else {},
        compared=(DIFFERENCE, SPEED_UP),
        is_open=comparison.search is None and best_mark(comparison) != "winner",
        parts=breakable,
    )


def _parts(columns: Sequence[Column]) -> list[Sequence[Column]]:
    """Return the columns in parts of `WIDEST` at most, which are about equally large."""
    tables = math.ceil(len(columns) / WIDEST)
    ends = [len(columns) * place // tables for place in range(1, tables + 1)] if tables else []
    return [columns[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def breakable(name: str) -> list[str]:
    """Return the parts of a name between which the page may break a line: those between dots, if they are short."""
    parts = re.findall(r"[^.\s]+\.?|\.|\s+", name)
    return [piece for part in parts for piece in (re.findall(r"[^_/=]{1,16}[_/=]?|[_/=]", part)
            if len(part) > LONGEST else [part])]  # fmt: skip


def pieces(text: str, labels: Sequence[str]) -> list[tuple[bool, str]]:
    """Return the parts of a text, and for each whether it is one of the labels."""
    longest = sorted(map(re.escape, labels), key=len, reverse=True)
    if not longest:
        return [(False, text)]
    parts = re.split(f"(?<!\\S)({'|'.join(longest)})(?![^\\s.,:;])", text)
    return [(place % 2 == 1, part) for place, part in enumerate(parts) if part]


def _shown(value: Any) -> Any:
    """Return a value as the page shows it: control characters in a text are escaped."""
    return printable_lines(value) if type(value) is str else value


def _image(figure: "Figure") -> str:
    """Return the address of a figure that the page itself holds."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", transparent=True)
    return f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}"


def write(comparison: Comparison, folder: Path) -> list[Path]:
    """Write `comparison.md`, `.csv` and `.html`; return their paths."""
    texts = {"md": markdown(comparison), "csv": as_csv(comparison), "html": page(comparison)}
    for suffix, text in texts.items():
        atomic_write(folder / f"comparison.{suffix}", text, durable=False)
    return [folder / f"comparison.{suffix}" for suffix in texts]
