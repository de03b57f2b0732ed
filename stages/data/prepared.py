"""Images decoded once: a folder of arrays that every later run, and every job of a sweep, reads at memory speed.

Any row of `images.npy` is one read at a known place, so an epoch can be a true permutation of what memory cannot hold.
When an entry is opened, everything but the pixels is compared with its checksum; an image is compared with its digest
when it is first read.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stages.data.source import Example, Invalid, Source
from stages.errors import UserError
from stages.images import WORKERS, Described, chunk_of, describe_block, digest, empty
from stages.reporter import Reporter
from stages.storage.cache import ArrayFile, Contents, cached, discard

_IMAGES = "images"

AT_ONCE = 8
"""Blocks for each thread that are read before the next ones are asked for."""

_Block = tuple[list[Example | Invalid], np.ndarray, Described]
"""Examples, the images of those that can be used, uint8 [n, H, W, C], and what is known of these."""


@dataclass(frozen=True)
class Prepared:
    """Examples of a source, in its order, without the invalid ones.

    images: [N, H, W, C]. labels: int32 [N]. numbers: of the examples in the source, int64 [N]. place: in the cache,
    from which the images are mapped; None: they are in no cache. is_compared: whether this process has seen that they
    are what was written.
    """

    images: np.ndarray
    labels: np.ndarray
    numbers: np.ndarray
    described: Described
    invalid: tuple[Invalid, ...]
    place: Path | None = None
    is_compared: bool = True


def prepare(source: Source, cache: Path, on_error: str, reporter: Reporter) -> Prepared:
    """Returns the prepared images of `source`, mapped from `cache`; they are made if no run has made them.

    Raises:
        UserError: where an image cannot be used and `on_error` is `fail`, or the disk is full.
    """
    place = cache / f"images-{source.fingerprint}"
    entry, is_new = cached(place, lambda folder: _make(source, folder, on_error, reporter), reporter)
    arrays = entry.arrays
    invalid = tuple(Invalid(*example) for example in entry.facts["invalid"])
    _refuse(invalid, on_error)
    images = arrays[_IMAGES][: len(arrays["labels"])]
    size = "×".join(map(str, source.image_shape))
    reporter.log(f"{'prepared' if is_new else 'found'} {len(images):,} images of {size} in {place}")
    described = Described(arrays["digests"], arrays["moments"])
    return Prepared(images, arrays["labels"], arrays["numbers"], described, invalid, place, is_compared=is_new)


def read_into_memory(source: Source, on_error: str, reporter: Reporter) -> Prepared:
    """Returns all images of `source` in an array.

    Raises:
        UserError: where one cannot be used and `on_error` is `fail`.
    """
    images = np.empty((len(source), *source.image_shape), np.uint8)
    done = 0

    def keep(part: np.ndarray) -> None:
        nonlocal done
        images[done : done + len(part)] = part
        done += len(part)

    prepared = _read(source, on_error, reporter, f"reads {source.name}", keep)
    return replace(prepared, images=images[:done])


def read_rows(prepared: Prepared) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function that reads rows, int64 [n], uint8 [n, H, W, C], each compared with its digest at first use."""
    is_compared = np.full(len(prepared.labels), prepared.is_compared)

    def read(rows: np.ndarray) -> np.ndarray:
        images = prepared.images[rows]
        for index in np.flatnonzero(~is_compared[rows]):
            if digest(images[index]) != prepared.described.digests[rows[index]]:
                assert prepared.place is not None
                discard(prepared.place)
                raise UserError(
                    f"{prepared.place} is not what was written (image {rows[index]} is another one)",
                    "the images as they were prepared; the next run prepares them again",
                )
        is_compared[rows] = True
        return images

    return read


def hold(prepared: Prepared, splits: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the images of each split's rows, uint8 [n, H, W, C]."""
    arrays = {name: empty((len(rows), *prepared.images.shape[1:])) for name, rows in splits.items()}
    chunk, read = chunk_of(prepared.images.shape[1:]), read_rows(prepared)

    def fill(name: str, start: int) -> None:
        arrays[name][start : start + chunk] = read(splits[name][start : start + chunk])

    with ThreadPoolExecutor(WORKERS) as pool:
        parts = [(name, start) for name, rows in splits.items() for start in range(0, len(rows), chunk)]
        list(pool.map(fill, *zip(*parts, strict=True)))
    return arrays


def _make(source: Source, folder: Path, on_error: str, reporter: Reporter) -> Contents:
    shape = (len(source), *source.image_shape)
    file = ArrayFile(folder / f"{_IMAGES}.npy", np.dtype(np.uint8), shape)
    prepared = _read(source, on_error, reporter, f"prepares {source.name}", file.add)
    file.close()  # rows for images that were left out stay at the end, unused
    arrays = {
        "labels": prepared.labels,
        "numbers": prepared.numbers,
        "digests": prepared.described.digests,
        "moments": prepared.described.moments,
    }
    return Contents({"invalid": [[part.where, part.why] for part in prepared.invalid]}, arrays, mapped=[_IMAGES])


def _read(
    source: Source, on_error: str, reporter: Reporter, note: str, keep: Callable[[np.ndarray], object]
) -> Prepared:
    """Reads all of a source; `keep` gets the images in order, uint8 [n, H, W, C]."""
    results: list[int | Invalid] = []
    described: list[Described] = []
    for block, images, part in _in_order(lambda item: _read_block(source, item), source.blocks()):
        _refuse([result for result in block if isinstance(result, Invalid)], on_error)
        keep(images)
        results += [result if isinstance(result, Invalid) else result[1] for result in block]
        described.append(part)
        reporter.progress(len(results), len(source), note)
    digests, moments = (np.concatenate([getattr(part, name) for part in described]) for name in ("digests", "moments"))
    labels = {number: result for number, result in enumerate(results) if not isinstance(result, Invalid)}
    invalid = tuple(result for result in results if isinstance(result, Invalid))
    return Prepared(
        np.empty((0, *source.image_shape), np.uint8),
        np.array(list(labels.values()), np.int32),
        np.array(list(labels), np.int64),
        Described(digests, moments),
        invalid,
    )


def _read_block(source: Source, block: Any) -> _Block:
    results = source.read(block)
    usable = [result[0] for result in results if not isinstance(result, Invalid)]
    images = np.array(usable, np.uint8).reshape(-1, *source.image_shape)
    return results, images, describe_block(images)


def _in_order(function: Callable[[Any], _Block], items: Iterable[Any]) -> Iterator[_Block]:
    """Yields the results of threads in the order of `items`, of which a group is in work at a time."""
    remaining = iter(items)
    with ThreadPoolExecutor(WORKERS) as pool:
        while group := list(itertools.islice(remaining, AT_ONCE * WORKERS)):
            yield from pool.map(function, group)


def _refuse(invalid: Sequence[Invalid], on_error: str) -> None:
    if invalid and on_error == "fail":
        more = f", and {len(invalid) - 1:,} more" if len(invalid) > 1 else ""
        raise UserError(
            f"{invalid[0].where}: {invalid[0].why}{more}", "examples that can be used", "data.on_error=skip"
        )
