"""From arrays to the three splits of a data set."""

import hashlib
from collections.abc import Mapping

import numpy as np
from sklearn.model_selection import train_test_split

from stages.errors import UserError
from stages.pictures import Pictures
from stages.results import Dataset, Record, Split
from stages.seeds import derive


def divide(images: Pictures, labels: np.ndarray, fraction: float, seed: int, name: str) -> tuple[Split, Split]:
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
    return Split(images[kept], labels[kept]), Split(images[part], labels[part])


def cut(labels: np.ndarray, fraction: float, seed: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows that stay and the rows of the part, int64, both in order. See `divide`."""
    try:
        kept, part = train_test_split(
            np.arange(len(labels)), test_size=fraction, stratify=labels, random_state=derive(seed, "split", name)
        )
    except ValueError as error:
        raise UserError(
            f"the {name} split cannot take {fraction:g} of {len(labels)} examples ({error})",
            "at least one example of each class in every split",
            f"data.{name}_fraction=0.2, or give more examples",
        ) from error
    kept.sort()
    part.sort()
    return kept, part


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
