"""Charts of a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.font_manager import FontProperties, findfont, get_font
from PIL import ImageFont

from stages.data.columns import evenly_spread
from stages.storage.atomic import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FASTEST: Mapping[str, Any] = {"compress_level": 1}
"""Arguments of Pillow for a PNG: smaller files by a quarter would take three times as long."""


MOST_POINTS = 5000
"""Points of a plot."""

MOST_BARS = 60
"""Bars of a plot, one per class."""


def new_figure(width: float, height: float) -> "Figure":
    """Return a figure of a size in inches, without pyplot: no window system, no state shared between runs.

    A constrained layout would draw it twice.
    """
    from matplotlib.figure import Figure  # some tenths of a second, which no first step need wait for

    return Figure(figsize=(width, height))


def plot_history(
    history: Sequence[Mapping[str, float]], metric: str, best_epoch: int, path: Path, first_epoch: int = 1
) -> Path:
    """Plot the loss and a metric by epoch, with the best epoch and the starts of later phases; return `path`.

    Args:
        metric: of the task, such as `accuracy`. best_epoch: counted from 1. first_epoch: that of the first row of
            `history`.
    """
    figure = new_figure(9, 3.5)
    epochs = range(first_epoch, first_epoch + len(history))
    phases = [row.get("train/phase", 1.0) for row in history]
    borders = [index for index in range(1, len(history)) if phases[index] != phases[index - 1]]
    for axes, name in zip(figure.subplots(1, 2), ("loss", metric), strict=True):
        for split in ("train", "val"):
            axes.plot(epochs, [row.get(f"{split}/{name}", np.nan) for row in history], marker=".", label=split)
        axes.axvline(best_epoch, color="grey", linestyle=":", label=f"best epoch ({best_epoch})")
        for index in borders:
            axes.axvline(epochs[index] - 0.5, color="black", linewidth=0.8, label=f"phase {phases[index]:.0f}")
        axes.set(xlabel="epoch", ylabel=name)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.subplots_adjust(left=0.08, right=0.98, bottom=0.14, top=0.96, wspace=0.2)
    return save(figure, path)


def plot_numbers(columns: Sequence[tuple[str, np.ndarray, np.ndarray]], path: Path) -> Path:
    """Draw predicted against true values of each target, and the errors; returns `path`.

    Args:
        columns: name, true and predicted values, [n], of each target; of many rows some are drawn, evenly spread.
    """
    figure = new_figure(8, 3.5 * len(columns))
    for axes, (name, true, predicted) in zip(figure.subplots(len(columns), 2, squeeze=False), columns, strict=True):
        rows = evenly_spread(len(true), MOST_POINTS)
        axes[0].plot(true[rows], predicted[rows], ".", markersize=2, alpha=0.5)
        axes[0].axline((float(true.mean()), float(true.mean())), slope=1, color="grey", linestyle=":")
        axes[0].set(xlabel=f"true {drawable([name])[0]}", ylabel=f"predicted {drawable([name])[0]}")
        axes[1].hist(predicted - true, bins=50)
        axes[1].set(xlabel="error (predicted minus true)", ylabel="test examples")
    figure.tight_layout()
    return save(figure, path)


def plot_scores(
    names: Sequence[str], values: np.ndarray, lows: np.ndarray, highs: np.ndarray, label: str, path: Path
) -> Path:
    """Draw a bar for each class, with its interval; return `path`.

    Args:
        names: The classes.
        values: Their scores from 0 to 1, [classes]; nan: no bar.
        lows: Lower ends of the intervals, [classes]; nan: no interval.
        highs: Upper ends.
        label: The name of the score.
        path: The file to write.
    """
    shown = slice(MOST_BARS)
    labels, places = drawable(names)[shown], np.arange(len(names[shown]))
    figure = new_figure(6, 1 + 0.25 * len(labels))
    axes = figure.subplots()
    axes.barh(places, np.nan_to_num(values[shown]), color="tab:blue", alpha=0.6)
    known = places[~np.isnan(lows[shown])]
    axes.hlines(known, lows[known], highs[known], color="black", linewidth=1)
    axes.set_yticks(places, labels, parse_math=False)
    axes.set(xlabel=label, xlim=(0, 1))
    axes.invert_yaxis()
    axes.grid(alpha=0.3, axis="x")
    figure.tight_layout()
    return save(figure, path)


def plot_confusion(confusion: np.ndarray, class_names: Sequence[str], path: Path) -> Path:
    """Draw a confusion matrix, sums of weights [classes, classes], rows true and columns predicted; returns `path`."""
    size = len(class_names)
    names = drawable(class_names) if size <= 40 else []
    longest = max(map(len, names), default=2)
    margin, rest = 0.5 + 0.09 * longest, 0.15  # inches
    side = margin + 1.6 + 0.4 * min(size, 40) + rest
    figure = new_figure(side, side)
    figure.subplots_adjust(left=margin / side, bottom=margin / side, right=1 - rest / side, top=1 - rest / side)
    axes = figure.subplots()
    of_class = confusion.sum(axis=1, keepdims=True)
    fractions = confusion / np.where(of_class > 0, of_class, 1)
    axes.imshow(fractions, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="predicted class", ylabel="true class")
    if names:
        axes.set_xticks(range(size), names, rotation=90 if longest > 2 else 0, parse_math=False)
        axes.set_yticks(range(size), names, parse_math=False)
        for row, column in np.argwhere(confusion):
            color = "white" if fractions[row, column] > 0.5 else "black"
            value = confusion[row, column]
            text = f"{value:.0f}" if value == round(value) else f"{value:.3g}"
            axes.text(column, row, text, ha="center", va="center", color=color, fontsize=8)
    return save(figure, path)


def plot_reliability(counts: np.ndarray, correct: np.ndarray, sure: np.ndarray, error: float, path: Path) -> Path:
    """Draw the accuracy of the examples of each bin of confidence against their mean confidence; returns `path`.

    Args:
        counts, correct, sure: sums over the examples, the correct ones, and their confidence, by their weights, of bins
            of equal width from 0 to 1, [bins] each.
        error: expected calibration error.
    """
    figure = new_figure(4.5, 5)
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    figure.subplots_adjust(left=0.13, right=0.96, bottom=0.1, top=0.94, hspace=0.08)
    width = 1 / len(counts)
    centers = (np.arange(len(counts)) + 0.5) * width
    filled = counts > 0
    accuracy, confidence = correct[filled] / counts[filled], sure[filled] / counts[filled]
    axes.bar(centers[filled], accuracy, width, color="tab:blue", alpha=0.4, edgecolor="tab:blue")
    axes.plot([0, 1], [0, 1], color="grey", linestyle=":", label="perfect calibration")
    axes.plot(confidence, accuracy, color="tab:blue", marker=".", label="this model")
    axes.set(ylabel="accuracy", ylim=(0, 1), title=f"expected calibration error {error:.4f} ({len(counts)} bins)")
    axes.title.set_fontsize(10)
    axes.legend(loc="upper left")
    below.bar(centers, counts, width, color="grey")
    below.set(xlabel="confidence (probability of the predicted class)", ylabel="test examples", xlim=(0, 1))
    for part in (axes, below):
        part.grid(alpha=0.3)
    return save(figure, path)


def drawable(names: Sequence[str]) -> list[str]:
    """Return class names as Matplotlib can draw them, cut to 24 letters.

    A name with a letter that the font lacks becomes its number, such as `#3`, rather than boxes, each with a warning.
    """
    letters = get_font(_font_file())
    drawn = []
    for number, name in enumerate(names):
        short = name if len(name) <= 24 else f"{name[:23]}…"
        drawn.append(short if all(letters.get_char_index(ord(letter)) for letter in name) else f"#{number}")
    return drawn


def font(size: int) -> ImageFont.FreeTypeFont:
    """Return Matplotlib's font for Pillow, in a size in pixels."""
    return ImageFont.truetype(_font_file(), size)


def _font_file() -> str:
    """Return the file of Matplotlib's font: DejaVu Sans, which it brings along, unless the user has set another."""
    return findfont(FontProperties())


def save(figure: "Figure", path: Path) -> Path:
    """Write `figure` to `path`, making its folder; returns `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, lambda partial: figure.savefig(partial, dpi=120, pil_kwargs=FASTEST), durable=False)
    return path
