"""Columns: the values of a feature over all rows, in memory or read at each use; digests of rows, moments of images."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

ALIGNMENT = 64
"""Bytes; Eigen's, for AVX-512."""


class Column(Protocol):
    """Values [N, ...] of any dtype, by rows. A NumPy array is one; `Streamed` reads them at each use."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Returns the values of `rows`, a slice or int64 [n], as an array [n, ...]; safe in several threads at once."""


@dataclass(frozen=True)
class Streamed:
    """Values that are read at each use.

    read: from numbers of the source, int64 [n], to their values [n, ...]; safe in several threads at once.
    rows: which of the source's examples these are, int64 [N].
    example_shape: the shape of one.
    """

    read: Callable[[np.ndarray], np.ndarray]
    rows: np.ndarray
    example_shape: tuple[int, ...]
    dtype: Any = np.dtype(np.uint8)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.example_shape)

    def __getitem__(self, rows: Any) -> np.ndarray:
        return self.read(self.rows[rows])


def taken(column: Column, rows: np.ndarray) -> Column:
    """Returns the values of `rows`, int64 [n], read at each use where the others are."""
    if isinstance(column, Streamed):
        return replace(column, rows=column.rows[rows])
    if isinstance(column, np.ndarray):
        return np.ascontiguousarray(column[rows])
    return Streamed(column.__getitem__, rows, column.shape[1:], column.dtype)


def evenly_spread(count: int, most: int) -> np.ndarray:
    """Returns rows, int64, from the first of `count` to the last: all of them, or `most`."""
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).astype(np.int64)


CHUNK = 1024
"""Images that are in memory at once while they are decoded or described."""

CHUNK_BYTES = 2**25
"""Bytes of these images."""

WORKERS = os.cpu_count() or 1
"""Threads that decode and describe."""


@dataclass(frozen=True)
class Described:
    """digests: uint64 [N], equal where all features are.

    moments: each image's mean and mean square by channel, float64 [N, 2, C]; C is 0 without images.
    """

    digests: np.ndarray
    moments: np.ndarray

    def of(self, rows: np.ndarray | slice) -> "Described":
        return Described(self.digests[rows], self.moments[rows])

    @property
    def mean_and_std(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and std of all pixels by channel, float64 [C] each; images are all of one size."""
        mean, square = self.moments.mean(axis=0)
        return mean, np.sqrt(np.maximum(square - np.square(mean), 0.0))


def chunk_of(image_shape: tuple[int, ...]) -> int:
    """Returns how many images of a shape are in memory at once while they are decoded or described."""
    return max(1, min(CHUNK, CHUNK_BYTES // int(np.prod(image_shape))))


def describe(features: Mapping[str, Column]) -> Described:
    """Returns digests of all examples and moments of their images, reading a few at a time."""
    columns = [features[name] for name in sorted(features)]
    count = columns[0].shape[0]
    step = max(1, chunk_of(columns[0].shape[1:]) // (2 * WORKERS))  # an image may be too little for a task

    def part(start: int) -> Described:
        return _described([column[slice(start, start + step)] for column in columns])

    with ThreadPoolExecutor(WORKERS) as pool:
        parts = list(pool.map(part, range(0, count, step)))
    if not parts:
        return _described([np.empty(column.shape, column.dtype) for column in columns])
    return Described(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("digests", "moments")))


def _described(block: Sequence[np.ndarray]) -> Described:
    """Returns digests and moments of a few examples, by their columns."""
    if len(block) == 1 and block[0].ndim == 4:
        return describe_block(block[0])
    rows = zip(*block, strict=True)
    digests = [_digest(b"".join(_bytes_of(value) for value in row)) for row in rows]
    return Described(np.array(digests, np.uint64), np.empty((len(digests), 2, 0)))


def _bytes_of(value: Any) -> bytes:
    """Returns the bytes of a value after their number, which tells `ab`, `c` from `a`, `bc`."""
    dtype = np.str_ if isinstance(value, str) else np.bytes_ if isinstance(value, bytes) else None  # not its address
    content = np.asarray(value, dtype).tobytes()
    return len(content).to_bytes(8, "little") + content


def describe_block(images: np.ndarray) -> Described:
    """Returns digests and moments of a few images, whatever others are described with them."""
    count, height, width, channels = images.shape
    wide = images.astype(np.float64).reshape(count, height * width, channels)
    ones = np.ones(height * width)  # products of matrices are twice as fast as `sum`; whole numbers have the same bits
    sums = np.stack([ones @ wide, ones @ np.square(wide)], axis=1)
    return Described(np.array([digest(image) for image in images], np.uint64), sums / (height * width))


def empty(shape: tuple[int, ...]) -> np.ndarray:
    """Returns uninitialized images, uint8, aligned as TensorFlow aligns its own, so that it can share their memory."""
    raw = np.empty(int(np.prod(shape)) + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + int(np.prod(shape))].reshape(shape)


def digest(image: np.ndarray) -> int:
    """Returns 64 bits of BLAKE2 of an image's bytes: among a million others, a wrong match has odds of 1 in 4e7."""
    return _digest(np.ascontiguousarray(image).data)


def _digest(content: Any) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
