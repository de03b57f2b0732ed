"""Sources of images: their listing and their reading, before anything is decoded."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stages.data.convert import InvalidImageError


@dataclass(frozen=True)
class Invalid:
    """An entry of the source that cannot be used as an example: where it is, why, and what is expected instead."""

    where: str
    why: str
    expected: str = "images that can be decoded"


class UnusableError(Exception):
    """Invalid examples in a source from which none may be left out.

    invalid: those found before the search ended; remaining: the examples that would be left without any invalid ones.
    """

    def __init__(self, invalid: Sequence[Invalid], remaining: "Listing") -> None:
        super().__init__(f"{invalid[0].where}: {invalid[0].why}")
        self.invalid = tuple(invalid)
        self.remaining = remaining


@dataclass(frozen=True)
class Listing:
    """The examples of a source, numbered from 0.

    labels: int32 [N]. parts: from `train`, and `val` and `test` where the source has them, to the numbers of its
    examples, int64. class_names: one for each label. invalid: entries that the listing itself has found unusable.
    numbers: of each example before any was left out, int64 [N]; None: those from 0 on.
    """

    labels: np.ndarray
    parts: Mapping[str, np.ndarray]
    class_names: tuple[str, ...]
    invalid: tuple[Invalid, ...] = ()
    numbers: np.ndarray | None = None

    def only(self, examples: np.ndarray) -> "Listing":
        """Returns the listing of `examples`, int64, renumbered in that order."""
        place = np.full(len(self.labels), -1)
        place[examples] = np.arange(len(examples))
        parts = {name: place[numbers][place[numbers] >= 0] for name, numbers in self.parts.items()}
        numbers = examples if self.numbers is None else self.numbers[examples]
        return Listing(self.labels[examples], parts, self.class_names, self.invalid, numbers)


class Source(ABC):
    """Images by number, all of one shape once they are read.

    name: for people. fingerprint: changes with whatever changes an image, a label or the listing; it is known without
    reading them. image_shape: (H, W, C). passed_over: files that are no examples, by their kind. warnings: likely
    mistakes in the source, a sentence each.
    """

    name: str
    fingerprint: str
    image_shape: tuple[int, int, int]
    passed_over: Mapping[str, int] = {}
    warnings: Sequence[str] = ()

    @abstractmethod
    def listing(self) -> Listing:
        """Returns the examples; may take as long as reading the whole source."""

    @abstractmethod
    def read(self, numbers: np.ndarray) -> list[np.ndarray | Invalid]:
        """Returns images, uint8 [H, W, C], or why they cannot be used; safe in several threads at once.

        Args:
            numbers: int64 [n].
        """

    @abstractmethod
    def where(self, number: int) -> str:
        """Returns where the example lies, as a user finds it."""

    def file(self, number: int) -> str | None:
        """Returns the path of an example's file in the source, by its number before any was left out; None: no file."""
        return None


class EncodedSource(Source):
    """Images that are files, or records, of any format and size. decode: see `stages.data.decode.Decoder`."""

    decode: Callable[[Sequence[bytes]], Sequence[np.ndarray | InvalidImageError]]

    @abstractmethod
    def content(self, number: int) -> bytes:
        """Returns the bytes of an image.

        Raises:
            InvalidImageError: where there are none.
        """

    def read(self, numbers: np.ndarray) -> list[np.ndarray | Invalid]:
        """See `Source`."""
        contents: dict[int, bytes] = {}
        results: dict[int, np.ndarray | InvalidImageError] = {}
        for number in map(int, numbers):
            try:
                contents[number] = self.content(number)
            except InvalidImageError as error:
                results[number] = error
        results |= zip(contents, self.decode(list(contents.values())), strict=True)
        ordered = [(number, results[number]) for number in map(int, numbers)]
        return [
            Invalid(self.where(number), str(result)) if isinstance(result, InvalidImageError) else result
            for number, result in ordered
        ]
