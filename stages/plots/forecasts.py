"""Charts of forecasts: some windows with what followed, and errors by step."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stages.plots.charts import drawable, new_figure, save

MOST_STEPS = 200
"""Maximum number of past steps of a window that are drawn."""


def plot_forecasts(
    titles: Sequence[str],
    history: np.ndarray,
    parts: Sequence[np.ndarray],
    name: str,
    path: Path,
    band: tuple[np.ndarray, np.ndarray] | None = None,
) -> Path:
    """Draw the past of windows, what followed, the forecast and the naive forecast; return `path`.

    Args:
        titles: Of the windows.
        history: The past of the target, [n, window].
        parts: What followed, the forecast and the naive forecast, [n, horizon] each.
        name: The name of the target.
        path: The file.
        band: The lowest and the highest quantile, [n, horizon] each, if there are any.
    """
    figure = new_figure(9, 2.2 * len(titles))
    past = history[:, -MOST_STEPS:]
    steps = np.arange(-past.shape[1] + 1, 1)
    next_steps = np.arange(1, parts[0].shape[1] + 1)
    looks = (("truth", "black", "-"), ("forecast", "tab:blue", "-"), ("naive", "tab:orange", ":"))
    for row, (axes, title) in enumerate(zip(figure.subplots(len(titles), 1, squeeze=False)[:, 0], titles, strict=True)):
        axes.plot(steps, past[row], color="grey")
        for part, (label, color, line) in zip(parts, looks, strict=True):
            axes.plot(next_steps, part[row], color=color, linestyle=line, marker=".", label=label)
        if band is not None:
            axes.fill_between(next_steps, band[0][row], band[1][row], color="tab:blue", alpha=0.2)
        axes.axvline(0.5, color="grey", linewidth=0.5)
        axes.set(ylabel=drawable([name])[0], title=title)
        axes.grid(alpha=0.3)
        if not row:
            axes.legend(loc="upper left", ncols=3)
    figure.tight_layout()
    return save(figure, path)


def plot_steps(errors: np.ndarray, naive: np.ndarray, path: Path) -> Path:
    """Draw mean absolute errors by step, with those of the naive forecast; return `path`.

    Args:
        errors: Absolute errors, [n, horizon].
        naive: Those of the naive forecast.
        path: The file.
    """
    figure = new_figure(7, 3.5)
    axes = figure.subplots()
    steps = np.arange(1, errors.shape[1] + 1)
    for part, label in ((errors, "network"), (naive, "naive forecast")):
        axes.plot(steps, part.mean(axis=0), marker=".", label=label)
    axes.set(xlabel="step", ylabel="mean absolute error", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    return save(figure, path)
