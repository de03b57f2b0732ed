"""A comparison on the terminal, in Markdown, as CSV, as curves, as one HTML page that needs nothing else."""

import base64
import io
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from pipeline.comparison.answer import answer
from pipeline.comparison.comparison import Comparison
from pipeline.comparison.frame import Column, columns_of, shown_columns
from pipeline.comparison.rows import Row
from pipeline.run_folder.runs import epoch_metrics
from stages import tables
from stages.errors import printable, printable_lines
from stages.storage.atomic import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATE = Path(__file__).with_name("page.html")

MOST_COLUMNS = 4
"""Columns of figures on a terminal; the files have all."""


def terminal_table(comparison: Comparison) -> Table:
    """Return the rows with the most important columns; a terminal folds long settings."""
    table = Table(
        title=printable(comparison.title), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    header, *lines = _cells(comparison, shown_columns(comparison)[:MOST_COLUMNS], interval=False)
    for place, name in enumerate(header):
        is_setting = place <= len(comparison.names)
        table.add_column(
            printable(name), overflow="fold", no_wrap=not is_setting, justify="left" if is_setting else "right"
        )
    for line in lines:
        table.add_row(*map(printable, line))
    return table


def show(comparison: Comparison, console: Console) -> None:
    """Prints the table, and what is said below it."""
    if comparison.rows:
        console.print(terminal_table(comparison))
    for line in notes(comparison):
        console.print(printable(line))


def _cells(comparison: Comparison, columns: Sequence[Column], interval: bool = True) -> list[list[str]]:
    """Return the header of a table and a line for each row: its marks, settings, runs and figures."""
    lines = [["", *comparison.names, "n", *(column.heading for column in columns)]]
    for row in comparison.rows:
        marks = "*" * (row in comparison.choice.rows) + "=" * (row is comparison.baseline)
        cells = [marks if len(comparison.rows) > 1 else "", *(row.settings.get(name, "") for name in comparison.names)]
        lines.append([*cells, str(len(row.runs)), *(column.text(row, interval) for column in columns)])
    return lines


def notes(comparison: Comparison, most: int = 4) -> list[str]:
    """Return what is said below the table: the choice, the answers, the warnings, and what has not finished.

    Args:
        most: sentences and unfinished runs at most; the files have all.
    """
    said = answer(comparison)
    marks = [f"* {best_mark(comparison)}"] if comparison.choice.rows else []
    marks += [f"= baseline: {comparison.baseline.label}"] if comparison.baseline else []
    return [
        *(["; ".join(marks)] if marks and len(comparison.rows) > 1 else []),
        said.choice,
        *_cut(said.sentences, most),
        *(f"warning: {line}" for line in comparison.warnings),
        *(f"{'run it':11} {command}" for command in said.commands),
        *_cut(said.unfinished, most),
    ]


def _cut(lines: Sequence[str], most: int) -> list[str]:
    more = len(lines) - most
    return [*lines[:most], f"… and {more} more in comparison.md"] if more > 0 else list(lines)


def markdown(comparison: Comparison) -> str:
    """Return the comparison as Markdown: the answer, the table with every column, what has not finished."""
    said, plain = answer(comparison), tables.plain_markdown
    columns = shown_columns(comparison)
    baseline = ", `=` baseline" if comparison.baseline else ""
    marks = f"`*` {best_mark(comparison)}{baseline}; mean ± standard deviation over seeds."
    parts = [
        [f"# Comparison of {plain(comparison.title)}"],
        [f"**{plain(said.choice)}**"],
        [f"    {printable(command)}" for command in said.commands],
        [f"- {plain(line)}" for line in said.sentences],
        [tables.markdown(_cells(comparison, columns)).rstrip()] if comparison.rows else [],
        [marks] if comparison.rows else [],
        [f"- {plain(column.heading)}: {plain(column.key)}" for column in columns],
        [f"- {plain(line)}" for line in (*(f"warning: {line}" for line in comparison.warnings), *said.unfinished)],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def as_csv(comparison: Comparison) -> str:
    """Return every row with all its numbers, at full precision; settings first.

    Beside a figure are its `_std` over runs and the `_low` and `_high` ends of its interval, where any row has them.
    Rows are followed by the runs that have not finished, with their status.
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
    """Return the settings that differ between the rows, each with its values."""
    values = {name: dict.fromkeys(row.settings.get(name, "") for row in comparison.rows) for name in comparison.names}
    return {name: ", ".join(found) for name, found in values.items()}


def winning(comparison: Comparison) -> dict[str, float]:
    """Return the best validation and the test metrics of the row to take, and its speed against the baseline's."""
    row = next(iter(comparison.choice.rows), None)
    if row is None:
        return {}
    names = sorted(name for name in row.metrics if name.startswith(("val/best_", "test/")))
    found = {name: mean for name in names if (mean := row.mean(name)) is not None}
    return found | ({"speed_up": comparison.speeds[row].ratio} if row in comparison.speeds else {})


def best_mark(comparison: Comparison) -> str:
    """Return what the marked row is: `best`, or one of several that cannot be told apart."""
    return "recommended" if comparison.choice.tied else "best"


def page(comparison: Comparison) -> str:
    """Return the page as HTML."""
    import jinja2
    import matplotlib

    with matplotlib.rc_context(STYLE):
        curves = draw_curves(comparison)
    template = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, finalize=_shown
    )
    return template.from_string(TEMPLATE.read_text("utf-8")).render(
        comparison=comparison,
        said=answer(comparison),
        mark=best_mark(comparison),
        columns=shown_columns(comparison),
        curves=_image(curves) if curves is not None else None,
    )


def _shown(value: Any) -> Any:
    """Return what stands for a value on the page: of a text with its control characters as escapes."""
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


INK = "#777c83"
"""Text, axes, and rows without a name."""

STYLE: dict[Any, Any] = {
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), INK),
    "legend.labelcolor": INK,
    "axes.grid": True,
    "grid.alpha": 0.3,
}
"""Of matplotlib."""

COLORS = ("#007fc7", "#cc5100", "#008a66", "#b9559b", "#8a7800", "#786ece", "#dd3f36", "#3f829c")
"""Rows with a name: of more rows the best, the baseline and the first ones.

Each has a contrast of 4 or more on white and on the page's dark ground; markers tell them apart in color blindness as
well.
"""

_MARKERS = "osD^vPX*"


def draw_curves(comparison: Comparison) -> "Figure | None":
    """Draw what the runs of the rows with a name have learned, a panel a metric; None where no run has epochs.

    A row is the mean of its runs, in a band from the lowest to the highest.
    """
    import pandas as pd
    from matplotlib.figure import Figure  # half a second to import

    finite = {name: partial(getattr(pd.Series, name), skipna=False) for name in ("mean", "min", "max")}
    styles = _styles(comparison)
    frames = {}
    for row in styles:
        histories = (epoch_metrics(run.folder) for run in row.runs)
        frames[row] = pd.concat([pd.DataFrame.from_dict(history, orient="index") for history in histories])
    curves = [f"{split}/{metric}" for split in ("val", "train") for metric in ("loss", comparison.primary)]
    panels = [name for name in curves if any(name in frame for frame in frames.values())]
    if not panels:
        return None
    lines = math.ceil(len(panels) / 2)
    figure = Figure(figsize=(9.6, 2.5 + 2.9 * lines), layout="constrained")
    for place, name in enumerate(panels, 1):
        panel: Any = figure.add_subplot(lines, 2, place)
        for row, frame in frames.items():
            if name in frame:
                found = frame[name].groupby(level=0).agg(**finite).dropna()
                panel.plot(found.index, found["mean"], **styles[row], markersize=4, markevery=len(found) // 15 + 1)
                panel.fill_between(
                    found.index, found["min"], found["max"], color=styles[row]["color"], alpha=0.2, linewidth=0
                )
        panel.set(xlabel="epoch", ylabel=name)
        panel.xaxis.get_major_locator().set_params(integer=True)
    by_label = {label: handle for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(by_label.values(), by_label.keys(), loc="outside lower center", frameon=False)
    return figure


def _styles(comparison: Comparison) -> dict[Row, dict[str, Any]]:
    """Return color, marker and label of each row that has a name of its own."""
    rows = comparison.rows
    marked = {"best": comparison.best, "baseline": comparison.baseline}
    chosen = list(dict.fromkeys([*(row for row in marked.values() if row is not None), *rows]))[: len(COLORS)]
    styles = {}
    for row, color, marker in zip(sorted(chosen, key=rows.index), COLORS, _MARKERS, strict=False):
        marks = ", ".join(name for name, other in marked.items() if row is other and len(rows) > 1)
        label = row.label.replace("$", r"\$") + (f" ({marks})" if marks else "")
        styles[row] = {"color": color, "marker": marker, "label": label}
    return styles
