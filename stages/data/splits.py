"""From arrays to the three splits of a data set."""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from sklearn.model_selection import train_test_split

from stages.dataset_rules import int32_labels, refuse_other_labels
from stages.errors import UserError
from stages.images import Images
from stages.results import Dataset, Record, Split
from stages.seeds import derive

SPLITS = ("train", "val", "test")


def divide(images: Images, labels: np.ndarray, fraction: float, seed: int, name: str) -> tuple[Split, Split]:
    """Cuts off `fraction` of the examples, the same fraction of every class.

    Args:
        images: [N, H, W, C].
        labels: int [N].
        fraction: of the examples that go to the second split, above 0 and below 1.
        seed: `split_seed` of the settings; equal seeds give equal splits.
        name: of the second split; it makes its cut differ from others of the same seed.

    Returns:
        The rest and the part, each in the order of the source.

    Raises:
        UserError: where labels are no class numbers, one an image, or a class has too few examples to be in both.
    """
    labels = int32_labels(labels)
    if len(labels) != images.shape[0]:
        raise UserError(f"there are {images.shape[0]:,} images and {len(labels):,} labels", "one label an image")
    rows = cut_all(labels, {name: fraction}, seed)
    stay, part = rows["train"], rows[name]
    return Split(images[stay], labels[stay], numbers=stay), Split(images[part], labels[part], numbers=part)


def cut_all(
    labels: np.ndarray, fractions: Mapping[str, float], seed: int, class_names: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Returns the rows, int64 in order, of each split in `fractions`, cut one after another, and of `train`: the rest.

    Args:
        labels: int [N].
        fractions: from each split to its fraction of the examples that the splits before it have left.
        class_names: for the message about a class with too few examples.

    Raises:
        UserError: where labels are no class numbers, or a class has too few examples to be in all splits; its fix has
            fractions that work, if any do.
    """
    refuse_other_labels("the", labels)
    rows = {"train": np.arange(len(labels))}
    for name, fraction in fractions.items():
        try:
            stay, part = _cut(labels[rows["train"]], fraction, seed, name)
        except ValueError as error:
            raise _cannot_cut(labels, len(rows["train"]), fractions, name, class_names) from error
        rows |= {name: rows["train"][part], "train": rows["train"][stay]}
    return rows


def _cut(labels: np.ndarray, fraction: float, seed: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Raises ValueError, scikit-learn's word for a class with too few examples."""
    stay, part = train_test_split(
        np.arange(len(labels)), test_size=fraction, stratify=labels, random_state=derive(seed, "split", name)
    )
    stay.sort()
    part.sort()
    return stay, part


def _cannot_cut(
    labels: np.ndarray, examples: int, fractions: Mapping[str, float], name: str, class_names: Sequence[str]
) -> UserError:
    """Returns the error for the split `name`, which is cut from the `examples` that earlier splits have left."""
    classes, counts = np.unique(labels, return_counts=True)
    rarest, needed = int(np.argmin(counts)), len(fractions) + 1
    if counts[rarest] < needed:
        rare = class_names[classes[rarest]] if class_names else f"class {classes[rarest]}"
        return UserError(
            f"the {name} split cannot be cut: {rare} has {counts[rarest]} of {len(labels):,} examples",
            f"{needed} or more examples of each class, one for each split",
        )
    working = _working(len(labels), len(classes), fractions)
    changed = {split: value for split, value in working.items() if value != fractions[split]}
    return UserError(
        f"the {name} split cannot take {fractions[name]:g} of {examples:,} examples: it and the rest need one of each "
        f"of the {len(classes):,} classes",
        f"{len(classes):,} examples or more in every split",
        " ".join(f"data.{split}_fraction={value:.9g}" for split, value in changed.items()),
    )


def _working(examples: int, classes: int, fractions: Mapping[str, float]) -> dict[str, float]:
    """Returns the nearest fractions between an example of each class and an equal part for each split still to cut.

    They work where each class has an example for each split.
    """
    working = {}
    for later, (name, fraction) in zip(range(len(fractions), 0, -1), fractions.items(), strict=True):
        nearest = min(max(fraction, classes / examples), 1 / (later + 1))
        floor = float(np.floor(nearest * 1e9) / 1e9)  # scikit-learn rounds the number of examples up
        working[name] = fraction if nearest == fraction else floor
        examples -= int(np.ceil(working[name] * examples))
    return working


def assemble(
    name: str,
    train: Split,
    val: Split,
    test: Split,
    class_names: tuple[str, ...],
    pixel_range: tuple[float, float] = (0.0, 255.0),
) -> Dataset:
    """Returns the data set of three splits, with the fingerprint of their pixels and labels."""
    splits = {"train": train, "val": val, "test": test}
    return dataset_of(name, splits, class_names, pixel_range, fingerprint_of(splits))


def dataset_of(
    name: str,
    splits: Mapping[str, Split],
    class_names: tuple[str, ...],
    pixel_range: tuple[float, float],
    fingerprint: str,
) -> Dataset:
    """Returns the data set of `train`, `val` and `test`, with its fingerprint as a parameter to record."""
    train, val, test = (splits[key] for key in SPLITS)
    record = Record(params={"fingerprint": fingerprint})
    return Dataset(name, train, val, test, class_names, pixel_range, fingerprint, record=record)


def fingerprint_of(
    splits: Mapping[str, Split], source: str | None = None, rows: Mapping[str, np.ndarray] | None = None
) -> str:
    """Returns a digest that changes with the content of the splits.

    Args:
        source: the fingerprint of a source too large to be read through; None: the pixels are digested.
        rows: of the source, int64, that the splits consist of.
    """
    content = hashlib.sha256((source or "").encode())
    for key in SPLITS:
        split = splits[key]
        content.update(f"{key} {split.images.dtype} {split.images.shape}".encode())
        content.update(split.labels.tobytes())
        if source is None:
            content.update(split.described.digests.data)
        elif rows is not None:
            content.update(np.ascontiguousarray(rows[key]).data)
    return content.hexdigest()[:32]
