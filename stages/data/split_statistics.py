"""Statistics of the splits: sizes, classes, pixels, and images that occur more than once."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stages.data.split import Split
from stages.features.kinds import IMAGES
from stages.images import Described
from stages.reporter import Reporter
from stages.results import Dataset
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
class Statistics:
    """splits: by name, in order; shared: from (split, later split) to how many images of the later one are in both."""

    splits: Mapping[str, SplitStatistics]
    shared: Mapping[tuple[str, str], int]


def statistics(dataset: Dataset, seed: int) -> Statistics:
    """Returns the statistics of `dataset`.

    All images count that are in memory or described by a cache. Of others, which may take hours to read, SAMPLE
    training images are read, drawn by `seed`, and duplicates are not looked for.
    """
    splits, descriptions = {}, {}
    for name, split in dataset.splits.items():
        by_class = np.bincount(split.targets, minlength=dataset.num_classes)
        if split.is_at_hand:
            descriptions[name] = described = split.described
            repeated = len(split) - len(np.unique(described.digests))
        else:
            described = _sample(split, SAMPLE if name == "train" else 0, derive(seed, "inspect", name))
            repeated = None
        mean, std = mean_and_std(described.moments)
        splits[name] = SplitStatistics(by_class, len(described.digests), mean, std, repeated)
    shared = {
        (earlier, later): int(np.isin(descriptions[later].digests, descriptions[earlier].digests).sum())
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
    images = dataset.features[IMAGES]
    size = "×".join(map(str, images.shape))
    low, high = images.facts["range"]
    kind = f"{size} {images.dtype}, pixels {low:g} to {high:g}"
    reporter.log(f"{dataset.name}: {dataset.num_classes} classes, {kind}")
    rows = [["split", "examples", "of a class", "mean", "std", "duplicates"]]
    leaks = []
    for name, split in statistics.splits.items():
        fewest, most = split.by_class.min(), split.by_class.max()
        counts = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
        numbers = [" ".join(f"{value:.4g}" for value in values) for values in (split.mean, split.std)]
        shared = {earlier: count for (earlier, later), count in statistics.shared.items() if later == name and count}
        leaks += [
            f"{count:,} of {split.examples:,} {name} images are in {earlier}" for earlier, count in shared.items()
        ]
        twice = [f"{split.repeated:,} within"] if split.repeated else []
        twice += [f"{count:,} in {earlier}" for earlier, count in shared.items()]
        copies = "not looked for" if split.repeated is None else ", ".join(twice) or "0"
        rows.append([name, f"{split.examples:,}", counts, *(numbers if split.described else "--"), copies])
    for line in aligned(rows):
        reporter.log(f"  {line}")
    train = statistics.splits["train"]
    if train.described < train.examples:
        reporter.log(f"  mean and std are those of {train.described:,} training images, drawn from all")
    if leaks:
        reporter.warn(
            f"{', '.join(leaks)}: scores count memorized images. Remove the copies from the source, or report the "
            "count with the scores"
        )
    for name, split in statistics.splits.items():
        is_absent = (split.by_class == 0) & ((train.by_class > 0) | (name == "train"))
        if is_absent.any():
            of_train = "none can be learned. Add examples, or leave the class out"
            kind, effect = ("training", of_train) if name == "train" else (name, f"no {name} score covers them")
            reporter.warn(
                f"{is_absent.sum()} of {dataset.num_classes} classes have no {kind} example, such as "
                f"{dataset.class_names[is_absent.argmax()]}: {effect}"
            )


def write(statistics: Statistics, dataset: Dataset, folder: Path) -> list[Path]:
    """Writes `statistics.csv`, a row a split, and `classes.csv`, a row a class; returns both."""
    folder.mkdir(parents=True, exist_ok=True)
    channels = range(len(statistics.splits["train"].mean))
    columns = ["described", "duplicates", *(f"in_{name}" for name in statistics.splits)]
    columns += [*(f"mean_{channel}" for channel in channels), *(f"std_{channel}" for channel in channels)]
    rows: list[Sequence[object]] = [["split", "examples", *columns]]
    for name, split in statistics.splits.items():
        shared = [statistics.shared.get((earlier, name), "") for earlier in statistics.splits]
        pixels = [*split.mean, *split.std] if split.described else [""] * 2 * len(channels)
        repeated = "" if split.repeated is None else split.repeated
        rows.append([name, split.examples, split.described, repeated, *shared, *pixels])
    by_class = zip(dataset.class_names, *(split.by_class for split in statistics.splits.values()), strict=True)
    write_csv(folder / "statistics.csv", rows)
    write_csv(folder / "classes.csv", [["class", *statistics.splits], *by_class])
    return [folder / "statistics.csv", folder / "classes.csv"]


def _sample(split: Split, images: int, seed: int) -> Described:
    rows = np.sort(np.random.default_rng(seed).choice(len(split), min(images, len(split)), replace=False))
    return split.take(rows).described
