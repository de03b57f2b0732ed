"""Images of a source: decoded once, divided into splits, held in memory or read from the cache.

The cache keeps a folder of arrays that every later run, and every job of a sweep, reads at memory speed. Any row of
`images.npy` is one read at a known place, so an epoch can be a true permutation of what memory cannot hold.
"""

import dataclasses
import errno
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stages.data.columns import WORKERS, Column, Described, Streamed, chunk_of, describe_block, held
from stages.data.convert import InvalidImageError
from stages.data.decode import Decoder
from stages.data.free_memory import memory_for_data
from stages.data.masks import MaskDecoder
from stages.data.split import Split
from stages.data.splits import cut_classes, cut_evenly, dataset_of
from stages.errors import UserError
from stages.features.images import ImageFeature
from stages.features.kinds import IMAGES
from stages.reporter import Reporter
from stages.results import Dataset, Record
from stages.settings.data import ImagesSettings, SourceSettings
from stages.settings.places import regular_file
from stages.storage.atomic import write_csv
from stages.storage.cache import Contents, cached, new_array
from stages.tasks.classification import classification
from stages.tasks.segmentation import IGNORED, segmentation

Example = tuple[np.ndarray, int | np.ndarray]
"""An image, uint8 [H, W, C], and its label, or its mask, uint8 [H, W]."""


@dataclass(frozen=True)
class Invalid:
    """An example that cannot be used: where it is, and why."""

    where: str
    why: str


class Encoded(NamedTuple):
    """An example whose image is not decoded."""

    where: str
    content: bytes
    label: int = 0
    mask: bytes = b""
    """The file of its mask, if its target is one."""


Read = Callable[[], Sequence[Example | Encoded | Invalid]]
"""Return some examples, or why they cannot be used; safe in several threads at once."""


@dataclass(frozen=True)
class Source:
    """Examples by number from 0, with images of one shape once they are read.

    name: for people. fingerprint: changes with whatever changes an image, a label or a split; known without reading
    them. image_shape: (H, W, C). class_names: one for each label. parts: from `train`, and `val` and `test` where the
    source has them, to the numbers of their examples, int64; each example is in one of them. blocks: from a number of
    examples to functions that read so many each, at most, in order. decode: of those that are encoded. masks: of their
    masks, if the targets are masks; `class_names` may be empty then: the classes are the values that occur. names_of:
    from numbers to the paths of examples' files in the source; to None: they are in none.
    """

    name: str
    fingerprint: str
    image_shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    parts: Mapping[str, np.ndarray]
    blocks: Callable[[int], Iterable[Read]]
    decode: Decoder | None = None
    masks: MaskDecoder | None = None
    names_of: Callable[[np.ndarray], list[str] | None] = lambda _: None

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    def example(
        self, item: Encoded, image: np.ndarray | InvalidImageError, mask: np.ndarray | InvalidImageError | None
    ) -> Example | Invalid:
        """Return what an item is, once its image and its mask, if it has one, are decoded."""
        for part in (image, mask):
            if isinstance(part, InvalidImageError):
                return Invalid(item.where, str(part))
        assert isinstance(image, np.ndarray)
        if isinstance(mask, np.ndarray):
            highest = mask[mask != IGNORED].max(initial=0)
            if self.class_names and highest >= len(self.class_names):
                return Invalid(
                    item.where, f"its mask has the class {highest}, but there are only {len(self.class_names)} classes"
                )
            return image, mask
        if not 0 <= item.label < len(self.class_names):
            return Invalid(item.where, f"label {item.label}, but there are only {len(self.class_names)} classes")
        return image, item.label


def numbered(read: Callable[[int], Example | Encoded | Invalid], count: int) -> Callable[[int], Iterator[Read]]:
    """Return `Source.blocks` of `count` examples that `read` returns by their numbers."""

    def blocks(size: int) -> Iterator[Read]:
        for start in range(0, count, size):
            yield partial(list, map(read, range(start, min(start + size, count))))

    return blocks


class Files(NamedTuple):
    """Files below a folder, by number, each with its label, or its mask; parts, class_names: as those of `Source`."""

    root: Path
    paths: Sequence[Path]
    labels: Sequence[int]
    parts: Mapping[str, np.ndarray]
    class_names: tuple[str, ...]
    masks: Sequence[Path] = ()

    def names_of(self, numbers: Iterable[int]) -> list[str]:
        """Return the paths of files below the folder; what is not UTF-8 become escapes, such as `caf\\xe9.png`."""
        paths = (os.fsencode(os.path.relpath(self.paths[number], self.root)) for number in numbers)
        return [path.decode(errors="backslashreplace") for path in paths]


_OF_A_PATH = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EINVAL, errno.ELOOP, errno.ENAMETOOLONG)
"""Errors that `_state` tells. After any other one the next run may be able to read the file, so that no entry of the
cache is to lack it."""


def file_source(
    files: Files,
    decode: Decoder,
    name: str = "",
    where: Callable[[int], str] | None = None,
    masks: MaskDecoder | None = None,
) -> Source:
    """Return the images of files; where: names an example, for errors; None: by its path. masks: Of `files.masks`."""
    content = hashlib.sha256(os.fsencode(repr((decode.key, files.class_names))))
    content.update(masks.key.encode() if masks is not None else b"")
    for path in (*files.paths, *files.masks):  # what is known of them without reading them
        content.update(os.fsencode(f"{os.path.relpath(path, files.root)} {_state(path)}\n"))
    blocks = numbered(partial(_encoded, files, where or (lambda number: str(files.paths[number]))), len(files.paths))
    name, fingerprint = name or files.root.name, content.hexdigest()[:32]
    shape, classes = decode.image_shape, files.class_names
    return Source(name, fingerprint, shape, classes, files.parts, blocks, decode, masks, files.names_of)


def _encoded(files: Files, where: Callable[[int], str], number: int) -> Encoded | Invalid:
    try:
        content = regular_file(files.paths[number]).read_bytes()
        if files.masks:
            return Encoded(where(number), content, mask=regular_file(files.masks[number]).read_bytes())
        return Encoded(where(number), content, files.labels[number])
    except (OSError, ValueError) as error:  # an impossible path
        why = getattr(error, "strerror", None) or str(error)
        if isinstance(error, OSError) and error.errno not in _OF_A_PATH:
            raise UserError(f"{where(number)} cannot be read ({why})", "a readable disk") from error
        return Invalid(where(number), why)


def _state(path: Path) -> str:
    """Return what is known of a file, or of what a link leads to, without reading it."""
    with suppress(OSError, ValueError):
        status = path.stat()
        return f"{status.st_size} {status.st_mtime_ns} {os.access(path, os.R_OK)}"
    return "is not there"


_IMAGES, _MASKS = "images", "masks"

MOST_LISTED = 10_000
"""Examples that are listed, of those that are left out."""

AT_ONCE = 8
"""Blocks for each thread that are read before the next ones are asked for."""

_Block = tuple[list[Example | Invalid], np.ndarray, tuple[np.ndarray, np.ndarray]]
"""Examples, the images of those that can be used, uint8 [n, H, W, C], and the digests and moments of these."""


def load(
    source: Source, settings: SourceSettings, reporter: Reporter | None, folder: Path | None, cache: Path | None
) -> Dataset:
    """Return the images of `source` in three splits; what it does not have is cut from its training examples.

    Args:
        folder: the run's; takes `data/skipped.csv` where something was left out. None: no file.
        cache: the folder that runs share; None: images are not kept on the disk.

    Raises:
        UserError: where images cannot be used and are not to be skipped, or splits cannot be cut.
    """
    reporter = reporter or Reporter()
    prepared = read_images(source, settings, reporter, cache)
    place = np.full(len(source), -1)
    place[prepared.numbers] = np.arange(len(prepared.numbers))
    rows = {name: np.sort(place[numbers][place[numbers] >= 0]) for name, numbers in source.parts.items()}
    described, numbers = prepared.described, prepared.numbers
    if source.masks is None:
        rows = cut_classes(source.name, rows, held(prepared.targets), source.class_names, settings)
        task = classification(source.class_names)
    else:
        rows = cut_evenly(source.name, rows, settings)
        task = segmentation(source.class_names or prepared.class_names)
    whole = Split({IMAGES: prepared.images}, prepared.targets, numbers=numbers).with_described(described)
    splits = {name: whole.take(part) for name, part in rows.items()}
    splits["test"] = dataclasses.replace(splits["test"], files=source.names_of(numbers[rows["test"]]))
    features = {IMAGES: feature_of(source, settings)}
    dataset = dataset_of(source.name, splits, task, features)
    params = {"held_in": "memory" if whole.is_in_memory else "disk", "data/skipped": len(prepared.invalid)}
    left_out = [(example.where, example.why) for example in prepared.invalid]
    files = report_left_out(left_out, source.name, reporter, folder)
    return dataclasses.replace(dataset, record=Record(params, files={"data": files}))


class Prepared:
    """Images of a source, in its order, without the invalid ones.

    images: uint8 [N, H, W, C], in memory or mapped where they fit into memory, else read at each use. targets:
    labels, int32 [N], or masks, uint8 [N, H, W], which are read like the images. numbers: of the examples in the
    source, int64 [N]. class_names: of masks, by their values.
    """

    def __init__(self, contents: Contents, fits: bool) -> None:
        arrays = contents.arrays
        self.numbers = arrays["numbers"]
        self.described = Described(arrays["digests"], {IMAGES: arrays["moments"]})
        self.invalid = [Invalid(*example) for example in contents.facts["invalid"]]
        images = arrays[_IMAGES][: len(self.numbers)]
        self.images: Column = images if fits else Streamed.of(images)
        self.class_names = tuple(map(str, range(max(contents.facts.get("values", []), default=0) + 1)))
        self.targets: Column = arrays["labels"] if "labels" in arrays else arrays[_MASKS][: len(self.numbers)]
        if "labels" not in arrays and not fits:
            self.targets = Streamed.of(arrays[_MASKS][: len(self.numbers)])


def read_images(source: Source, settings: SourceSettings, reporter: Reporter, cache: Path | None) -> Prepared:
    """Return the images of `source`; the cache's are made if no run has made them.

    Raises:
        UserError: where images cannot be used and are not to be skipped, or there is no room for them.
    """
    allowed = memory_for_data(settings.memory_gib)
    pixels = int(np.prod(source.image_shape[:2]))
    fits = len(source) * pixels * (source.image_shape[2] + (source.masks is not None)) <= allowed
    make = partial(_contents, source, settings.on_error, reporter)
    if settings.cache != "disk" or cache is None:
        if fits:
            return Prepared(make(None), fits=True)
        raise UserError(
            f"{source.name} does not fit into memory, and its images are not cached on the disk",
            f"data.cache=disk, or at most {allowed / 2**30:.3g} GiB of images",
            "data.cache=disk",
        )
    place = cache / f"images-{source.fingerprint}"
    entry, is_new = cached(place, make, reporter)
    prepared = Prepared(entry, fits)
    _refuse(prepared.invalid, settings.on_error, len(source))
    size = "×".join(map(str, source.image_shape))
    reporter.log(f"{'prepared' if is_new else 'found'} {len(prepared.numbers):,} images of {size} in {place}")
    if not fits:
        reporter.log("images are read from the disk during training")
    return prepared


def feature_of(source: Source, settings: SourceSettings) -> ImageFeature:
    """Return the feature that the images of `source` are."""
    resize = settings.resize if isinstance(settings, ImagesSettings) else "stretch"
    return ImageFeature.of(source.image_shape, resize=resize)


def _contents(source: Source, on_error: str, reporter: Reporter, folder: Path | None) -> Contents:
    """Read all of a source; its images into a file in `folder`, or into memory."""
    path = folder / f"{_IMAGES}.npy" if folder is not None else None
    images = new_array(path, np.dtype(np.uint8), (len(source), *source.image_shape))
    masks = None
    if source.masks is not None:
        place = folder / f"{_MASKS}.npy" if folder is not None else None
        masks = new_array(place, np.dtype(np.uint8), (len(source), *source.image_shape[:2]))
    size = max(1, chunk_of(source.image_shape) // (4 * WORKERS))  # an image may be too little for a task
    count = 0
    results: list[int | Invalid] = []
    described: list[tuple[np.ndarray, np.ndarray]] = []
    values = np.zeros(IGNORED + 1, bool)
    for block, pixels, part in _in_order(partial(_read_block, source), source.blocks(size)):
        _refuse([result for result in block if isinstance(result, Invalid)], on_error, len(block))
        images[count : count + len(pixels)] = pixels
        if masks is not None and len(pixels):
            masks[count : count + len(pixels)] = [result[1] for result in block if not isinstance(result, Invalid)]
            values |= np.bincount(masks[count : count + len(pixels)].ravel(), minlength=IGNORED + 1) > 0
        count += len(pixels)
        results += [_label(result) for result in block]
        described.append(part)
        reporter.progress(len(results), len(source), f"{'reading' if folder is None else 'preparing'} {source.name}")
    labels = {number: result for number, result in enumerate(results) if not isinstance(result, Invalid)}
    arrays = {_IMAGES: images, "numbers": np.array(list(labels), np.int64)}
    arrays |= {"labels": np.array(list(labels.values()), np.int32)} if masks is None else {_MASKS: masks}
    for name, parts in zip(("digests", "moments"), zip(*described, strict=True), strict=True):
        arrays[name] = np.concatenate(parts)
    facts: dict[str, Any] = {
        "invalid": [dataclasses.astuple(result) for result in results if isinstance(result, Invalid)]
    }
    if source.masks is not None:
        facts["values"] = np.flatnonzero(values[:IGNORED]).tolist()
        _refuse_black_and_white(source, values)
    return Contents(facts, arrays)


def _label(result: Example | Invalid) -> int | Invalid:
    """Return the label of an example; 0 for a mask, which is elsewhere."""
    if isinstance(result, Invalid):
        return result
    return result[1] if isinstance(result[1], int) else 0


def _refuse_black_and_white(source: Source, values: np.ndarray) -> None:
    """Refuse masks of 0 and 255 only: 255 would not count, so everything that counts would be background."""
    if source.masks is not None and not source.masks.classes and values[IGNORED] and not values[1:IGNORED].any():
        raise UserError(
            f"{source.name}: the masks have only 0 and {IGNORED}, which means that a pixel does not count",
            "masks with at least two classes, or the names of both values",
            "'data.mask_values={0: background, 255: object}'",
        )


def _read_block(source: Source, read: Read) -> _Block:
    items = read()
    contents = [item.content for item in items if isinstance(item, Encoded)]
    decoded = iter(source.decode(contents) if source.decode is not None else ())
    masks: Iterator[np.ndarray | InvalidImageError | None] = itertools.repeat(None)
    if source.masks is not None:
        masks = iter(source.masks([(item.content, item.mask) for item in items if isinstance(item, Encoded)]))
    results = [
        source.example(item, next(decoded), next(masks)) if isinstance(item, Encoded) else item for item in items
    ]
    usable = [result[0] for result in results if not isinstance(result, Invalid)]
    images = np.array(usable, np.uint8).reshape(-1, *source.image_shape)
    return results, images, describe_block(images)


def _in_order(function: Callable[[Any], _Block], items: Iterable[Any]) -> Iterator[_Block]:
    """Yield the results of threads in the order of `items`. Threads work on one group of items at a time."""
    remaining = iter(items)
    with ThreadPoolExecutor(WORKERS) as pool:
        while group := list(itertools.islice(remaining, AT_ONCE * WORKERS)):
            yield from pool.map(function, group)


def _refuse(invalid: Sequence[Invalid], on_error: str, count: int) -> None:
    """Refuse examples, of `count`, that cannot be used; skipping all of them would help nobody."""
    if invalid and on_error == "fail":
        more = f", and {len(invalid) - 1:,} more" if len(invalid) > 1 else ""
        fix = "data.on_error=skip" if len(invalid) < count else ""
        raise UserError(f"{invalid[0].where}: {invalid[0].why}{more}", "valid examples", fix)


def report_left_out(
    left_out: Sequence[Sequence[str]], name: str, reporter: Reporter, folder: Path | None
) -> list[Path]:
    """Warns of examples that are left out, and lists the first; returns the file to record, if any.

    Args:
        left_out: where examples are, and why they cannot be used.
    """
    if left_out:
        reporter.warn(f"left out {len(left_out):,} examples of {name}; the first: {': '.join(left_out[0])}")
    if not left_out or folder is None:
        return []
    path = folder / "data" / "skipped.csv"
    write_csv(path, [("where", "why"), *left_out[:MOST_LISTED]])
    return [path]
