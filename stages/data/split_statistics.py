"""Statistics of the splits: sizes, classes, pixels, and images that occur more than once."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stages.features.kinds import IMAGES
from stages.images import count_repeated, count_shared
from stages.reporter import Reporter
from stages.results import Dataset
from stages.storage.atomic import write_csv
from stages.tables import aligned


@dataclass(frozen=True)
class Duplicates:
    """Examples that occur more than once, to the last bit, their targets aside.

    repeated: of each split, those equal to an earlier one of it; shared: of the later split, those in both.
    """

    repeated: Mapping[str, int]
    shared: Mapping[tuple[str, str], int]

    @classmethod
    def of(cls, dataset: Dataset) -> "Duplicates":
        """Counts by digests; reads examples that neither memory holds nor a cache describes."""
        digests = {name: split.described.digests for name, split in dataset.splits.items()}
        repeated = {name: count_repeated(part) for name, part in digests.items()}
        pairs = itertools.combinations(digests, 2)
        shared = {(one, later): count_shared(digests[one], digests[later]) for one, later in pairs}
        return cls(repeated, shared)


@dataclass(frozen=True)
class SplitStatistics:
    """Statistics of one split.

    examples: of it. by_class: those of each class or label, int64 [classes]; None: targets are neither.
    mean, std: of its pixels by channel, float64 [C].
    """

    examples: int
    by_class: np.ndarray | None
    mean: np.ndarray
    std: np.ndarray


@dataclass(frozen=True)
class Statistics:
    """splits: by name, in order."""

    splits: Mapping[str, SplitStatistics]
    duplicates: Duplicates

    def params(self, dataset: Dataset) -> dict[str, object]:
        """Parameters to record."""
        images, train = dataset.features[IMAGES], self.splits["train"]
        low, high = images.facts["range"]
        facts = {name: [float(f"{x:.6g}") for x in getattr(train, name)] for name in ("mean", "std")}
        return {"dtype": images.dtype, "pixel_min": low, "pixel_max": high, **facts}


def statistics(dataset: Dataset) -> Statistics:
    """Returns the statistics of images."""
    splits = {
        name: SplitStatistics(len(split), dataset.task.support(split.targets), *mean_and_std(split.described.moments))
        for name, split in dataset.splits.items()
    }
    return Statistics(splits, Duplicates.of(dataset))


def mean_and_std(moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and std of the pixels by channel, float64 [C] each.

    Args:
        moments: each image's mean and mean square, float64 [N, 2, C]; images are all of one size.
    """
    mean, square = moments.mean(axis=0)
    return mean, np.sqrt(np.maximum(square - np.square(mean), 0.0))


def log(statistics: Statistics, dataset: Dataset, reporter: Reporter) -> None:
    """Prints a line a split, and warns of what would make training or its scores worth less."""
    images = dataset.features[IMAGES]
    size = "×".join(map(str, images.shape))
    low, high = images.facts["range"]
    kind = f"{size} {images.dtype}, pixels {low:g} to {high:g}"
    predicted = ", ".join(
        f"{count} {what if count > 1 else what.removesuffix('s')}" for what, count in dataset.task.facts.items()
    )
    reporter.log(f"{dataset.name}: {predicted}, {kind}")
    rows = [["split", "examples", "of a class", "mean", "std", "duplicates"]]
    leaks = []
    for name, split in statistics.splits.items():
        counts = "–"
        if split.by_class is not None:
            fewest, most = split.by_class.min(), split.by_class.max()
            counts = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
        numbers = [" ".join(f"{value:.4g}" for value in values) for values in (split.mean, split.std)]
        both = statistics.duplicates.shared.items()
        shared = {earlier: count for (earlier, later), count in both if later == name and count}
        leaks += [
            f"{count:,} of {split.examples:,} {name} images are in {earlier}" for earlier, count in shared.items()
        ]
        repeated = statistics.duplicates.repeated[name]
        twice = [f"{repeated:,} within"] if repeated else []
        twice += [f"{count:,} in {earlier}" for earlier, count in shared.items()]
        rows.append([name, f"{split.examples:,}", counts, *numbers, ", ".join(twice) or "0"])
    for line in aligned(rows):
        reporter.log(f"  {line}")
    if leaks:
        reporter.warn(
            f"{', '.join(leaks)}: scores count memorized images. Remove the copies from the source, or report the "
            "count with the scores"
        )
    _warn_of_absent(statistics, dataset, reporter)


def _warn_of_absent(statistics: Statistics, dataset: Dataset, reporter: Reporter) -> None:
    """Warns of classes without an example."""
    train = statistics.splits["train"]
    for name, split in statistics.splits.items():
        if split.by_class is None or train.by_class is None:
            continue
        is_absent = (split.by_class == 0) & ((train.by_class > 0) | (name == "train"))
        if is_absent.any():
            of_train = "none can be learned. Add examples, or leave the class out"
            kind, effect = ("training", of_train) if name == "train" else (name, f"no {name} score covers them")
            reporter.warn(
                f"{is_absent.sum()} of {dataset.task.outputs} classes have no {kind} example, such as "
                f"{dataset.task.names[is_absent.argmax()]}: {effect}"
            )


def write(statistics: Statistics, dataset: Dataset, folder: Path) -> list[Path]:
    """Writes `statistics.csv`, a row a split, and `classes.csv`, a row a class, where there are any; returns them."""
    channels = range(len(statistics.splits["train"].mean))
    columns = ["duplicates", *(f"in_{name}" for name in statistics.splits)]
    columns += [*(f"mean_{channel}" for channel in channels), *(f"std_{channel}" for channel in channels)]
    rows: list[Sequence[object]] = [["split", "examples", *columns]]
    for name, split in statistics.splits.items():
        duplicates = statistics.duplicates
        shared = [duplicates.shared.get((earlier, name), "") for earlier in statistics.splits]
        rows.append([name, split.examples, duplicates.repeated[name], *shared, *split.mean, *split.std])
    write_csv(folder / "statistics.csv", rows)
    counts = [split.by_class for split in statistics.splits.values() if split.by_class is not None]
    if not counts:
        return [folder / "statistics.csv"]
    write_csv(folder / "classes.csv", [["class", *statistics.splits], *zip(dataset.task.names, *counts, strict=True)])
    return [folder / "statistics.csv", folder / "classes.csv"]
