"""What the splits hold: their sizes, classes and pixels, and the images that occur more than once."""

import csv
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stages.images import Described, Streamed, describe
from stages.reporter import Reporter
from stages.results import Dataset, Split
from stages.seeds import derive

SAMPLE = 1000
"""How many training images are read where nobody has read them all."""


@dataclass(frozen=True)
class SplitStatistics:
    """What one split holds.

    by_class: examples of each class, int64 [classes].
    described: how many images the next three come from; fewer than there are: they were drawn.
    mean, std: of its pixels by channel, float64 [C]; nan where no image was read.
    repeated: images that an earlier row holds, too, to the pixel; None where not all were read.
    """

    by_class: np.ndarray
    described: int
    mean: np.ndarray
    std: np.ndarray
    repeated: int | None

    @property
    def examples(self) -> int:
        return int(self.by_class.sum())


@dataclass(frozen=True)
class Shared:
    """Images of one split that another one holds, too, to the pixel.

    images: how many; relabelled: how many of them have a label there that no copy has here.
    rows: the first of them, and the first copy of it in the other split; None where there is none.
    """

    images: int
    relabelled: int
    rows: tuple[int, int] | None


@dataclass(frozen=True)
class Statistics:
    """splits: by name, in order; shared: from (split, later split) to what the later one shares with the first."""

    splits: Mapping[str, SplitStatistics]
    shared: Mapping[tuple[str, str], Shared]


def statistics(dataset: Dataset, seed: int) -> Statistics:
    """Returns what `dataset` holds.

    Images that lie in memory, or that a cache has described, are all counted. Of others, which may take hours to
    read, SAMPLE training images are read, drawn by `seed`, and nothing is said of duplicates.
    """
    splits, known = {}, {}
    for name, split in dataset.splits.items():
        by_class = np.bincount(split.labels, minlength=dataset.num_classes)
        if split.known is not None or isinstance(split.images, np.ndarray):
            known[name] = described = split.described
            repeated = len(split) - len(np.unique(described.digests))
        else:
            described = _sample(split, SAMPLE if name == "train" else 0, derive(seed, "inspect", name))
            repeated = None
        mean, std = mean_and_std(described.moments)
        splits[name] = SplitStatistics(by_class, len(described.digests), mean, std, repeated)
    shared = {
        (one, other): _shared(
            known[one].digests, dataset.splits[one].labels, known[other].digests, dataset.splits[other].labels
        )
        for one, other in itertools.combinations(known, 2)
    }
    return Statistics(splits, shared)


def mean_and_std(moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and std of the pixels by channel, float64 [C] each; nan where there are no images.

    Args:
        moments: each image's mean and mean square, float64 [N, 2, C]; images are all of one size.
    """
    if not len(moments):
        return np.full(moments.shape[-1], np.nan), np.full(moments.shape[-1], np.nan)
    mean, square = moments.mean(axis=0)
    return mean, np.sqrt(np.maximum(square - np.square(mean), 0.0))


def tell(found: Statistics, dataset: Dataset, reporter: Reporter) -> None:
    """Prints a line a split, and warns of what would make training or its scores worth less."""
    size, (low, high) = "×".join(map(str, dataset.image_shape)), dataset.pixel_range
    kind = f"{size} {dataset.train.images.dtype}, pixels {low:g} to {high:g}"
    reporter.say(f"{dataset.name}: {dataset.num_classes} classes, {kind}")
    rows = [["split", "examples", "of a class", "mean", "std", "duplicates"]]
    for name, split in found.splits.items():
        fewest, most = split.by_class.min(), split.by_class.max()
        counts = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
        numbers = [" ".join(f"{value:.4g}" for value in values) for values in (split.mean, split.std)]
        twice = [f"{split.repeated:,} within"] if split.repeated else []
        twice += [f"{both.images:,} in {one}" for (one, at), both in found.shared.items() if at == name and both.rows]
        copies = "not looked for" if split.repeated is None else ", ".join(twice) or "0"
        rows.append([name, f"{split.examples:,}", counts, *(numbers if split.described else "--"), copies])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        reporter.say("  " + "  ".join(f"{text:>{width}}" for text, width in zip(row, widths, strict=True)))
    train = found.splits["train"]
    if train.described < train.examples:
        reporter.say(f"  mean and std are those of {train.described:,} training images, drawn from all")
    _warn(found, dataset, reporter)


def _warn(found: Statistics, dataset: Dataset, reporter: Reporter) -> None:
    in_two = {names: both for names, both in found.shared.items() if both.rows is not None}
    if in_two:
        counts = ", ".join(
            f"{both.images:,} of {found.splits[other].examples:,} {other} images are in {one}"
            + (f" ({both.relabelled:,} with another label)" if both.relabelled else "")
            for (one, other), both in in_two.items()
        )
        (one, other), both = next(iter(in_two.items()))
        assert both.rows is not None
        reporter.warn(
            f"{counts}, such as row {both.rows[0]} of {other}, which is row {both.rows[1]} of {one}: scores count what "
            "was learned by heart. Remove the copies from the source, or tell the count with the scores"
        )
    for name in ("val", "test"):
        absent = np.flatnonzero((found.splits[name].by_class == 0) & (found.splits["train"].by_class > 0))
        if len(absent):
            reporter.warn(
                f"{len(absent)} of {dataset.num_classes} classes have no {name} example, such as "
                f"{dataset.class_names[absent[0]]}: no {name} score tells how well they are learned"
            )
    missing = np.flatnonzero(found.splits["train"].by_class == 0)
    if len(missing):
        reporter.warn(
            f"{len(missing)} of {dataset.num_classes} classes have no training example, such as "
            f"{dataset.class_names[missing[0]]}: none can be learned. Add examples, or leave the class out"
        )


def write(found: Statistics, dataset: Dataset, folder: Path) -> list[Path]:
    """Writes `statistics.csv`, a row a split, and `classes.csv`, a row a class; returns both."""
    folder.mkdir(parents=True, exist_ok=True)
    channels = range(dataset.image_shape[-1])
    header = ["split", "examples", "described", "duplicates", *(f"in_{name}" for name in found.splits)]
    rows: list[Sequence[object]] = [[*header, *(f"mean_{c}" for c in channels), *(f"std_{c}" for c in channels)]]
    for name, split in found.splits.items():
        shared = [found.shared.get((one, name)) for one in found.splits]
        counts = [both.images if both is not None else "" for both in shared]
        pixels = [*split.mean, *split.std] if split.described else [""] * 2 * len(channels)
        repeated = split.repeated if split.repeated is not None else ""
        rows.append([name, split.examples, split.described, repeated, *counts, *pixels])
    by_class = zip(dataset.class_names, *(split.by_class for split in found.splits.values()), strict=True)
    tables = {"statistics.csv": rows, "classes.csv": [["class", *found.splits], *by_class]}
    for name, table in tables.items():
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(table)
    return [folder / name for name in tables]


def _sample(split: Split, images: int, seed: int) -> Described:
    rows = np.random.default_rng(seed).choice(len(split), min(images, len(split)), replace=False)
    _, height, width, channels = split.images.shape
    return describe(Streamed(split.images.__getitem__, np.sort(rows), (height, width, channels), split.images.dtype))


def _shared(digests: np.ndarray, labels: np.ndarray, later: np.ndarray, later_labels: np.ndarray) -> Shared:
    """Returns what `later` shares with `digests`, uint64 [N] both; their labels are int [N]."""
    order = np.argsort(digests, kind="stable")  # so that the first of equal ones stays first
    place = np.minimum(np.searchsorted(digests, later, sorter=order), len(digests) - 1)
    rows = np.flatnonzero(digests[order[place]] == later)
    same_label = np.isin(_with_label(later, later_labels)[rows], _with_label(digests, labels))
    first = (int(rows[0]), int(order[place[rows[0]]])) if len(rows) else None
    return Shared(len(rows), int((~same_label).sum()), first)


def _with_label(digests: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns digests of (image, label), uint64 [N]: an odd factor keeps different labels different."""
    return digests + labels.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
