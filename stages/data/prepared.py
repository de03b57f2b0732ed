"""Images decoded once: a folder of arrays that every later run, and every job of a sweep, reads at memory speed.

Any row of `images.npy` is one read at a known place, so an epoch can be a true permutation of what memory cannot hold.
When an entry is opened, everything but the pixels is compared with its checksum; an image is compared with its digest
when it is first read.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from stages.data.source import Invalid, Listing, Source, UnusableError
from stages.errors import UserError
from stages.images import WORKERS, Described, chunk_of, describe, digest, empty
from stages.reporter import Reporter
from stages.storage.arrays import ArrayFolder, DamagedError
from stages.storage.cache import Contents, cached, discard

LOOKED_AT = 2000
"""Examples that are read to decide whether enough are left without the unusable ones."""

_IMAGES = "images"
_PART = "part-"


@dataclass(frozen=True)
class Prepared:
    """A source whose images are decoded.

    images: uint8 [N, H, W, C], mapped from the disk, not yet compared. described: each of them. invalid: the examples
    that were left out.
    """

    entry: ArrayFolder
    images: np.ndarray
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
    expected = {
        _IMAGES: (np.uint8, (None, *source.image_shape)),
        "labels": (np.int32, (None,)),
        "numbers": (np.int64, (None,)),
        "digests": (np.uint64, (None,)),
        "moments": (np.float64, (None, 2, source.image_shape[-1])),
        f"{_PART}train": (np.int64, (None,)),
    }
    entry, is_new = cached(place, lambda folder: _make(source, folder, on_error, reporter), expected, reporter)
    arrays = entry.arrays
    parts = {name.removeprefix(_PART): rows for name, rows in arrays.items() if name.startswith(_PART)}
    listing = Listing(arrays["labels"], parts, tuple(entry.facts["class_names"]), numbers=arrays["numbers"])
    invalid = tuple(Invalid(*example) for example in entry.facts["invalid"])
    if invalid and on_error == "fail":
        raise UnusableError(invalid, listing)
    images = arrays[_IMAGES][: len(listing.labels)]
    size = "×".join(map(str, source.image_shape))
    reporter.log(f"{'prepared' if is_new else 'found'} {len(images):,} images of {size} in {place}")
    return Prepared(entry, images, listing, Described(arrays["digests"], arrays["moments"]), invalid)


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
        results = zip(looked_at, source.read(looked_at), strict=True)
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
            results = [*chain.from_iterable(pool.map(source.read, blocks))]
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
    results = source.read(numbers)
    invalid = [result for result in results if isinstance(result, Invalid)]
    if invalid:
        raise UnusableError(invalid, remaining(source, listing))
    return np.stack(results)  # type: ignore[arg-type]


def _make(source: Source, folder: Path, on_error: str, reporter: Reporter) -> Contents:
    listing = source.listing()
    invalid = list(listing.invalid)
    if invalid and on_error == "fail":
        raise UnusableError(invalid, remaining(source, listing))
    usable: list[int] = []
    described: list[Described] = []
    shape = (len(listing.labels), *source.image_shape)
    with (folder / f"{_IMAGES}.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        begins = file.tell()
        for images, numbers, more_invalid in decoded(source, listing, on_error, reporter, f"prepares {source.name}"):
            file.write(images.data)
            described.append(describe(images))
            usable += numbers
            invalid += more_invalid
        file.truncate(begins + int(np.prod(shape)))  # rows for images that were left out stay at the end, unused
    refuse_none(len(usable), source.name)
    prepared = listing.only(np.array(usable, np.int64))
    arrays = {
        "labels": prepared.labels,
        "numbers": np.asarray(prepared.numbers),
        "digests": np.concatenate([part.digests for part in described]),
        "moments": np.concatenate([part.moments for part in described]),
        **{f"{_PART}{name}": numbers for name, numbers in prepared.parts.items()},
    }
    facts = {"class_names": listing.class_names, "invalid": [[example.where, example.why] for example in invalid]}
    return Contents(facts, arrays, mapped=[_IMAGES])


def reader(prepared: Prepared) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function that reads rows, int64 [n], uint8 [n, H, W, C], each compared with its digest at first use."""
    is_compared = np.zeros(len(prepared.images), bool)

    def read(rows: np.ndarray) -> np.ndarray:
        images = prepared.images[rows]
        new = np.flatnonzero(~is_compared[rows])
        try:
            _compare(prepared, images[new], rows[new])
        except DamagedError as error:
            discard(prepared.entry)
            raise UserError(
                f"{prepared.entry.path} is not what was written ({error})",
                "the images as they were prepared; the next run prepares them again",
            ) from error
        is_compared[rows] = True
        return images

    return read


def hold(prepared: Prepared, splits: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the images of each split's rows, uint8 [n, H, W, C], read once from end to end.

    Raises:
        DamagedError: where one is not what was written; the entry is then discarded.
    """
    arrays = {name: empty((len(rows), *prepared.images.shape[1:])) for name, rows in splits.items()}
    chunk = chunk_of(prepared.images.shape[1:])

    def fill(start: int) -> None:
        part = prepared.images[start : start + chunk]
        _compare(prepared, part, range(start, start + len(part)))
        for name, rows in splits.items():  # in order
            begin, end = np.searchsorted(rows, [start, start + len(part)])
            arrays[name][begin:end] = part[rows[begin:end] - start]

    try:
        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(fill, range(0, len(prepared.images), chunk)))
    except DamagedError:
        discard(prepared.entry)
        raise
    return arrays


def _compare(prepared: Prepared, images: np.ndarray, rows: Iterable[int]) -> None:
    for image, row in zip(images, rows, strict=True):
        if digest(image) != prepared.described.digests[row]:
            raise DamagedError(f"image {row} is another one")
