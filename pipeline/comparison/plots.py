"""Plots of a comparison: the task's first metric against speed, and learning curves."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.comparison.comparison import Comparison
from pipeline.comparison.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#777c83"
"""Text, axes, and rows without a name."""

STYLE: dict[Any, Any] = {
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), INK),
    "legend.labelcolor": INK,
    "axes.grid": True,
    "grid.alpha": 0.3,
}
"""Of matplotlib, for both figures."""

COLORS = ("#007fc7", "#cc5100", "#008a66", "#b9559b", "#8a7800", "#786ece", "#dd3f36", "#3f829c")
"""Rows with a name: of more rows the best, the baseline and the first ones.

Each has a contrast of 4 or more on white and on the page's dark ground; markers tell them apart in color blindness as
well.
"""

_MARKERS = "osD^vPX*"

Point = TypeVar("Point", bound=tuple[Any, float, float])


def pareto_front(points: Sequence[Point], sign: int = 1) -> list[Point]:
    """Return the points (what, speed, metric) that no other beats in both at once, the fastest first.

    Args:
        sign: -1 where less of the metric is better.
    """
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (-point[1], -sign * point[2])):
        if not front or sign * point[2] > sign * front[-1][2]:
            front.append(point)
    return front


def draw_speed(comparison: Comparison) -> "Figure | None":
    """Draw the task's first metric against speed with its Pareto front; None where no row has both, and of a search.

    The metric is one of validation where all have it: who picks a point of the plot chooses.
    """
    rows, primary = comparison.rows, comparison.primary
    metric = next((name for name in (f"val/best_{primary}",) if all(name in row.metrics for row in rows)), "")
    metric, scale = metric or f"test/{primary}", 100 if primary == "accuracy" else 1
    rate = next((row.rate for row in rows if row.speed), "")  # images are not compared with features
    found = [(row, row.mean(rate) or math.nan, row.mean(metric)) for row in rows]
    measured = [(row, speed, scale * value) for row, speed, value in found if value is not None]
    points = [point for point in measured if math.isfinite(point[1] + point[2])]
    if not points or comparison.search is not None:
        return None
    figure, [axes] = _figure(1)
    styles = _styles(comparison)
    axes.plot(*zip(*(point[1:] for point in points), strict=True), ".", color=INK, zorder=1)
    front = pareto_front(points, -1 if rows[0].runs[0].is_lower_better(metric) else 1)
    axes.plot(*zip(*(point[1:] for point in front), strict=True), "--", color=INK, label="Pareto front")
    for row, speed, value in points:
        if row in styles:
            axes.errorbar(speed, value, scale * (row.std(metric) or 0), **styles[row], linestyle="", capsize=3)
    axes.set(xlabel=rate, ylabel=f"{metric}{', %' if scale == 100 else ''}")
    _add_legend(figure, axes)
    return figure


def draw_curves(comparison: Comparison) -> "Figure | None":
    """Draw what the runs of the rows with a name have learned, a panel a metric; None where no run has epochs.

    A row is the mean of its runs, in a band from the lowest to the highest.
    """
    styles = _styles(comparison)
    histories = {row: [run.history for run in row.runs] for row in styles}
    every = [values for runs in histories.values() for epochs in runs for values in epochs.values()]
    curves = [f"{split}/{metric}" for split in ("val", "train") for metric in ("loss", comparison.primary)]
    panels = [name for name in curves if any(name in values for values in every)]
    if not panels:
        return None
    figure, axes = _figure(len(panels))
    for panel, name in zip(axes, panels, strict=True):
        for row, runs in histories.items():
            values = {
                epoch: [epochs[epoch][name] for epochs in runs if name in epochs.get(epoch, {})]
                for epoch in sorted({epoch for epochs in runs for epoch in epochs})
            }
            known = {epoch: found for epoch, found in values.items() if found}
            if known:
                means = [sum(found) / len(found) for found in known.values()]
                panel.plot([*known], means, **styles[row], markersize=4, markevery=max(len(known) // 15, 1))
                lows, highs = ([end(found) for found in known.values()] for end in (min, max))
                panel.fill_between([*known], lows, highs, color=styles[row]["color"], alpha=0.2, linewidth=0)
        panel.set(xlabel="epoch", ylabel=name)
        panel.xaxis.get_major_locator().set_params(integer=True)
    _add_legend(figure, axes[0])
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


def _figure(panels: int) -> "tuple[Figure, list[Any]]":
    from matplotlib.figure import Figure  # half a second to import

    rows = math.ceil(panels / 2)
    figure = Figure(figsize=(9.6, 2.5 + 2.9 * rows), layout="constrained")
    grid = list(figure.subplots(rows, min(panels, 2), squeeze=False).ravel())
    for axes in grid[panels:]:
        axes.remove()
    return figure, grid[:panels]


def _add_legend(figure: "Figure", axes: Any) -> None:
    by_label = {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(by_label.values(), by_label.keys(), loc="outside lower center", frameon=False)
