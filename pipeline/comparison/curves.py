"""Learning curves of a comparison."""

import math
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.comparison.answer import marks_of
from pipeline.comparison.comparison import Comparison
from pipeline.comparison.rows import Row
from pipeline.comparison.words import metric_label
from pipeline.runs.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
"""Matplotlib settings."""

COLORS = ("#0081c6", "#c95500", "#36a075", "#852bff", "#e31e4d", "#ad749d", "#b8059e", "#6b64e8")
"""Colors of the rows that are drawn: the recommended ones, the baseline and the next best ones.

Each has a contrast of 3 or more on white and on the page's dark background, and any two are distinct for people with
deuteranopia or protanopia. Line styles and letters distinguish the curves without colors.
"""

DASHES = ("", "7 3", "2 2", "9 3 2 3", "12 2", "5 2 1 2 1 2", "1 3", "10 3 5 3")
"""Line styles of these rows, as lengths of dashes and gaps in pixels."""

LOG_RATIO = 30
"""Ratio of the largest to the smallest loss in a panel above which its axis is logarithmic."""

GAP = 0.065
"""Smallest distance between two labels at the ends of curves, as a fraction of the panel's height."""


def draw_curves(comparison: Comparison) -> "Figure | None":
    """Draw the learning curves, one panel per metric; return None if no run has epochs.

    A curve is the mean of a row's runs. The recommended rows and the baseline also have a band from the lowest to the
    highest run. If there are few rows, each has one.
    """
    import pandas as pd
    from matplotlib.figure import Figure  # half a second to import

    styles, marks = styles_of(comparison), marks_of(comparison)
    frames = {}
    for row in styles:
        histories = (RunFolder(run.folder).epochs() for run in row.runs)
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
        for row, curve in drawn.items():
            _draw_curve(panel, curve, styles[row], row in comparison.choice.rows, row in banded)
        panel.set(xlabel="epoch", title=metric_label(name).removesuffix(" in the last epoch"))
        panel.title.set_color(INK)
        panel.xaxis.get_major_locator().set_params(integer=True)
        if name.endswith("loss") and _spans(drawn.values()):
            panel.set_yscale("log")
            panel.yaxis.set_major_formatter("{x:g}")
        _label_ends(panel, {comparison.ids[row]: (curve, COLORS[styles[row]]) for row, curve in drawn.items()})
    return figure


def _mean_and_range(values: Any) -> Any:
    """Return the mean, the lowest and the highest value of each epoch that all runs have."""
    import pandas as pd

    finite = {name: partial(getattr(pd.Series, name), skipna=False) for name in ("mean", "min", "max")}
    return values.groupby(level=0).agg(**finite).dropna()


def _draw_curve(panel: Any, curve: Any, place: int, is_best: bool, has_band: bool) -> None:
    width, color = (2.8 if is_best else 1.5), COLORS[place]
    dashes = tuple(float(length) / width for length in DASHES[place].split())
    style = (0, dashes) if dashes else "-"
    marker = {"marker": "o", "markersize": 4} if len(curve) < 2 else {}
    panel.plot(curve.index, curve["mean"], color=color, linestyle=style, linewidth=width, zorder=2 + is_best, **marker)
    if has_band:
        panel.fill_between(curve.index, curve["min"], curve["max"], color=color, alpha=0.15, linewidth=0)


def _spans(drawn: Iterable[Any]) -> bool:
    """Return whether the means are positive, and so far apart that a linear axis would hide the small ones."""
    means = [value for curve in drawn for value in curve["mean"]]
    return bool(means) and min(means) > 0 and max(means) > LOG_RATIO * min(means)


def _label_ends(panel: Any, ends: dict[str, tuple[Any, str]]) -> None:
    """Write the short name of each curve at its end, without overlaps."""
    low, high = panel.get_ylim()
    scale = panel.yaxis.get_transform().transform
    bottom, top = scale([low])[0], scale([high])[0]
    heights = {
        name: (scale([curve["mean"].iloc[-1]])[0] - bottom) / (top - bottom)
        for name, (curve, _) in ends.items()
        if len(curve)
    }
    below = -1.0
    order = list(heights)
    for name in sorted(heights, key=lambda name: (heights[name], -order.index(name))):
        below = heights[name] = max(heights[name], below + GAP)
    above = 1.0 + GAP
    for name in sorted(heights, key=lambda name: (-heights[name], order.index(name))):
        above = heights[name] = min(heights[name], above - GAP)
        panel.text(1.015, above, name, color=ends[name][1], transform=panel.transAxes, va="center", weight="bold")


def styles_of(comparison: Comparison) -> dict[Row, int]:
    """Return the rows that are drawn, each with the index of its color and line style."""
    first = [*comparison.choice.rows, *([comparison.baseline] if comparison.baseline else []), *comparison.ranked]
    chosen = list(dict.fromkeys(first))[: len(COLORS)]
    return {row: place for place, row in enumerate(sorted(chosen, key=comparison.ranked.index))}
