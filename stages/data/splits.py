"""From arrays to the three splits of a data set."""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from sklearn.model_selection import train_test_split

from stages.errors import UserError
from stages.images import Images
from stages.results import Dataset, Record, Split
from stages.seeds import derive

SPLITS = ("train", "val", "test")

_TRIALS = 20
"""Sizes of a split that are tried to find one that works."""


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
        UserError: where a class has too few examples to be in both.
    """
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
        UserError: where a class has too few examples to be in all of them; its fix has fractions that work, if any do.
    """
    rows = {"train": np.arange(len(labels))}
    for name, fraction in fractions.items():
        try:
            stay, part = _cut(labels[rows["train"]], fraction, seed, name)
        except ValueError as error:
            working = _working(labels, fractions, seed)
            raise _cannot_cut(labels[rows["train"]], fractions, working, name, error, class_names) from error
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
    labels: np.ndarray,
    fractions: Mapping[str, float],
    working: Mapping[str, float],
    name: str,
    error: ValueError,
    class_names: Sequence[str],
) -> UserError:
    """Returns the error for the split `name` of examples with `labels`; its fix is those of `working` that differ."""
    counts = np.bincount(labels)
    rare = int(np.argmin(np.where(counts, counts, len(labels) + 1)))
    rarest = f"{class_names[rare] if class_names else f'class {rare}'} has {counts[rare]}"
    return UserError(
        f"the {name} split cannot take {fractions[name]:g} of {len(labels):,} examples of "
        f"{np.count_nonzero(counts)} classes, of which {rarest} ({error})",
        f"at least one example of each class in every split, so {len(fractions) + 1} or more of each class",
        " ".join(
            f"data.{split}_fraction={fraction:.8g}"
            for split, fraction in working.items()
            if fraction != fractions[split]
        ),
    )


def _working(labels: np.ndarray, fractions: Mapping[str, float], seed: int) -> dict[str, float]:
    """Returns fractions near `fractions` with which every split can be cut; empty where there are none."""
    if not fractions:
        return {}
    (name, fraction), *remaining = fractions.items()
    classes = len(np.unique(labels))
    requested = int(np.ceil(fraction * len(labels)))
    most = len(labels) - classes * (1 + len(remaining))
    reserved = classes if name == "test" else 0  # another split may be cut from the remaining examples
    near = max(min(requested, most - reserved), classes)
    for size in sorted(range(classes, most + 1), key=lambda size: abs(size - near))[:_TRIALS]:
        trial = fraction if size == requested else _fraction(size, len(labels))
        try:
            stay, _ = _cut(labels, trial, seed, name)
        except ValueError:
            continue
        cuts = _working(labels[stay], dict(remaining), seed)
        if len(cuts) == len(remaining):
            return {name: trial, **cuts}
    return {}


def _fraction(size: int, examples: int) -> float:
    """Returns the shortest decimal fraction for which scikit-learn takes `size` of `examples`; it rounds up."""
    for digits in range(1, 9):
        fraction = np.floor(size / examples * 10**digits) / 10**digits
        if np.ceil(fraction * examples) == size:
            return float(fraction)
    return size / examples


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
        content.update(np.ascontiguousarray(split.labels).data)
        if source is None:
            content.update(split.described.digests.data)
        elif rows is not None:
            content.update(np.ascontiguousarray(rows[key]).data)
    return content.hexdigest()[:32]
