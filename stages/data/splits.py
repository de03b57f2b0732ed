"""From arrays to the three splits of a data set."""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from sklearn.model_selection import train_test_split

from stages.errors import UserError
from stages.images import Images
from stages.results import Dataset, Record, Split
from stages.seeds import derive

_TRIALS = 20
"""Sizes of a split that are tried to find one that works."""


def divide(images: Images, labels: np.ndarray, fraction: float, seed: int, name: str) -> tuple[Split, Split]:
    """Cuts off `fraction` of the examples, the same share of every class.

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
    kept, part = cut(labels, fraction, seed, name)
    return Split(images[kept], labels[kept], numbers=kept), Split(images[part], labels[part], numbers=part)


def cut(labels: np.ndarray, fraction: float, seed: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows that stay and the rows of the part, int64, both in order. See `divide`."""
    try:
        return _cut(labels, fraction, seed, name)
    except ValueError as error:
        raise _cannot_cut(labels, labels, {name: fraction}, seed, name, error) from error


def cut_all(
    labels: np.ndarray, fractions: Mapping[str, float], seed: int, class_names: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Returns the rows, int64 in order, of each split in `fractions`, cut one after another, and of `train`: the rest.

    Args:
        labels: int [N].
        fractions: from each split to its share of what the splits before it have left.
        class_names: for the message about a class with too few examples.

    Raises:
        UserError: where a class has too few examples to be in all of them; its fix has fractions that work, if any do.
    """
    rows = {"train": np.arange(len(labels))}
    for name, fraction in fractions.items():
        try:
            kept, part = _cut(labels[rows["train"]], fraction, seed, name)
        except ValueError as error:
            raise _cannot_cut(labels, labels[rows["train"]], fractions, seed, name, error, class_names) from error
        rows |= {name: rows["train"][part], "train": rows["train"][kept]}
    return rows


def _cut(labels: np.ndarray, fraction: float, seed: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Raises ValueError, scikit-learn's word for a class with too few examples."""
    kept, part = train_test_split(
        np.arange(len(labels)), test_size=fraction, stratify=labels, random_state=derive(seed, "split", name)
    )
    kept.sort()
    part.sort()
    return kept, part


def _cannot_cut(
    labels: np.ndarray,
    left: np.ndarray,
    fractions: Mapping[str, float],
    seed: int,
    name: str,
    error: ValueError,
    class_names: Sequence[str] = (),
) -> UserError:
    """Returns the error for the split `name`, which is cut from the examples that are `left` of `labels`."""
    counts = np.bincount(left)
    rare = int(np.argmin(np.where(counts, counts, len(left) + 1)))
    rarest = f"{class_names[rare] if class_names else f'class {rare}'} has {counts[rare]}"
    working = _working(labels, fractions, seed)
    return UserError(
        f"the {name} split cannot take {fractions[name]:g} of {len(left):,} examples of "
        f"{np.count_nonzero(counts)} classes, of which {rarest} ({error})",
        f"at least one example of each class in every split, so {len(fractions) + 1} or more of each class",
        " ".join(
            f"data.{split}_fraction={fraction:.8g}"
            for split, fraction in working.items()
            if fraction != fractions[split]
        ),
    )


def _working(labels: np.ndarray, fractions: Mapping[str, float], seed: int) -> dict[str, float]:
    """Returns fractions near `fractions` with which every split can be cut; empty where none was found."""
    if not fractions:
        return {}
    (name, wanted), *rest = fractions.items()
    classes = len(np.unique(labels))
    given = int(np.ceil(wanted * len(labels)))
    most = len(labels) - classes * (1 + len(rest))
    near = max(min(given, most - (classes if name == "test" else 0)), classes)  # another split may be cut from the rest
    for size in sorted(range(classes, most + 1), key=lambda size: abs(size - near))[:_TRIALS]:
        fraction = wanted if size == given else _fraction(size, len(labels))
        try:
            kept, _ = _cut(labels, fraction, seed, name)
        except ValueError:
            continue
        others = _working(labels[kept], dict(rest), seed)
        if len(others) == len(rest):
            return {name: fraction, **others}
    return {}


def _fraction(size: int, examples: int) -> float:
    """Returns the shortest decimal of which scikit-learn takes `size` of `examples`: it rounds up."""
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
    fingerprint: str | None = None,
    rows: Mapping[str, np.ndarray] | None = None,
) -> Dataset:
    """Returns the data set with its fingerprint, and its sizes as parameters to record.

    Args:
        fingerprint: of a source that nobody wants to read through; None: the pixels decide.
        rows: of the source, int64, which the splits are.
    """
    splits = {"train": train, "val": val, "test": test}
    content = hashlib.sha256((fingerprint or "").encode())
    for key, split in splits.items():
        content.update(f"{key} {split.images.dtype} {split.images.shape}".encode())
        content.update(np.ascontiguousarray(split.labels).data)
        if fingerprint is None:
            content.update(split.described.digests.data)
        elif rows is not None:
            content.update(np.ascontiguousarray(rows[key]).data)
    digest = content.hexdigest()[:32]
    sizes = {f"{key}_examples": len(split) for key, split in splits.items()}
    record = Record(params={**sizes, "fingerprint": digest})
    return Dataset(name, train, val, test, class_names, pixel_range, digest, record=record)
