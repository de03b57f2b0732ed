"""Images decoded once: a folder of arrays that every later run, and every job of a sweep, reads at memory speed.

`images.npy` is NumPy's own format (numpy.org/doc/stable/reference/generated/numpy.lib.format.html): a header, then the
pixels. Any row is one read at a known place, so an epoch can be a true permutation of what memory cannot hold, which
the sequence of a TFRecord does not allow; an ArrayRecord would, and costs a parse and a copy for each example.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO
from zipfile import BadZipFile

import numpy as np

from stages.data.source import Invalid, InvalidImageError, Listing, Source, UnusableError
from stages.errors import UserError
from stages.images import WORKERS, Described, chunk_of, describe, digest, empty
from stages.reporter import Reporter
from stages.storage.cache import made_once

LOOKED_AT = 2000
"""Examples that are read to decide whether enough are left without the unusable ones."""

_IMAGES, _EXAMPLES, _FACTS = "images.npy", "examples.npz", "facts.json"
_INVALID = "bad"
"""The invalid examples among the facts, by the name that existing caches have."""


@dataclass(frozen=True)
class Prepared:
    """A source whose images are decoded. described: each of them; invalid: the examples that were left out."""

    folder: Path
    shape: tuple[int, int, int, int]
    listing: Listing
    described: Described
    invalid: tuple[Invalid, ...]


def prepare(source: Source, cache: Path, on_error: str, reporter: Reporter) -> Prepared:
    """Returns the prepared images of `source`, which are made if no run has made them.

    Raises:
        UnusableError: where an image cannot be used and `on_error` is `fail`.
        UserError: where the disk is full, or no image is left.
    """
    place = cache / f"images-{source.fingerprint}"

    def make(folder: Path) -> None:
        _make(source, folder, on_error, reporter)

    is_new = made_once(place, make, reporter)
    prepared = _open(place)
    if prepared.invalid and on_error == "fail":
        raise UnusableError(prepared.invalid, prepared.listing)
    count = prepared.shape[0]
    size = "×".join(map(str, prepared.shape[1:]))
    reporter.log(f"{'prepared' if is_new else 'found'} {count:,} images of {size} in {place}")
    return prepared


def refuse_none(images: int, name: str) -> None:
    """Raises UserError where no image of the source `name` is left."""
    if not images:
        raise UserError(f"{name} has no image that can be used", "some for each class")


def remaining(source: Source, listing: Listing) -> Listing:
    """Returns the examples that can be used.

    At most LOOKED_AT are read: of a class with more, the unread ones count as usable if any of those read is.
    """
    usable: list[int] = []
    classes = np.unique(listing.labels)
    for label in classes:
        numbers = np.flatnonzero(listing.labels == label)
        looked_at = numbers[: max(1, LOOKED_AT // len(classes))]
        results = zip(looked_at, _read(source, looked_at), strict=True)
        good = [int(number) for number, result in results if not isinstance(result, Invalid)]
        usable += [*good, *(map(int, numbers[len(looked_at) :]) if good else ())]
    return listing.only(np.sort(np.array(usable, np.int64)))


def decoded(
    source: Source, listing: Listing, on_error: str, reporter: Reporter, note: str
) -> Iterator[tuple[np.ndarray, list[int], list[Invalid]]]:
    """Yields the images in order, CHUNK at a time: an array, the numbers of its rows, and the invalid examples."""
    count = len(listing.labels)
    chunk = chunk_of(source.image_shape)
    with ThreadPoolExecutor(WORKERS) as pool:
        for start in range(0, count, chunk):
            numbers = range(start, min(start + chunk, count))
            blocks = np.array_split(numbers, 2 * WORKERS)  # an image may be too little for a task
            results = [*chain.from_iterable(pool.map(lambda block: _read(source, block), blocks))]
            invalid = [result for result in results if isinstance(result, Invalid)]
            if invalid and on_error == "fail":
                raise UnusableError(invalid, remaining(source, listing))
            usable = [
                number for number, result in zip(numbers, results, strict=True) if not isinstance(result, Invalid)
            ]
            images = [result for result in results if not isinstance(result, Invalid)]
            reporter.progress(numbers[-1] + 1, count, None, note)
            yield np.stack(images) if images else np.empty((0, *source.image_shape), np.uint8), usable, invalid


def read_all(source: Source, listing: Listing, numbers: np.ndarray) -> np.ndarray:
    """Returns the images of `numbers`, uint8 [n, H, W, C].

    Raises:
        UnusableError: where one cannot be used.
    """
    results = _read(source, numbers)
    invalid = [result for result in results if isinstance(result, Invalid)]
    if invalid:
        raise UnusableError(invalid, remaining(source, listing))
    return np.stack(results)  # type: ignore[arg-type]


def _read(source: Source, numbers: np.ndarray) -> list[np.ndarray | Invalid]:
    together = source.read_together(numbers)
    if together is not None:
        return list(together)
    results: list[np.ndarray | Invalid] = []
    for number in numbers:
        try:
            results.append(source.read(int(number)))
        except InvalidImageError as error:
            results.append(Invalid(source.where(int(number)), str(error)))
    return results


def _make(source: Source, folder: Path, on_error: str, reporter: Reporter) -> None:
    listing = source.listing()
    invalid = list(listing.invalid)
    if invalid and on_error == "fail":
        raise UnusableError(invalid, remaining(source, listing))
    usable: list[int] = []
    described: list[Described] = []
    folder.mkdir()
    with (folder / _IMAGES).open("wb") as file:
        begins = _header(file, (len(listing.labels), *source.image_shape))
        for images, numbers, more_invalid in decoded(source, listing, on_error, reporter, f"prepares {source.name}"):
            file.write(images.data)
            described.append(describe(images))
            usable += numbers
            invalid += more_invalid
        refuse_none(len(usable), source.name)
        file.seek(0)
        if _header(file, (len(usable), *source.image_shape)) != begins:
            raise AssertionError("NumPy keeps room in its header for the number of rows to change")
    prepared = listing.only(np.array(usable, np.int64))
    np.savez(
        folder / _EXAMPLES,
        allow_pickle=False,
        labels=prepared.labels,
        numbers=np.asarray(prepared.numbers),
        digests=np.concatenate([part.digests for part in described]),
        moments=np.concatenate([part.moments for part in described]),
        **{f"part-{name}": numbers for name, numbers in prepared.parts.items()},
    )
    facts = {"shape": [len(usable), *source.image_shape], "class_names": listing.class_names}
    (folder / _FACTS).write_text(json.dumps({**facts, _INVALID: [[example.where, example.why] for example in invalid]}))


def _header(file: BinaryIO, shape: tuple[int, ...]) -> int:
    """Writes the header of an array of that shape and returns its length."""
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.tell()


def _open(folder: Path) -> Prepared:
    try:
        facts = json.loads((folder / _FACTS).read_text())
        with np.load(folder / _EXAMPLES, allow_pickle=False) as file:  # a zip archive, which checks itself
            arrays = {name: file[name] for name in file.files}
        shape = tuple(facts["shape"])
        with (folder / _IMAGES).open("rb") as file:
            size = _begins(file) + int(np.prod(shape))
        if (folder / _IMAGES).stat().st_size != size:
            raise ValueError(f"{_IMAGES} is not of {size} bytes")
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise damaged(folder, str(error)) from error
    parts = {name.removeprefix("part-"): rows for name, rows in arrays.items() if name.startswith("part-")}
    listing = Listing(arrays["labels"], parts, tuple(facts["class_names"]), numbers=arrays.get("numbers"))
    invalid = tuple(Invalid(*example) for example in facts[_INVALID])
    return Prepared(folder, shape, listing, Described(arrays["digests"], arrays["moments"]), invalid)


def damaged(folder: Path, why: str) -> UserError:
    """Returns the error for prepared images that differ from those written."""
    return UserError(f"{folder} is damaged ({why})", "what was prepared there, or nothing", f"rm -r '{folder}'")


def _begins(file: BinaryIO) -> int:
    np.lib.format.read_magic(file)
    np.lib.format.read_array_header_1_0(file)
    return file.tell()


def reader(prepared: Prepared) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function that reads rows, int64 [n], from the disk, uint8 [n, H, W, C], each checked at its first use.

    It reads and does not map: pages of a mapping count against a limit of address space (`ulimit -v`).
    """
    file, begins = _opened(prepared)
    checked = np.zeros(prepared.shape[0], bool)

    def read(rows: np.ndarray) -> np.ndarray:
        images = np.empty((len(rows), *prepared.shape[1:]), np.uint8)
        for image, row in zip(images, rows, strict=True):
            _fill(image, file, begins + int(row) * image.size, prepared.folder)
            if not checked[row]:
                _check(prepared, image, int(row))
                checked[row] = True
        return images

    return read


def hold(prepared: Prepared, splits: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the images of each split's rows, uint8 [n, H, W, C], read once from end to end and checked."""
    arrays = {name: empty((len(rows), *prepared.shape[1:])) for name, rows in splits.items()}
    file, begins = _opened(prepared)
    size = int(np.prod(prepared.shape[1:]))

    chunk = chunk_of(prepared.shape[1:])

    def fill(start: int) -> None:
        part = np.empty((min(chunk, prepared.shape[0] - start), *prepared.shape[1:]), np.uint8)
        _fill(part, file, begins + start * size, prepared.folder)
        for row, image in enumerate(part, start):
            _check(prepared, image, row)
        for name, rows in splits.items():  # in order
            begin, end = np.searchsorted(rows, [start, start + len(part)])
            arrays[name][begin:end] = part[rows[begin:end] - start]

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(fill, range(0, prepared.shape[0], chunk)))
    return arrays


def _opened(prepared: Prepared) -> tuple[BinaryIO, int]:
    """Returns the open file, which may be deleted while it is read, and the offset of its pixels."""
    file = (prepared.folder / _IMAGES).open("rb", buffering=0)
    return file, _begins(file)


def _fill(images: np.ndarray, file: BinaryIO, place: int, folder: Path) -> None:
    flat = images.reshape(-1)
    filled = 0
    while filled < flat.size:
        count = os.preadv(file.fileno(), [flat[filled:].data], place + filled)
        if not count:
            raise damaged(folder, f"{_IMAGES} ends too soon")
        filled += count


def _check(prepared: Prepared, image: np.ndarray, row: int) -> None:
    if digest(image) != prepared.described.digests[row]:
        raise damaged(prepared.folder, f"image {row} is not what was written")
