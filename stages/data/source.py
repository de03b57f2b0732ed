"""Sources of images: what they tell before an image is read, and how they are read."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stages.data.convert import InvalidImageError
from stages.data.decode import Decoder
from stages.images import WORKERS, chunk_of
from stages.settings.places import regular_file

Example = tuple[np.ndarray, int]
"""An image, uint8 [H, W, C], and its label."""


@dataclass(frozen=True)
class Invalid:
    """An example that cannot be used: where it is, and why."""

    where: str
    why: str


class Source:
    """Examples by number from 0, with images of one shape once they are read.

    name: for people. fingerprint: changes with whatever changes an image, a label or a split; known without reading
    them. image_shape: (H, W, C). class_names: one for each label. parts: from `train`, and `val` and `test` where the
    source has them, to the numbers of their examples, int64; each example is in one of them. passed_over: files that
    are no images. decode: of those that are encoded.
    """

    name: str
    fingerprint: str
    image_shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    parts: Mapping[str, np.ndarray]
    passed_over: int = 0
    decode: Decoder

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    @property
    def block(self) -> int:
        """Examples that are read by one call: an image may be too little for a task."""
        return max(1, chunk_of(self.image_shape) // (4 * WORKERS))

    def blocks(self) -> Iterator[Any]:
        """Yields arguments of `read`, for all examples in order; by default their numbers, int64 [n]."""
        for start in range(0, len(self), self.block):
            yield np.arange(start, min(start + self.block, len(self)))

    def read(self, block: Any) -> list[Example | Invalid]:
        """Returns the examples of a block, or why they cannot be used; safe in several threads at once."""
        items = self.encoded(block)
        images = iter(self.decode([item.content for item in items if isinstance(item, Encoded)]))
        return [self._example(item, next(images)) if isinstance(item, Encoded) else item for item in items]

    def encoded(self, block: Any) -> Sequence["Encoded | Invalid"]:
        """Returns the examples of a block as files or records have them, images of any format and size."""
        raise NotImplementedError

    def _example(self, item: "Encoded", image: np.ndarray | InvalidImageError) -> Example | Invalid:
        if isinstance(image, InvalidImageError):
            return Invalid(item.where, str(image))
        if not 0 <= item.label < len(self.class_names):
            return Invalid(item.where, f"label {item.label} of {len(self.class_names)} classes")
        return image, item.label

    def file(self, number: int) -> str | None:
        """Returns the path of an example's file in the source; None: no file."""
        return None


class Encoded(NamedTuple):
    """An example whose image is not decoded."""

    where: str
    content: bytes
    label: int


class FileSource(Source):
    """Image files below a folder, by number, each with its label."""

    def __init__(self, root: Path, decode: Decoder, class_names: Sequence[str]) -> None:
        self.root, self.decode, self.class_names = root, decode, tuple(class_names)
        self.image_shape = decode.image_shape
        self.paths: list[Path] = []
        self.labels: list[int] = []

    def encoded(self, block: Any) -> Sequence[Encoded | Invalid]:
        """See `Source`."""
        return [self._encoded(int(number)) for number in block]

    def _encoded(self, number: int) -> Encoded | Invalid:
        where = self.where(number)
        try:
            return Encoded(where, regular_file(self.paths[number]).read_bytes(), self.labels[number])
        except (OSError, ValueError) as error:  # an impossible path
            return Invalid(where, getattr(error, "strerror", None) or str(error))

    def where(self, number: int) -> str:
        """Names an example, for errors."""
        return str(self.paths[number])

    def file(self, number: int) -> str | None:
        """See `Source`. Bytes that are not UTF-8 become escapes, such as `caf\\xe9.png`."""
        path = self.paths[number].relative_to(self.root)
        return os.fsencode(path.as_posix()).decode(errors="backslashreplace")

    def digest(self) -> str:
        """Returns a digest of what the files are, as far as it is known without reading them."""
        content = hashlib.sha256(os.fsencode(repr((self.decode.key, self.class_names))))
        for path in self.paths:
            content.update(os.fsencode(f"{os.path.relpath(path, self.root)} {_state(path)}\n"))
        return content.hexdigest()[:32]


def _state(path: Path) -> str:
    """Returns what is known of a file without reading it; of a link to nothing, which reading will report, its own."""
    for look in (path.stat, path.lstat):
        with suppress(OSError, ValueError):
            status = look()
            return f"{status.st_size} {status.st_mtime_ns}"
    return "is not there"
