"""Digests and moments of images, and arrays that TensorFlow can share."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from stages.data.columns import ALIGNMENT, Column

CHUNK = 1024
"""Images that are in memory at once while they are decoded or described."""

CHUNK_BYTES = 2**25
"""Bytes of these images."""

DESCRIBED_VALUES = 2**18
"""Values of small images that are described by one call."""

WORKERS = os.cpu_count() or 1
"""Threads that decode and describe."""


@dataclass(frozen=True)
class Described:
    """digests: uint64 [N], equal where the pixels are; moments: float64 [N, 2, C], each image's mean and mean square
    by channel.
    """

    digests: np.ndarray
    moments: np.ndarray

    def of(self, rows: np.ndarray | slice) -> "Described":
        return Described(self.digests[rows], self.moments[rows])


def chunk_of(image_shape: tuple[int, ...]) -> int:
    """Returns how many images of a shape are in memory at once while they are decoded or described."""
    return max(1, min(CHUNK, CHUNK_BYTES // int(np.prod(image_shape))))


def describe(images: Column) -> Described:
    """Returns digests and moments of all images, reading a few of them at a time."""
    step = max(1, chunk_of(images.shape[1:]) // (2 * WORKERS))  # an image may be too little for a task
    with ThreadPoolExecutor(WORKERS) as pool:
        starts = range(0, images.shape[0], step)
        parts = list(pool.map(lambda start: describe_block(images[slice(start, start + step)]), starts))
    if not parts:
        return describe_block(np.empty(images.shape, images.dtype))
    return Described(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("digests", "moments")))


def describe_block(images: np.ndarray) -> Described:
    """Returns digests and moments of a few images, whatever others are described with them."""
    count, height, width, channels = images.shape
    pixels = height * width
    is_whole = images.dtype == np.uint8
    together = max(1, DESCRIBED_VALUES // (pixels * channels)) if is_whole else 1
    moments = np.empty((count, 2, channels))
    for start in range(0, count, together):
        wide = images[start : start + together].reshape(-1, pixels, channels).astype(np.float64)
        rows = slice(start, start + len(wide))
        if is_whole:  # sums of whole numbers are exact in any order: in that of matrix products, the fastest
            moments[rows, 0] = np.ones(pixels) @ wide
            moments[rows, 1] = np.diagonal(wide.transpose(0, 2, 1) @ wide, axis1=1, axis2=2)
        else:
            moments[rows, 0] = wide.sum(axis=1)
            moments[rows, 1] = np.einsum("pc,pc->c", wide[0], wide[0])
    return Described(np.array([digest(image) for image in images], np.uint64), moments / pixels)


def empty(shape: tuple[int, ...]) -> np.ndarray:
    """Returns uninitialized images, uint8, aligned as TensorFlow aligns its own, so that it can share their memory."""
    raw = np.empty(int(np.prod(shape)) + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + int(np.prod(shape))].reshape(shape)


def digest(image: np.ndarray) -> int:
    """Returns 64 bits of BLAKE2 of an image's bytes: among a million others, a wrong match has odds of 1 in 4e7."""
    return int.from_bytes(hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=8).digest(), "little")
