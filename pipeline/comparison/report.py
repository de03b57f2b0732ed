"""Output of a comparison: the terminal, Markdown, CSV, learning curves, and one HTML page without other files."""

import base64
import io
import math
import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.table import Table

from pipeline.comparison.answer import answer
from pipeline.comparison.comparison import Comparison
from pipeline.comparison.frame import DIFFERENCE, SPEED_UP, Column, columns_of, shown_columns
from pipeline.comparison.rows import Row
from pipeline.comparison.words import metric_name
from pipeline.console import wrapped_lines
from pipeline.run_folder.runs import epoch_metrics
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

BREAKABLE = re.compile(r"[^._/=]{1,16}[._/=]?|[._/=]")
"""Parts of a name between which the page may break a line."""

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


def best_mark(comparison: Comparison) -> str:
    """Return what a mark means: the winner, or the default choice if there is none."""
    chosen = comparison.choice
    if comparison.search is not None:
        return "best trials" if len(chosen.rows) > 1 else "best trial"
    return "winner" if chosen.has_seeds and not chosen.tied else "default choice" if chosen.tied else "leader"


class Swatch(NamedTuple):
    """How the legend and the table show the curve of a row."""

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
    styles = _styles(comparison)
    return template.from_string(TEMPLATE.read_text("utf-8")).render(
        comparison=comparison,
        said=said,
        sentence=pieces(said.choice, labels),
        marks=_marks(comparison),
        counted=_counted(comparison),
        of_settings=of_settings,
        columns=first,
        others=_parts(rest),
        meanings=[column for column in columns if column.meaning],
        sorted_by=metric_name(comparison.choice.metric) if comparison.choice.metric else "",
        curves=_image(curves) if curves is not None else None,
        swatches={row: Swatch(COLORS[place], DASHES[place]) for row, place in styles.items()} if curves else {},
        compared=(DIFFERENCE, SPEED_UP),
        parts=lambda name: BREAKABLE.findall(name),
    )


def _parts(columns: Sequence[Column]) -> list[Sequence[Column]]:
    """Return the columns in parts of `WIDEST` at most, which are about equally large."""
    tables = math.ceil(len(columns) / WIDEST)
    ends = [len(columns) * place // tables for place in range(1, tables + 1)] if tables else []
    return [columns[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def pieces(text: str, labels: Sequence[str]) -> list[tuple[bool, str]]:
    """Return the parts of a text, and for each whether it is one of the labels."""
    longest = sorted(map(re.escape, labels), key=len, reverse=True)
    if not longest:
        return [(False, text)]
    parts = re.split(f"(?<!\\S)({'|'.join(longest)})(?![^\\s.,:;])", text)
    return [(place % 2 == 1, part) for place, part in enumerate(parts) if part]


def _marks(comparison: Comparison) -> dict[Row, list[str]]:
    """Return what distinguishes a row: the winner, the baseline."""
    if len(comparison.rows) < 2:
        return {}
    marks = {row: [best_mark(comparison).removesuffix("s")] for row in comparison.choice.rows}
    if comparison.baseline is not None:
        marks.setdefault(comparison.baseline, []).append("baseline")
    return marks


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


INK = "#777c83"
"""Color of text and axes."""

STYLE: dict[Any, Any] = {
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), INK),
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.alpha": 0.3,
    "font.size": 9.5,
}
"""Settings of matplotlib."""

COLORS = ("#007fc7", "#cc5100", "#008a66", "#b9559b", "#8a7800", "#786ece", "#dd3f36", "#3f829c")
"""Colors of the rows that are drawn: the ones to take, the baseline and the next best ones.

Each has a contrast of 4 or more on white and on the page's dark background. Line styles and letters distinguish them
for readers who see no colors.
"""

DASHES = ("", "7 3", "2 2", "9 3 2 3", "12 2", "5 2 1 2 1 2", "1 3", "10 3 5 3")
"""Line styles of these rows, as lengths of dashes and gaps in pixels."""

LOG_RATIO = 30
"""Ratio of the largest to the smallest loss of a panel from which on its axis is logarithmic."""

GAP = 0.065
"""Smallest distance of two labels at the ends of curves, as a fraction of the panel's height."""


def draw_curves(comparison: Comparison) -> "Figure | None":
    """Draw the learning curves, a panel per metric; None if no run has epochs.

    A curve is the mean of a row's runs. The rows to take and the baseline also have a band from the lowest to the
    highest run; if there are few rows, all have one.
    """
    import pandas as pd
    from matplotlib.figure import Figure  # half a second to import

    styles, marks = _styles(comparison), _marks(comparison)
    frames = {}
    for row in styles:
        histories = (epoch_metrics(run.folder) for run in row.runs)
        frames[row] = pd.concat([pd.DataFrame.from_dict(history, orient="index") for history in histories])
    curves = [f"{split}/{metric}" for split in ("val", "train") for metric in ("loss", comparison.primary)]
    panels = [name for name in curves if any(name in frame for frame in frames.values())]
    if not panels:
        return None
    lines = math.ceil(len(panels) / 2)
    figure = Figure(figsize=(11, 0.3 + 3.1 * lines), layout="constrained")
    banded = [row for row in styles if row in marks or len(styles) <= 4]
    for place, name in enumerate(panels, 1):
        panel: Any = figure.add_subplot(lines, 2, place)
        drawn = {row: _mean_and_range(frame[name]) for row, frame in frames.items() if name in frame}
        for row, found in drawn.items():
            _draw_curve(panel, found, styles[row], row in comparison.choice.rows, row in banded)
        panel.set(xlabel="epoch", title=metric_name(name).removesuffix(" in the last epoch"))
        panel.title.set_color(INK)
        panel.xaxis.get_major_locator().set_params(integer=True)
        if name.endswith("loss") and _spans(drawn.values()):
            panel.set_yscale("log")
            panel.yaxis.set_major_formatter("{x:g}")
        _label_ends(panel, {comparison.ids[row]: (found, COLORS[styles[row]]) for row, found in drawn.items()})
    return figure


def _mean_and_range(values: Any) -> Any:
    """Return the mean, the lowest and the highest value of each epoch, of those that all runs have."""
    import pandas as pd

    finite = {name: partial(getattr(pd.Series, name), skipna=False) for name in ("mean", "min", "max")}
    return values.groupby(level=0).agg(**finite).dropna()


def _draw_curve(panel: Any, found: Any, place: int, is_best: bool, has_band: bool) -> None:
    width, color = (2.8 if is_best else 1.5), COLORS[place]
    dashes = tuple(float(length) / width for length in DASHES[place].split())
    style = (0, dashes) if dashes else "-"
    few = {"marker": "o", "markersize": 4} if len(found) < 2 else {}
    panel.plot(found.index, found["mean"], color=color, linestyle=style, linewidth=width, zorder=2 + is_best, **few)
    if has_band:
        panel.fill_between(found.index, found["min"], found["max"], color=color, alpha=0.15, linewidth=0)


def _spans(drawn: Iterable[Any]) -> bool:
    """Return whether positive means are so far apart that a linear axis would hide the small ones."""
    means = [value for found in drawn for value in found["mean"]]
    return bool(means) and min(means) > 0 and max(means) > LOG_RATIO * min(means)


def _label_ends(panel: Any, ends: dict[str, tuple[Any, str]]) -> None:
    """Write the short name of each curve at its end, where labels do not overlap."""
    low, high = panel.get_ylim()
    scale = panel.yaxis.get_transform().transform
    bottom, top = scale([low])[0], scale([high])[0]
    heights = {
        name: (scale([found["mean"].iloc[-1]])[0] - bottom) / (top - bottom)
        for name, (found, _) in ends.items()
        if len(found)
    }
    below = -1.0
    for name in sorted(heights, key=lambda name: heights[name]):
        below = heights[name] = max(heights[name], below + GAP)
    above = 1.0 + GAP
    for name in sorted(heights, key=lambda name: -heights[name]):
        above = heights[name] = min(heights[name], above - GAP)
        panel.text(1.015, above, name, color=ends[name][1], transform=panel.transAxes, va="center", weight="bold")


def _styles(comparison: Comparison) -> dict[Row, int]:
    """Return the rows that are drawn, each with the place of its color and line style."""
    first = [*comparison.choice.rows, *([comparison.baseline] if comparison.baseline else []), *comparison.ranked]
    chosen = list(dict.fromkeys(first))[: len(COLORS)]
    return {row: place for place, row in enumerate(sorted(chosen, key=comparison.ranked.index))}
