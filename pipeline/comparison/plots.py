"""Plots of a comparison: accuracy against speed, and the learning curves of all runs."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.comparison.comparison import Comparison
from pipeline.comparison.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVES = ("val/loss", "val/accuracy", "train/loss", "train/accuracy")
"""Metrics of an epoch, a panel each."""

MOST_NAMED = 8
"""Rows that have a color and a name of their own; of more, the best, the baseline and the first ones."""

MOST_LINES = 100
"""Curves that are drawn as lines in an SVG; those without a name become an image where there are more."""

WIDEST_IN_TWO_COLUMNS = 60
"""Characters of a legend's label."""

_MARKERS = "osD^vPX*"


INK = "#777c83"
"""Text and axes."""

GRID = "#9aa0a6"
COLORS = ("#007fc7", "#cc5100", "#008a66", "#b9559b", "#8a7800", "#786ece", "#dd3f36", "#3f829c")
"""Rows with a name. Each has a contrast of 4 or more on white and on the page's dark ground; markers tell them apart in
color blindness as well."""


class Figures(NamedTuple):
    """The figures of a comparison; None where there is nothing to draw."""

    speed: "Figure | None"
    curves: "Figure | None"


def draw(comparison: Comparison) -> Figures:
    """Draws accuracy against speed, and the learning curves: laid out once, for all files that show them."""
    figures = Figures(draw_speed(comparison), draw_curves(comparison))
    for figure in figures:
        if figure is not None and (layout := figure.get_layout_engine()) is not None:
            layout.execute(figure)
            figure.set_layout_engine(None)  # or each file would lay it out again, which takes longer than drawing
    return figures


def speed_points(comparison: Comparison) -> tuple[str, list[tuple[int, float, float]]]:
    """Returns the metric that stands for accuracy, and (number, speed, accuracy) of each row that has both.

    It is one of validation where all have it: who picks a point of the plot chooses.
    """
    rows = comparison.rows
    metric = "val/best_accuracy" if all("val/best_accuracy" in row.metrics for row in rows) else "test/accuracy"
    points = [(number, row.speed, row.mean(metric)) for number, row in enumerate(rows)]
    return metric, [
        (number, speed, accuracy)
        for number, speed, accuracy in points
        if speed is not None and accuracy is not None and math.isfinite(speed) and math.isfinite(accuracy)
    ]


def pareto_front(points: Sequence[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
    """Returns the points that no other beats in speed and in accuracy at once, the fastest first."""
    front: list[tuple[int, float, float]] = []
    for point in sorted(points, key=lambda point: (-point[1], -point[2])):
        if not front or point[2] > front[-1][2]:
            front.append(point)
    return front


def named_rows(comparison: Comparison) -> dict[int, int]:
    """Returns the rows that are drawn with a name, and the number of their color."""
    numbers = range(len(comparison.rows))
    first = [number for number in numbers if comparison.rows[number] in (comparison.best, comparison.baseline)]
    chosen = list(dict.fromkeys([*first, *numbers]))[:MOST_NAMED]
    return {number: place for place, number in enumerate(sorted(chosen))}


def draw_speed(comparison: Comparison) -> "Figure | None":
    """Draws accuracy against speed with its Pareto front; None where no row has both."""
    metric, points = speed_points(comparison)
    if not points:
        return None
    figure, axes = _figure(9.6, 4.4, 1)
    named = named_rows(comparison)
    front = [(speed, 100 * accuracy) for _, speed, accuracy in pareto_front(points)]
    if len(front) > 1:
        axes[0].plot(*zip(*front, strict=True), "--", color=INK, linewidth=1, label="Pareto front", zorder=1)
    others = [(speed, 100 * accuracy) for number, speed, accuracy in points if number not in named]
    if others:
        axes[0].plot(*zip(*others, strict=True), ".", color=INK, label=f"{len(others)} more", zorder=2)
    for number, speed, accuracy in points:
        if number in named:
            place = named[number]
            row = comparison.rows[number]
            std = row.std(metric)
            axes[0].errorbar(
                speed, 100 * accuracy, None if std is None else 100 * std,
                fmt=_MARKERS[place], color=COLORS[place], markersize=7, capsize=3, label=_name(comparison, row),
                zorder=3,
            )  # fmt: skip
    axes[0].set(xlabel=_rate(comparison), ylabel=f"{metric}, %")
    axes[0].margins(0.12)
    _legend(figure, axes[0])
    return figure


def draw_curves(comparison: Comparison) -> "Figure | None":
    """Draws what all runs have learned, a panel a metric and a line a run; None where no run has epochs."""
    from matplotlib.collections import LineCollection

    histories = [[run.history for run in row.runs] for row in comparison.rows]
    panels = [
        name
        for name in CURVES
        if any(name in values for row in histories for history in row for values in history.values())
    ]
    if not panels:
        return None
    figure, axes = _figure(9.6, 1.0 + 2.9 * math.ceil(len(panels) / 2), len(panels))
    named = named_rows(comparison)
    for panel, name in zip(axes, panels, strict=True):
        labelled: set[int] = set()
        others = []
        for number, epochs, values in _lines(histories, name):
            if number not in named:
                others.append(list(zip(epochs, values, strict=True)))
                continue
            place = named[number]
            panel.plot(
                epochs, values, color=COLORS[place], marker=_MARKERS[place] if len(epochs) <= 30 else None,
                markersize=4, linewidth=1.4, alpha=0.9,
                label="" if number in labelled else _name(comparison, comparison.rows[number]),
            )  # fmt: skip
            labelled.add(number)
        if others:
            is_image = len(others) > MOST_LINES
            lines = LineCollection(others, colors=INK, linewidths=0.6, zorder=1, rasterized=is_image)
            panel.add_collection(lines)
            panel.autoscale()
        panel.set(xlabel="epoch", ylabel=name)
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.margins(x=0.04)
    _legend(figure, axes[0])
    return figure


def _lines(
    histories: Sequence[Sequence[dict[int, dict[str, float]]]], name: str
) -> Iterator[tuple[int, list[int], list[float]]]:
    for number, row in enumerate(histories):
        for history in row:
            epochs = [epoch for epoch in sorted(history) if name in history[epoch]]
            if epochs:
                yield number, epochs, [history[epoch][name] for epoch in epochs]


def _figure(width: float, height: float, panels: int) -> "tuple[Figure, list[Any]]":
    from matplotlib.figure import Figure  # half a second to import

    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(math.ceil(panels / 2), min(panels, 2), squeeze=False).ravel()
    for axes in grid[panels:]:
        axes.remove()
    for axes in grid[:panels]:
        axes.set_facecolor("none")
        axes.grid(color=GRID, linewidth=0.6, alpha=0.4)
        axes.set_axisbelow(True)
        axes.tick_params(colors=INK)
        axes.xaxis.label.set_color(INK)
        axes.yaxis.label.set_color(INK)
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(INK)
    return figure, list(grid[:panels])


def _legend(figure: "Figure", axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        ncols = 2 if max(map(len, labels)) <= WIDEST_IN_TWO_COLUMNS else 1
        figure.legend(
            handles, labels, loc="outside lower center", ncols=ncols, frameon=False, labelcolor=INK, fontsize=9
        )


def _name(comparison: Comparison, row: Row) -> str:
    marks = [name for name, other in (("best", comparison.best), ("baseline", comparison.baseline)) if row is other]
    several = len(comparison.rows) > 1
    return row.label.replace("$", r"\$") + (f" ({', '.join(marks)})" if marks and several else "")


def _rate(comparison: Comparison) -> str:
    is_images = any("train/images_per_second" in row.metrics for row in comparison.rows)
    return "training images per second" if is_images else "training features per second"
