"""What a source of pictures is, before anything of it is decoded."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Bad:
    """Something in the source that is no example: where it is, and why."""

    where: str
    why: str


class BadPictureError(Exception):
    """A picture that cannot be used; its text says why."""


@dataclass(frozen=True)
class Listing:
    """The examples of a source, numbered from 0.

    labels: int32 [N]. parts: from `train`, and `val` and `test` where the source has them, to the numbers of its
    examples, int64. class_names: one for each label. bad: what the listing itself has found.
    """

    labels: np.ndarray
    parts: Mapping[str, np.ndarray]
    class_names: tuple[str, ...]
    bad: tuple[Bad, ...] = ()

    def only(self, kept: np.ndarray) -> "Listing":
        """Returns the listing of the examples `kept`, int64, numbered anew in that order."""
        place = np.full(len(self.labels), -1)
        place[kept] = np.arange(len(kept))
        parts = {name: place[numbers][place[numbers] >= 0] for name, numbers in self.parts.items()}
        return Listing(self.labels[kept], parts, self.class_names, self.bad)


class Source(Protocol):
    """Pictures by number, all of one shape once they are read.

    name: for people. fingerprint: changes with whatever changes a picture, a label or the listing; it is known without
    reading them. picture: (H, W, C).
    """

    name: str
    fingerprint: str
    picture: tuple[int, int, int]

    def listing(self) -> Listing:
        """Returns what there is; may take as long as reading through it."""

    def read(self, number: int) -> np.ndarray:
        """Returns a picture, uint8 [H, W, C]; safe in several threads at once.

        Raises:
            BadPictureError: where there is none.
        """

    def where(self, number: int) -> str:
        """Returns where the example lies, as a user finds it."""
