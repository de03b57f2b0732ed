"""Pictures of a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure  # without pyplot: no window system, no state shared between runs


def plot_history(history: Sequence[Mapping[str, float]], best_epoch: int, path: Path) -> Path:
    """Draws loss and accuracy by epoch, the best epoch and the beginnings of later phases marked; returns `path`."""
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    epochs, phases = range(1, len(history) + 1), [row.get("train/phase", 1.0) for row in history]
    borders = [epoch for epoch in epochs[1:] if phases[epoch - 1] != phases[epoch - 2]]
    for axes, name in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for split in ("train", "val"):
            axes.plot(epochs, [row[f"{split}/{name}"] for row in history], marker=".", label=split)
        axes.axvline(best_epoch, color="grey", linestyle=":", label=f"best ({best_epoch})")
        for epoch in borders:
            axes.axvline(epoch - 0.5, color="black", linewidth=0.8, label=f"phase {phases[epoch - 1]:.0f}")
        axes.set(xlabel="epoch", ylabel=name)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend()
    return _save(figure, path)


def plot_confusion(confusion: np.ndarray, class_names: Sequence[str], path: Path) -> Path:
    """Draws a confusion matrix, int [classes, classes], rows true and columns predicted; returns `path`."""
    size = len(class_names)
    figure = Figure(figsize=(2.5 + 0.4 * min(size, 40),) * 2, layout="constrained")
    axes = figure.subplots()
    share = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="predicted", ylabel="true")
    if size <= 40:
        long = max(map(len, class_names)) > 2
        axes.set_xticks(range(size), class_names, rotation=45 if long else 0, ha="right" if long else "center")
        axes.set_yticks(range(size), class_names)
        for row, column in np.argwhere(confusion):
            colour = "white" if share[row, column] > 0.5 else "black"
            axes.text(column, row, confusion[row, column], ha="center", va="center", color=colour, fontsize=8)
    return _save(figure, path)


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path
