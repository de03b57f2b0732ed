"""Columns: the values of a feature over all rows, in memory or read at each use; digests of rows, moments of images."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

ALIGNMENT = 64
"""Bytes; Eigen's, for AVX-512."""


@dataclass(frozen=True)
class Streamed:
    """Values that are read at each use.

    read: from rows, a slice or int64 [n], to their values [n, ...]; safe in several threads at once.
    """

    read: Callable[[Any], np.ndarray]
    shape: tuple[int, ...]
    dtype: Any

    @classmethod
    def of(cls, array: np.ndarray) -> "Streamed":
        """Return the values of an array on the disk."""
        return cls(array.__getitem__, array.shape, array.dtype)

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Return the values of `rows`, a slice or int64 [n], as an array [n, ...]; safe in several threads at once."""
        return self.read(rows)


Rows: TypeAlias = np.ndarray | Streamed
"""Values [N, ...] that are not gathered from others."""


@dataclass(frozen=True)
class Gathered:
    """Values gathered from shared rows at each use: one row, or several consecutive ones, for each example.

    Overlapping windows of a series take no more memory than the series.
    """

    rows: Rows
    """The rows of all examples, [R, ...]."""
    starts: np.ndarray
    """The first row of each example, int64 [N]."""
    length: int | None = None
    """The number of rows of an example; None: one row, without an axis for it."""
    is_flat: bool = False
    """Whether the rows of an example are joined to one vector."""

    @property
    def dtype(self) -> Any:
        """The dtype of the rows."""
        return self.rows.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of examples, and the shape of one."""
        of_row = tuple(self.rows.shape[1:])
        steps = () if self.length is None else (self.length,)
        return (len(self.starts), int(np.prod(steps + of_row))) if self.is_flat else (len(self.starts), *steps, *of_row)

    def places(self, examples: Any) -> np.ndarray:
        """Return the rows of some examples, a slice or int64 [n], as int64 [n] or [n, length]."""
        first = self.starts[examples]
        return first if self.length is None else first[:, np.newaxis] + np.arange(self.length)

    def __getitem__(self, examples: Any) -> np.ndarray:
        """Return the values of some examples, a slice or int64 [n]; safe in several threads at once."""
        places = self.places(examples)
        values = self.rows[places.ravel()]
        return values.reshape(len(places), *self.shape[1:])

    @property
    def covered(self) -> np.ndarray:
        """The rows that any example has, int64 in order."""
        ends = np.zeros(self.rows.shape[0] + 1, np.int64)
        np.add.at(ends, self.starts, 1)
        np.add.at(ends, self.starts + (self.length or 1), -1)
        return np.flatnonzero(ends[:-1].cumsum())


Column: TypeAlias = Rows | Gathered
"""Values [N, ...] of any dtype, by rows."""


def is_in_memory(column: Column) -> bool:
    """Return whether a column needs no disk."""
    return isinstance(column.rows if isinstance(column, Gathered) else column, np.ndarray)


def taken(column: Column, rows: np.ndarray) -> Column:
    """Return the values of `rows`, int64 [n], read at each use where the others are.

    Numbers in memory are aligned as TensorFlow aligns its own, so that it can share their memory.
    """
    if isinstance(column, Gathered):
        return replace(column, starts=column.starts[rows])
    shape = (len(rows), *column.shape[1:])
    if not isinstance(column, np.ndarray):
        return Streamed(lambda some: column[rows[some]], shape, column.dtype)
    if column.dtype == object:
        return column[rows]
    size = int(np.prod(shape)) * column.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    aligned = raw[start : start + size].view(column.dtype).reshape(shape)
    return column.take(rows, axis=0, out=aligned, mode="clip")  # without the buffer of the other modes


def held(column: Column, most: int | None = None) -> np.ndarray:
    """Return the values of a column in memory: all of them, or the first `most`."""
    return np.asarray(column[:most])


def blocks_of(column: Column) -> Iterator[np.ndarray]:
    """Yield the values of a column, some rows at a time if it is read at each use."""
    step = max(1, column.shape[0]) if isinstance(column, np.ndarray) else max(1, CHUNK_BYTES // _row_bytes(column))
    for start in range(0, column.shape[0], step):
        yield np.asarray(column[start : start + step])


def _row_bytes(column: Column) -> int:
    return max(1, int(np.prod(column.shape[1:])) * np.dtype(column.dtype).itemsize)


def evenly_spread(count: int, most: int) -> np.ndarray:
    """Return rows, int64, from the first of `count` to the last: all of them, or `most`."""
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).astype(np.int64)


CHUNK = 1024
"""Images that are in memory at once while they are decoded or described."""

CHUNK_BYTES = 2**25
"""Bytes of these images."""

BLOCK = 2**20
"""Rows that are digested at once."""

WORKERS = os.cpu_count() or 1
"""Threads that decode and describe."""


@dataclass(frozen=True)
class Described:
    """Facts about examples that need reading all of them."""

    digests: np.ndarray
    """uint64 [N], equal where all features are."""
    moments: Mapping[str, np.ndarray] = field(default_factory=dict)
    """The mean and the mean square of each image by channel, float64 [N, 2, C], by the names of features."""

    def of(self, rows: np.ndarray | slice) -> "Described":
        """Return what is known of `rows`."""
        return Described(self.digests[rows], {name: moments[rows] for name, moments in self.moments.items()})

    def mean_and_std(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and std of all pixels of a feature by channel, float64 [C] each; its images are of one size."""
        mean, square = self.moments[name].mean(axis=0)
        return mean, np.sqrt(np.maximum(square - np.square(mean), 0.0))


def chunk_of(image_shape: tuple[int, ...]) -> int:
    """Return how many images of a shape are in memory at once while they are decoded or described."""
    return max(1, min(CHUNK, CHUNK_BYTES // int(np.prod(image_shape))))


def describe(features: Mapping[str, Column]) -> Described:
    """Return digests of all examples and moments of their images, reading a few at a time."""
    names = sorted(features)
    images = {name: describe_images(features[name]) for name in names if len(features[name].shape) == 4}
    moments = {name: of_images for name, (_, of_images) in images.items()}
    columns = [images[name][0] if name in images else _digested(features[name]) for name in names]
    is_alone = len(images) == len(columns) == 1
    return Described(columns[0][:] if is_alone else digests_of_rows(columns, [None] * len(columns)), moments)


ODD = 0x9E3779B97F4A7C15
"""An odd number without a pattern, for digests modulo 2**64."""


def _digested(column: Column) -> Rows:
    """Return a column, or digests of a gathered one, each row of which is digested only once, uint64 [N].

    The digest of consecutive rows is a polynomial of theirs modulo 2**64, from differences of its sums over all rows.
    """
    if not isinstance(column, Gathered):
        return column
    digests, one = digests_of_rows([column.rows], [None]), np.ones(1, np.uint64)
    if column.length is None:
        return digests[column.starts]

    def powers(base: int) -> np.ndarray:
        return np.concatenate([one, np.full(len(digests), base, np.uint64)]).cumprod(dtype=np.uint64)

    sums = np.concatenate([one * np.uint64(0), (digests * powers(ODD)[:-1]).cumsum(dtype=np.uint64)])
    inverse = powers(pow(ODD, -1, 2**64))
    difference: np.ndarray = sums[column.starts + column.length] - sums[column.starts]
    return difference * inverse[column.starts]


def describe_images(images: Column) -> tuple[np.ndarray, np.ndarray]:
    """Return a digest of each image, uint64 [N], and its moments, float64 [N, 2, C], reading a few at a time."""
    count = images.shape[0]
    step = max(1, chunk_of(images.shape[1:]) // (2 * WORKERS))  # an image may be too little for a task
    with ThreadPoolExecutor(WORKERS) as pool:
        starts = range(0, max(count, 1), step)
        parts = list(pool.map(lambda start: describe_block(images[start : start + step]), starts))
    digests, moments = zip(*parts, strict=True)
    return np.concatenate(digests), np.concatenate(moments)


def digests_of_rows(columns: Sequence[Column], texts: Sequence[Sequence[str] | None]) -> np.ndarray:
    """Return digests of the rows of columns, [N, ...], uint64 [N].

    Args:
        texts: of each column, those that its numbers stand for; None: it has values of its own.
    """
    import pandas as pd  # which commands without TensorFlow need not wait for

    parts = []
    for start in range(0, max(columns[0].shape[0], 1), BLOCK):
        values: list[Any] = []
        for column, words in zip(columns, texts, strict=True):
            part = column[start : start + BLOCK].reshape(-1, int(np.prod(column.shape[1:])))
            part = part + 0 if part.dtype.kind in "fiu" else part  # of numbers -0.0 is 0.0
            values += [*part.T] if words is None else [pd.Categorical.from_codes(part[:, 0], words)]
        parts.append(pd.util.hash_pandas_object(pd.DataFrame(dict(enumerate(values))), index=False).to_numpy())
    return np.concatenate(parts)


def describe_block(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return digests and moments of a few images, whatever others are described with them.

    A digest is 64 bits of BLAKE2 of an image's bytes: among a million others, a wrong match has odds of 1 in 4e7.
    """
    count, height, width, channels = images.shape
    wide = images.astype(np.float64).reshape(count, height * width, channels)
    ones = np.ones(height * width)  # products of matrices are twice as fast as `sum`; whole numbers have the same bits
    sums = np.stack([ones @ wide, ones @ np.square(wide)], axis=1)
    digests = b"".join(hashlib.blake2b(image, digest_size=8).digest() for image in np.ascontiguousarray(images))
    return np.frombuffer(digests, "<u8"), sums / (height * width)
