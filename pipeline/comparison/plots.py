"""The learning curves of a comparison."""

import math
from typing import TYPE_CHECKING, Any

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

    styles = _styles(comparison)
    frames = {
        row: pd.concat([pd.DataFrame.from_dict(run.history, orient="index") for run in row.runs]) for row in styles
    }
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
                found = frame[name].groupby(level=0).agg(["mean", "min", "max"]).dropna()
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
