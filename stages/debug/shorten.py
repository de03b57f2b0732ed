"""The `shorten` stage of a debug run: the same data set with few examples."""

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from stages.images import Images, Streamed
from stages.reporter import Reporter, Silent
from stages.results import Dataset, Record, Split

REPEATED_BYTES = 2**28
"""Of one batch, repeated, that may be in memory: a parameter server's workers take no other images."""


@dataclass(kw_only=True)
class ShortenSettings:
    """The part of each split that is left.

    same_batch: whether every step is to train on one batch, which validation takes, too, and evaluation.
    """

    _target_: str = "stages.debug.shorten.shorten"
    steps: int = 2
    batch_size: int = 64
    same_batch: bool = False


def shorten(dataset: Dataset, settings: ShortenSettings, reporter: Reporter | None = None) -> Dataset:
    """Returns `dataset` with at most `steps` batches in each split.

    The last batch of a shortened split has as many examples as that of the whole one, as it is the one that replicas
    share unevenly. The examples are spread over the split, as it may be sorted by class.
    """
    batch = settings.batch_size
    steps = settings.steps
    splits = {name: _some(split, _count(len(split), batch, steps)) for name, split in dataset.splits.items()}
    if settings.same_batch:
        one = _in_memory(_some(dataset.train, min(batch, len(dataset.train))))
        splits = {"train": _repeated(one, steps), "val": one, "test": one}
    counts = ", ".join(f"{len(split):,} of {len(dataset.splits[name]):,} {name}" for name, split in splits.items())
    text = f"one batch of {len(splits['val']):,} examples" if settings.same_batch else f"{counts} examples"
    (reporter or Silent()).log(f"debug run with {text}")
    facts = f"{dataset.fingerprint} {steps} {batch} {settings.same_batch}"
    fingerprint = hashlib.sha256(facts.encode()).hexdigest()[:32]  # features in the cache are of this data set alone
    shuffled = dataset.is_shuffled and not settings.same_batch
    return replace(
        dataset,
        train=splits["train"],
        val=splits["val"],
        test=splits["test"],
        fingerprint=fingerprint,
        is_shuffled=shuffled,
        record=Record(),
    )


def _count(examples: int, batch_size: int, steps: int) -> int:
    """Returns the number of examples that are left of a split: those of `steps` steps, the last as it is at its end."""
    if examples <= batch_size * steps:
        return examples
    return batch_size * (steps - 1) + (examples % batch_size or batch_size)


def _some(split: Split, count: int) -> Split:
    """Returns `count` examples of a split, at equal distances."""
    if count == len(split):
        return split
    rows = np.arange(count) * len(split) // count
    return Split(
        _images(split.images, rows),
        split.labels[rows],
        cached=split.cached.of(rows) if split.cached is not None else None,
        numbers=split.numbers[rows] if split.numbers is not None else None,
        files=[split.files[int(row)] for row in rows] if split.files is not None else None,
    )


def _images(images: Images, rows: np.ndarray, in_place: bool = False) -> Images:
    """Returns the images of `rows`, read at each use where they are now, or else `in_place`."""
    if isinstance(images, np.ndarray) and not in_place:
        return np.ascontiguousarray(images[rows])
    if isinstance(images, Streamed):
        return replace(images, rows=images.rows[rows])
    return Streamed(images.__getitem__, rows, (images.shape[1], images.shape[2], images.shape[3]), images.dtype)


def _in_memory(split: Split) -> Split:
    return Split(np.asarray(split.images[np.arange(len(split))]), split.labels)


def _repeated(split: Split, times: int) -> Split:
    """Returns a split that holds `split` several times, its images once if they are large."""
    rows = np.tile(np.arange(len(split)), times)
    images = np.asarray(split.images)
    return Split(_images(images, rows, in_place=images.nbytes * times > REPEATED_BYTES), split.labels[rows])
