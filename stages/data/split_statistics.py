"""Statistics of the splits: sizes, classes, pixels, and images that occur more than once."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stages.images import Described, Streamed, describe
from stages.reporter import Reporter
from stages.results import Dataset, Split
from stages.seeds import derive
from stages.storage.atomic import write_csv
from stages.tables import aligned

SAMPLE = 1000
"""Training images that are read where not all have been."""


@dataclass(frozen=True)
class SplitStatistics:
    """Statistics of one split.

    by_class: examples of each class, int64 [classes].
    described: images that the next three come from; fewer than all of them: drawn at random.
    mean, std: of its pixels by channel, float64 [C]; nan where no image was read.
    repeated: images equal to an earlier row's, to the pixel; None where not all were read.
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
    """Images of one split that are in an earlier one, too, to the pixel.

    images: how many. rows: the first of them, and its first copy in the earlier split; None where there is none.
    """

    images: int
    rows: tuple[int, int] | None


@dataclass(frozen=True)
class Statistics:
    """splits: by name, in order; shared: from (split, later split) to the images of the later one that are in both."""

    splits: Mapping[str, SplitStatistics]
    shared: Mapping[tuple[str, str], Shared]


def statistics(dataset: Dataset, seed: int) -> Statistics:
    """Returns the statistics of `dataset`.

    All images count that are in memory or described by a cache. Of others, which may take hours to read, SAMPLE
    training images are read, drawn by `seed`, and duplicates are not looked for.
    """
    splits, descriptions = {}, {}
    for name, split in dataset.splits.items():
        by_class = np.bincount(split.labels, minlength=dataset.num_classes)
        if split.is_at_hand:
            descriptions[name] = described = split.described
            repeated = len(split) - len(np.unique(described.digests))
        else:
            described = _sample(split, SAMPLE if name == "train" else 0, derive(seed, "inspect", name))
            repeated = None
        mean, std = mean_and_std(described.moments)
        splits[name] = SplitStatistics(by_class, len(described.digests), mean, std, repeated)
    shared = {
        (earlier, later): _shared(descriptions[earlier].digests, descriptions[later].digests)
        for earlier, later in itertools.combinations(descriptions, 2)
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


def log(statistics: Statistics, dataset: Dataset, reporter: Reporter) -> None:
    """Prints a line a split, and warns of what would make training or its scores worth less."""
    size = "×".join(map(str, dataset.image_shape))
    low, high = dataset.pixel_range
    kind = f"{size} {dataset.train.images.dtype}, pixels {low:g} to {high:g}"
    reporter.log(f"{dataset.name}: {dataset.num_classes} classes, {kind}")
    rows = [["split", "examples", "of a class", "mean", "std", "duplicates"]]
    for name, split in statistics.splits.items():
        fewest, most = split.by_class.min(), split.by_class.max()
        counts = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
        numbers = [" ".join(f"{value:.4g}" for value in values) for values in (split.mean, split.std)]
        twice = [f"{split.repeated:,} within"] if split.repeated else []
        twice += [
            f"{shared.images:,} in {earlier}"
            for (earlier, later), shared in statistics.shared.items()
            if later == name and shared.rows
        ]
        copies = "not looked for" if split.repeated is None else ", ".join(twice) or "0"
        rows.append([name, f"{split.examples:,}", counts, *(numbers if split.described else "--"), copies])
    for line in aligned(rows):
        reporter.log(f"  {line}")
    train = statistics.splits["train"]
    if train.described < train.examples:
        reporter.log(f"  mean and std are those of {train.described:,} training images, drawn from all")
    _warn(statistics, dataset, reporter)


def _warn(statistics: Statistics, dataset: Dataset, reporter: Reporter) -> None:
    overlaps = {names: shared for names, shared in statistics.shared.items() if shared.rows is not None}
    if overlaps:
        counts = ", ".join(
            f"{shared.images:,} of {statistics.splits[later].examples:,} {later} images are in {earlier}"
            for (earlier, later), shared in overlaps.items()
        )
        (earlier, later), shared = next(iter(overlaps.items()))
        assert shared.rows is not None
        reporter.warn(
            f"{counts}, such as row {shared.rows[0]} of {later}, which is row {shared.rows[1]} of {earlier}: "
            "scores count memorized images. Remove the copies from the source, or report the count with the "
            "scores"
        )
    for name in ("val", "test"):
        absent = np.flatnonzero((statistics.splits[name].by_class == 0) & (statistics.splits["train"].by_class > 0))
        if len(absent):
            reporter.warn(
                f"{len(absent)} of {dataset.num_classes} classes have no {name} example, such as "
                f"{dataset.class_names[absent[0]]}: no {name} score covers them"
            )
    missing = np.flatnonzero(statistics.splits["train"].by_class == 0)
    if len(missing):
        reporter.warn(
            f"{len(missing)} of {dataset.num_classes} classes have no training example, such as "
            f"{dataset.class_names[missing[0]]}: none can be learned. Add examples, or leave the class out"
        )


def write(statistics: Statistics, dataset: Dataset, folder: Path) -> list[Path]:
    """Writes `statistics.csv`, a row a split, and `classes.csv`, a row a class; returns both."""
    folder.mkdir(parents=True, exist_ok=True)
    channels = range(dataset.image_shape[-1])
    header = ["split", "examples", "described", "duplicates", *(f"in_{name}" for name in statistics.splits)]
    rows: list[Sequence[object]] = [[*header, *(f"mean_{c}" for c in channels), *(f"std_{c}" for c in channels)]]
    for name, split in statistics.splits.items():
        overlaps = [statistics.shared.get((earlier, name)) for earlier in statistics.splits]
        counts = [shared.images if shared is not None else "" for shared in overlaps]
        pixels = [*split.mean, *split.std] if split.described else [""] * 2 * len(channels)
        repeated = split.repeated if split.repeated is not None else ""
        rows.append([name, split.examples, split.described, repeated, *counts, *pixels])
    by_class = zip(dataset.class_names, *(split.by_class for split in statistics.splits.values()), strict=True)
    tables = {"statistics.csv": rows, "classes.csv": [["class", *statistics.splits], *by_class]}
    for name, table in tables.items():
        write_csv(folder / name, table)
    return [folder / name for name in tables]


def _sample(split: Split, images: int, seed: int) -> Described:
    rows = np.random.default_rng(seed).choice(len(split), min(images, len(split)), replace=False)
    _, height, width, channels = split.images.shape
    return describe(Streamed(split.images.__getitem__, np.sort(rows), (height, width, channels), split.images.dtype))


def _shared(digests: np.ndarray, later: np.ndarray) -> Shared:
    """Returns what `later` shares with `digests`, uint64 [N] both."""
    order = np.argsort(digests, kind="stable")  # of equal digests the first stays first
    place = np.minimum(np.searchsorted(digests, later, sorter=order), len(digests) - 1)
    rows = np.flatnonzero(digests[order[place]] == later)
    return Shared(len(rows), (int(rows[0]), int(order[place[rows[0]]])) if len(rows) else None)
