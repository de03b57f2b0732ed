"""The `inspect` stage: numbers and plots of the data that training will see, and warnings of what they tell."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from stages.collectives import is_chief
from stages.data import batches
from stages.data.columns import evenly_spread
from stages.data.examples import SplitReader
from stages.features.images import ImageFeature, images_of
from stages.features.numbers import SAMPLE
from stages.plots.charts import drawable
from stages.plots.galleries import plot_batch, plot_rows
from stages.reporter import Reporter
from stages.results import Dataset, Record, Strategy
from stages.seeds import derive
from stages.settings.data import InspectSettings
from stages.settings.folders import same_name
from stages.settings.table import declaring
from stages.storage.atomic import write_csv
from stages.tables import aligned

GIVES_AWAY = 0.99
"""Accuracy, or R², of a single column from which it seems to hold the target itself."""

LARGEST = float(np.finfo(np.float32).max)
"""Size of the numbers that scikit-learn's trees take."""

LEAVES = 32
"""Of the tree that predicts the target from one column."""

HEADER = ("split", "examples", "feature", "kind", "missing", "mean", "std", "min", "max", "different", "most frequent")


@dataclass(frozen=True)
class Statistics:
    """Statistics of a data set.

    rows: by HEADER, for each split and feature; of images for each channel.
    by_class: of each split the examples of each class or label, int64 [classes]; None: targets are neither.
    repeated: of each split, examples equal to an earlier one of it, to the last bit, their targets aside; shared: of
    the later split, those in both. giving_away: how well a column alone predicts the target.
    """

    rows: Sequence[Sequence[Any]]
    by_class: Mapping[str, np.ndarray] | None
    repeated: Mapping[str, int]
    shared: Mapping[tuple[str, str], int]
    giving_away: Mapping[str, float]

    @property
    def params(self) -> dict[str, object]:
        """Parameters to record."""
        counts = {f"data/duplicates_{name}": count for name, count in self.repeated.items()}
        counts |= {f"data/duplicates_{one}_{later}": count for (one, later), count in self.shared.items()}
        moments = [row[5:7] for row in self.rows if row[0] == "train" and row[3] == ImageFeature.kind]
        if not moments:
            return {**counts, "giving_away": ", ".join(self.giving_away)}
        mean, std = ([float(f"{value:.6g}") for value in values] for values in zip(*moments, strict=True))
        return {**counts, "mean": mean, "std": std}


def statistics(dataset: Dataset) -> Statistics:
    """Return the statistics of a data set; reads examples that neither memory holds nor a cache describes."""
    rows: list[Sequence[Any]] = []
    for name, split in dataset.splits.items():
        for key, feature in dataset.features.items():
            rows += [(name, len(split), *row) for row in feature.statistics(key, split)]
    support = {name: dataset.task.targets.support(split.targets) for name, split in dataset.splits.items()}
    by_class = {name: counts for name, counts in support.items() if counts is not None}
    digests = {name: split.described.digests for name, split in dataset.splits.items()}
    repeated = {name: len(part) - len(np.unique(part)) for name, part in digests.items()}
    pairs = itertools.combinations(digests, 2)
    shared = {(one, later): int(np.isin(digests[later], digests[one]).sum()) for one, later in pairs}
    return Statistics(rows, by_class or None, repeated, shared, _giving_away(dataset))


def _giving_away(dataset: Dataset) -> dict[str, float]:
    """Return the columns that alone predict the target almost always, with the accuracy, or R², of a small tree.

    It is fitted to half of some training rows, and scored on the others.
    """
    train = dataset.train
    sampled = np.random.default_rng(0).permutation(evenly_spread(len(train), SAMPLE))
    of_each = {
        feature.column_name(name): feature.ordinals(train.features[name], sampled)
        for name, feature in dataset.features.items()
    }
    columns = {name: values for name, values in of_each.items() if values is not None}
    half = len(sampled) // 2
    if not columns or half < 10:
        return {}
    targets = train.targets[sampled]
    is_class = targets.ndim == 1
    if is_class and np.bincount(targets).max() > GIVES_AWAY * len(targets):
        return {}
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor  # a second

    tree: Any = (DecisionTreeClassifier if is_class else DecisionTreeRegressor)(max_leaf_nodes=LEAVES, random_state=0)
    found = {}
    for name, values in columns.items():
        column = np.nan_to_num(values)[:, np.newaxis].clip(-LARGEST, LARGEST)
        score = tree.fit(column[:half], targets[:half]).score(column[half:], targets[half:])
        if score > GIVES_AWAY:
            found[name] = float(score)
    return found


def log(found: Statistics, dataset: Dataset, reporter: Reporter) -> None:
    """Print a table of the splits, and warn about problems that would spoil the training or its scores."""
    given = f"{len(dataset.features)} feature{'s' * (len(dataset.features) > 1)}"
    if dataset.images is not None:
        given = dataset.images.description
    targets = dataset.task.targets
    counted = f"{len(targets.names)} {targets.plural if len(targets.names) > 1 else targets.singular}"
    reporter.log(f"{dataset.name}: {counted}, {given}")
    for line in aligned(_table(found, dataset)):
        reporter.log(f"  {line}")
    _warn_of_leaks(found, dataset, reporter)
    for column, score in found.giving_away.items():
        fix = declaring({column: "leave_out"})
        reporter.warn(
            f"the column {column} predicts the target by itself ({score:.1%}), so it may contain the answer. "
            f"To leave it out: {fix}"
        )
    _warn_of_absent(found.by_class or {}, dataset, reporter)
    _warn_of_same_names(dataset.task.names if found.by_class is not None else (), reporter)
    for name, feature in dataset.features.items():
        for warning in feature.warnings(name, dataset.train, dataset.val):
            reporter.warn(warning)


def _table(found: Statistics, dataset: Dataset) -> list[list[str]]:
    """Return a row for each split, after a header; columns for classes and pixels if there are any."""
    header = ["split", dataset.unit]
    header += [f"per {dataset.task.targets.singular}"] if found.by_class is not None else []
    pixels = {
        name: [line[5:7] for line in found.rows if line[0] == name and line[3] == "image"] for name in dataset.splits
    }
    header += ["pixel mean", "pixel std"] if any(pixels.values()) else []
    rows = [[*header, "duplicates"]]
    for name, split in dataset.splits.items():
        row = [name, f"{len(split):,}"]
        if found.by_class is not None:
            fewest, most = found.by_class[name].min(), found.by_class[name].max()
            row.append(f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}")
        row += [" ".join(f"{value:.4g}" for value in values) for values in zip(*pixels[name], strict=True)]
        twice = [f"{found.repeated[name]:,} within {name}"] if found.repeated[name] else []
        twice += [f"{count:,} also in {one}" for (one, later), count in found.shared.items() if later == name and count]
        rows.append([*row, ", ".join(twice) or "0"])
    return rows


def _warn_of_leaks(found: Statistics, dataset: Dataset, reporter: Reporter) -> None:
    """Warn about examples that two splits share."""
    leaks = [
        f"{count:,} of {len(dataset.splits[later]):,} {later} {dataset.unit} are also in {one}"
        for (one, later), count in sorted(found.shared.items(), key=lambda pair: pair[0][1] == "test")
        if count
    ]
    if leaks:
        reporter.warn(f"{', '.join(leaks)}: the scores may be too high, as the network can memorize these")


def _warn_of_absent(by_class: Mapping[str, np.ndarray], dataset: Dataset, reporter: Reporter) -> None:
    """Warn about classes or labels without an example."""
    for name, counts in by_class.items():
        is_absent = (counts == 0) & ((by_class["train"] > 0) | (name == "train"))
        if is_absent.any():
            targets = dataset.task.targets
            reporter.warn(
                f"{is_absent.sum()} of {len(targets.names)} {targets.plural} have no example in {name} (for instance "
                f"{targets.names[is_absent.argmax()]}): add examples, or remove it from the data"
            )


def _warn_of_same_names(classes: Sequence[str], reporter: Reporter) -> None:
    """Warn about classes whose names differ only in case, spaces or the form of a letter; folders are refused."""
    first: dict[str, str] = {}
    for name in classes:
        other = first.setdefault(same_name(name), name)
        if other != name:
            reporter.warn(f"{other!a} and {name!a} are different classes: rename one if they mean the same")


def write(found: Statistics, dataset: Dataset, folder: Path) -> list[Path]:
    """Write `statistics.csv`, and `classes.csv`, a row a class, where there are any; returns them."""
    tables: dict[str, Sequence[Sequence[object]]] = {"statistics": [HEADER, *found.rows]}
    if found.by_class is not None:
        columns = zip(dataset.task.names, *found.by_class.values(), strict=True)
        tables["classes"] = [("class", *found.by_class), *columns]
    for name, rows in tables.items():
        write_csv(folder / f"{name}.csv", rows)
    return [folder / f"{name}.csv" for name in tables]


CLASSES = 10
"""Groups in a gallery, such as classes."""

EXAMPLES = 12
"""Images of each group in it."""

BATCH = 32
"""Images of the first batch that are shown."""


def inspect(
    dataset: Dataset,
    settings: InspectSettings,
    strategy: Strategy | None = None,
    reporter: Reporter | None = None,
    folder: Path | None = None,
) -> Record:
    """Return statistics of the splits, and draws the images that training will see. Changes nothing.

    Args:
        strategy: of several workers only the chief logs and draws. None: this process does.
        reporter: logs a table of the splits, and warns of images that are in two of them.
        folder: the run's; takes `data/statistics.csv`, `data/classes.csv`, and of images `plots/classes.png`,
            `plots/batch.png` and, where they are augmented, `plots/augmentation.png`. None: no files.
    """
    found = statistics(dataset)
    files: dict[str, Sequence[Path]] = {}
    if strategy is None or is_chief(strategy):
        log(found, dataset, reporter or Reporter())
        if folder is not None:
            files["data"] = write(found, dataset, folder / "data")
            if images_of(dataset.features):
                files["plots"] = draw(dataset, settings, folder / "plots")
    return Record(found.params, files=files)


def draw(dataset: Dataset, settings: InspectSettings, folder: Path) -> list[Path]:
    """Draw the galleries, of the first feature that is an image; return their files."""
    chosen = examples(dataset)
    names = drawable(dataset.task.names)
    [(feature, image), *_] = images_of(dataset.features).items()
    pixels = image.ends
    labels = [[label] for label in drawable([*chosen])]
    count = len(dataset.task.targets.groups(dataset.train.targets))
    kind = "class" if dataset.task.targets.singular == "class" else "group"
    title = f"Training images by {kind} ({len(chosen)} of {count})"
    train, on = dataset.train, dataset.task.targets.drawn_on
    rows_of_images = [on(train.features[feature][rows], train.targets[rows], pixels) for rows in chosen.values()]
    drawn = [plot_rows(rows_of_images, labels, pixels, title, folder / "classes.png")]
    if not all(transform.combines for transform in dataset.transforms):
        first = np.array([rows[0] for rows in chosen.values()])
        changed = [on(*both, pixels) for both in augmented(dataset, feature, first, EXAMPLES - 1, settings.seed)]
        title = f"{title}: the original and {EXAMPLES - 1} augmented versions"
        drawn.append(plot_rows(changed, labels, pixels, title, folder / "augmentation.png"))
    images, targets = first_batch(dataset, settings, feature)
    size = min(settings.batch_size, len(dataset.train))
    title = f"The first training batch as the network sees it ({len(images)} of {size} images)"
    titles = [dataset.task.targets.title(target, names) for target in targets]
    return [*drawn, plot_batch(on(images, targets, pixels), titles, pixels, title, folder / "batch.png")]


def examples(dataset: Dataset) -> dict[str, np.ndarray]:
    """Return for each of the first CLASSES groups that have any, EXAMPLES rows of the training split, int64 [n].

    They are spread over the whole split, because neighbors are often from one source; fewer where the group has fewer.
    """
    of_class = dataset.task.targets.groups(dataset.train.targets).items()
    present = itertools.islice(((label, rows) for label, rows in of_class if len(rows)), CLASSES)
    return {label: rows[evenly_spread(len(rows), EXAMPLES)] for label, rows in present}


def augmented(
    dataset: Dataset, feature: str, rows: np.ndarray, versions: int, seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return each image with its `versions`, float32 [1 + versions, H, W, C], changed as in training, and the targets.

    Args:
        dataset: The data set, with its transforms. Those that combine examples are left out.
        feature: The feature that is drawn.
        rows: Examples of the training split, int64 [n].
        versions: The number of versions of each image.
        seed: A seed for the random numbers, which are not those of any step.
    """

    def key(purpose: str) -> Any:
        return [derive(seed, "inspect", purpose), 0]

    with tf.device("/cpu:0"):
        example = SplitReader.of(dataset.train).read(tf.repeat(rows, versions))
        before = example.inputs[feature][::versions].numpy(), example.targets[::versions].numpy()
        for transform in dataset.transforms:
            if not transform.combines:
                example = transform(example, transform.draw(len(rows) * versions, key))
        after = example.inputs[feature].numpy(), example.targets.numpy()
    pairs = []
    for place in range(len(rows)):
        own = slice(place * versions, (place + 1) * versions)
        images, targets = (
            np.concatenate([old[place : place + 1], new[own]]) for old, new in zip(before, after, strict=True)
        )
        pairs.append((images, targets))
    return pairs


def first_batch(dataset: Dataset, settings: InspectSettings, feature: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the first BATCH rows of the global batch of the first training step.

    Returns:
        The images of `feature`, float32 [b, H, W, C], changed by the transforms of the input; and the targets as the
        batch has them: int32 [b], or float32 [b, classes] if images are mixed.
    """
    batch = batches.first_batch(dataset, settings.batch_size, settings.seed)
    return batch.inputs[feature][:BATCH].numpy(), batch.targets[:BATCH].numpy()
