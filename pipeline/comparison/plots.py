"""Plots of a comparison: accuracy against speed, and the learning curves of all runs."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pipeline.comparison.comparison import Comparison
from pipeline.comparison.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVES = ("val/loss", "val/accuracy", "train/loss", "train/accuracy")
"""Metrics of an epoch, a panel each."""

MOST_LINES = 100
"""Curves that are drawn as lines in an SVG; those without a name become an image where there are more."""

WIDEST_IN_TWO_COLUMNS = 60
"""Characters of a legend's label."""

INK = "#777c83"
"""Text, axes, and rows without a name."""

COLORS = ("#007fc7", "#cc5100", "#008a66", "#b9559b", "#8a7800", "#786ece", "#dd3f36", "#3f829c")
"""Rows with a name; of more rows the best, the baseline and the first ones have one.

Each has a contrast of 4 or more on white and on the page's dark ground; markers tell them apart in color blindness as
well.
"""

_MARKERS = "osD^vPX*"

Point = TypeVar("Point", bound=tuple[Any, float, float])


class Figures(NamedTuple):
    """The figures of a comparison; None where there is nothing to draw."""

    speed: "Figure | None"
    curves: "Figure | None"


def draw(comparison: Comparison) -> Figures:
    """Draw accuracy against speed, and the learning curves: laid out once, for all files that show them."""
    figures = Figures(draw_speed(comparison), draw_curves(comparison))
    for figure in figures:
        if figure is not None and (layout := figure.get_layout_engine()) is not None:
            layout.execute(figure)
            figure.set_layout_engine(None)  # or each file would lay it out again, which takes longer than drawing
    return figures


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """Return the points (what, speed, accuracy) that no other beats in both at once, the fastest first."""
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (-point[1], -point[2])):
        if not front or point[2] > front[-1][2]:
            front.append(point)
    return front


def draw_speed(comparison: Comparison) -> "Figure | None":
    """Draw accuracy against speed with its Pareto front; None where no row has both, and of a search.

    The accuracy is one of validation where all have it: who picks a point of the plot chooses.
    """
    rows = comparison.rows
    metric = "val/best_accuracy" if all("val/best_accuracy" in row.metrics for row in rows) else "test/accuracy"
    measured = [(row, row.speed or math.nan, 100 * (row.mean(metric) or math.nan)) for row in rows]
    points = [point for point in measured if math.isfinite(point[1] + point[2])]
    if not points or comparison.search is not None:
        return None
    figure, [axes] = _figure(9.6, 4.4, 1)
    styles = _styles(comparison)
    front = [point[1:] for point in pareto_front(points)]
    if len(front) > 1:
        axes.plot(*zip(*front, strict=True), "--", color=INK, linewidth=1, label="Pareto front", zorder=1)
    others = [point[1:] for point in points if point[0] not in styles]
    if others:
        axes.plot(*zip(*others, strict=True), ".", color=INK, label=f"{len(others)} more", zorder=2)
    for row, speed, accuracy in points:
        if row in styles:
            std = row.std(metric)
            bar = None if std is None else 100 * std
            axes.errorbar(speed, accuracy, bar, **styles[row], linestyle="", markersize=7, capsize=3, zorder=3)
    is_images = any("train/images_per_second" in row.metrics for row in rows)
    axes.set(xlabel=f"training {'images' if is_images else 'features'} per second", ylabel=f"{metric}, %")
    axes.margins(0.12)
    _legend(figure, axes)
    return figure


def draw_curves(comparison: Comparison) -> "Figure | None":
    """Draw what all runs have learned, a panel a metric and a line a run; None where no run has epochs."""
    histories = [(row, run.history) for row in comparison.rows for run in row.runs]
    panels = [name for name in CURVES if any(name in values for _, epochs in histories for values in epochs.values())]
    if not panels:
        return None
    figure, axes = _figure(9.6, 1.0 + 2.9 * math.ceil(len(panels) / 2), len(panels))
    styles = _styles(comparison)
    for panel, name in zip(axes, panels, strict=True):
        lines = [
            (row, [(epoch, history[epoch][name]) for epoch in sorted(history) if name in history[epoch]])
            for row, history in histories
        ]
        _draw_lines(panel, [line for line in lines if line[1]], styles)
        panel.set(xlabel="epoch", ylabel=name)
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.margins(x=0.04)
    _legend(figure, axes[0])
    return figure


def _draw_lines(
    panel: Any, lines: Sequence[tuple[Row, list[tuple[int, float]]]], styles: dict[Row, dict[str, Any]]
) -> None:
    from matplotlib.collections import LineCollection

    labelled: set[Row] = set()
    for row, points in lines:
        if row in styles:
            own = {"label": ""} if row in labelled else {}
            marker = styles[row]["marker"] if len(points) <= 30 else None
            style = {**styles[row], **own, "marker": marker}
            panel.plot(*zip(*points, strict=True), **style, markersize=4, linewidth=1.4, alpha=0.9)
            labelled.add(row)
    others = [points for row, points in lines if row not in styles]
    if others:
        is_image = len(others) > MOST_LINES
        panel.add_collection(LineCollection(others, colors=INK, linewidths=0.6, zorder=1, rasterized=is_image))
        panel.autoscale()


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


def _figure(width: float, height: float, panels: int) -> "tuple[Figure, list[Any]]":
    from matplotlib.figure import Figure  # half a second to import

    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(math.ceil(panels / 2), min(panels, 2), squeeze=False).ravel()
    for axes in grid[panels:]:
        axes.remove()
    for axes in grid[:panels]:
        axes.set_facecolor("none")
        axes.grid(color=INK, linewidth=0.6, alpha=0.3)
        axes.set_axisbelow(True)
        axes.tick_params(colors=INK)
        axes.xaxis.label.set_color(INK)
        axes.yaxis.label.set_color(INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(INK)
    return figure, list(grid[:panels])


def _legend(figure: "Figure", axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        ncols = 2 if max(map(len, labels)) <= WIDEST_IN_TWO_COLUMNS else 1
        figure.legend(
            handles, labels, loc="outside lower center", ncols=ncols, frameon=False, labelcolor=INK, fontsize=9
        )
