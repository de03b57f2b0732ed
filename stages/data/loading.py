"""From a source to a data set: prepared, divided into splits, held in memory or streamed."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from stages.data.free_memory import available_memory
from stages.data.prepared import Prepared, decoded, hold, prepare, read_all, reader, refuse_none, remaining
from stages.data.source import Invalid, Listing, Source, UnusableError
from stages.data.splits import cut_all, dataset_of, fingerprint_of
from stages.errors import UserError
from stages.images import Described, Images, Streamed, empty
from stages.reporter import Reporter, Silent
from stages.results import Dataset, Split
from stages.settings.data import ImagesSettings, SourceSettings
from stages.storage.arrays import DamagedError
from stages.storage.atomic import write_csv

HELD_SHARE = 1 / 3
"""Share of the free memory that images may take where the settings name no limit."""


def load(
    source: Source, settings: SourceSettings, reporter: Reporter | None, folder: Path | None, cache: Path | None
) -> Dataset:
    """Returns the images of `source` in three splits.

    Args:
        folder: the run's; takes `data/skipped.csv` where something was left out. None: no file.
        cache: the folder that runs share; None: images are not kept on the disk.

    Raises:
        UserError: where images cannot be used and are not to be skipped, or splits cannot be cut.
    """
    try:
        return _load(source, settings, reporter or Silent(), folder, cache)
    except UnusableError as error:
        raise _unusable_images(error, settings) from error


def _load(
    source: Source, settings: SourceSettings, reporter: Reporter, folder: Path | None, cache: Path | None
) -> Dataset:
    _log_listing(source, reporter)
    described: Described | None = None
    images: Mapping[str, Images]
    if settings.cache == "disk" and cache is not None:
        prepared, rows, images = _prepared(source, settings, cache, reporter)
        listing, described, invalid = prepared.listing, prepared.described, prepared.invalid
        shape: tuple[int, ...] = prepared.images.shape
        held_in = "memory" if isinstance(images["train"], np.ndarray) else "disk"
    else:
        all_images, listing, invalid = _from_source(source, source.listing(), settings, reporter)
        shape = all_images.shape
        rows = splits_of(listing, settings)
        held_in = "memory" if isinstance(all_images, np.ndarray) else "source"
        images = _parts(all_images, rows)
    numbers = {name: part if listing.numbers is None else listing.numbers[part] for name, part in rows.items()}
    splits = {
        name: Split(
            images[name],
            listing.labels[rows[name]],
            described and described.of(rows[name]),
            numbers[name],
            _files(source, numbers[name]) if name == "test" else None,
        )
        for name in rows
    }
    # Without a cache, free memory decides whether all pixels are read: the fingerprint must not depend on it.
    fingerprint = f"{source.fingerprint} {len(invalid)} left out" if settings.cache == "off" else None
    digest = fingerprint_of(splits, fingerprint, rows)
    dataset = dataset_of(source.name, splits, listing.class_names, (0.0, 255.0), digest)
    if isinstance(settings, ImagesSettings):
        dataset = dataclasses.replace(dataset, resize=settings.resize)
    if held_in != "memory":
        size = np.prod(shape) / 2**30
        reporter.log(f"{source.name} is read from its {held_in} during training: {size:.1f} GiB")
    return _with_invalid(_with_passed_over(dataset, source.passed_over), invalid, held_in, reporter, folder)


def _prepared(
    source: Source, settings: SourceSettings, cache: Path, reporter: Reporter
) -> tuple[Prepared, dict[str, np.ndarray], Mapping[str, Images]]:
    """Returns the prepared images, the rows of each split, and its images: in memory if they fit, else on the disk."""
    prepared = prepare(source, cache, settings.on_error, reporter)
    rows = splits_of(prepared.listing, settings)
    if not _fits(prepared.images.shape, settings.memory_gib):
        return prepared, rows, _parts(Streamed.all(prepared.images.shape, reader(prepared)), rows)
    try:
        return prepared, rows, hold(prepared, rows)
    except DamagedError as error:
        reporter.warn(f"{prepared.entry.path} is not what was written ({error}), and is made again")
    prepared = prepare(source, cache, settings.on_error, reporter)
    return prepared, rows, hold(prepared, rows)


def _files(source: Source, numbers: np.ndarray) -> list[str] | None:
    files = [source.file(int(number)) for number in numbers[:1]]
    if files[0] is None:
        return None
    return [source.file(int(number)) or "" for number in numbers]


def _from_source(
    source: Source, listing: Listing, settings: SourceSettings, reporter: Reporter
) -> tuple[Images, Listing, tuple[Invalid, ...]]:
    """Returns the images without a cache: decoded into memory where they fit, else at each use."""
    if listing.invalid and settings.on_error == "fail":
        raise UnusableError(listing.invalid, remaining(source, listing))
    shape = (len(listing.labels), *source.image_shape)
    if not _fits(shape, settings.memory_gib):
        if settings.on_error == "skip":
            raise UserError(
                "data.on_error=skip with data.cache=off: an image is decoded when a batch needs it, too late to skip",
                ("data.cache=disk", "data.on_error=fail"),
                "data.cache=disk",
            )
        return Streamed.all(shape, _streaming(source, listing, settings)), listing, ()
    images = np.empty(shape, np.uint8)
    usable: list[int] = []
    invalid = list(listing.invalid)
    for chunk, numbers, unusable in decoded(source, listing, settings.on_error, reporter, f"reads {source.name}"):
        images[len(usable) : len(usable) + len(numbers)] = chunk
        usable += numbers
        invalid += unusable
    refuse_none(len(usable), source.name)
    return images[: len(usable)], listing.only(np.array(usable, np.int64)), tuple(invalid)


def _streaming(source: Source, listing: Listing, settings: SourceSettings) -> Callable[[np.ndarray], np.ndarray]:
    def read(numbers: np.ndarray) -> np.ndarray:
        try:
            return read_all(source, listing, numbers)
        except UnusableError as error:
            raise _unusable_images(error, settings, "data.cache=disk") from error

    return read


def _unusable_images(error: UnusableError, settings: SourceSettings, more_fix: str = "") -> UserError:
    """Returns the error that names the invalid examples, with a fix only where enough are left without them.

    Args:
        more_fix: a setting without which invalid examples cannot be skipped.
    """
    example = error.invalid[0]
    more_invalid = len(error.invalid) - 1
    problem = f"{example.where}: {example.why}" + (f", and {more_invalid:,} more" if more_invalid else "")
    fix = ["data.on_error=skip", more_fix]
    try:
        refuse_none(len(error.remaining.labels), "the source")
        splits_of(error.remaining, settings)
    except UserError as refusal:
        if not refusal.fix:
            return UserError(problem, f"{example.expected}; without the others, {refusal.problem}")
        fix.append(refusal.fix)
    return UserError(problem, example.expected, " ".join(filter(None, fix)))


def _log_listing(source: Source, reporter: Reporter) -> None:
    for line in source.warnings:
        reporter.warn(line)
    if source.passed_over:
        count = sum(source.passed_over.values())
        reporter.log(f"{source.name}: passed over {count:,} files: {_counts(source.passed_over)}")


def _counts(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())


def _with_passed_over(dataset: Dataset, passed_over: Mapping[str, int]) -> Dataset:
    """Returns the data set with a record of the files that are no images, by kind."""
    record = dataset.record
    kinds = {"passed_over": _counts(passed_over)} if passed_over else {}
    params = {**record.params, **kinds, "data/passed_over": sum(passed_over.values())}
    return dataclasses.replace(dataset, record=dataclasses.replace(record, params=params))


def _fits(shape: tuple[int, ...], memory_gib: float | None) -> bool:
    allowed = memory_gib * 2**30 if memory_gib is not None else HELD_SHARE * available_memory()
    return int(np.prod(shape)) <= allowed


def _refuse_shared(parts: Mapping[str, np.ndarray]) -> None:
    names = list(parts)
    for index, earlier in enumerate(names):
        for later in names[index + 1 :]:
            shared = np.intersect1d(parts[earlier], parts[later])
            if len(shared):
                raise UserError(
                    f"data: {len(shared):,} examples are in the {earlier} and in the {later} split",
                    "splits that share nothing, such as those that the set has itself",
                    "data.train_split=train data.val_split=null data.test_split=null",
                )


def splits_of(listing: Listing, settings: SourceSettings) -> dict[str, np.ndarray]:
    """Returns the rows of each split, in order; what the source does not have is cut from its training examples.

    Raises:
        UserError: where a split has no example, an example is in two, a class has too few for each, or only one class
            can be learned.
    """
    for name, numbers in listing.parts.items():
        if not len(numbers):
            raise UserError(f"the {name} split has no example that can be used", "one at least")
    present = np.unique(listing.labels[listing.parts["train"]])
    if len(present) < 2:
        raise UserError(
            f"only the class {listing.class_names[int(present[0])]} has training examples that can be used",
            "training examples of two classes or more",
        )
    _refuse_shared(listing.parts)
    rows = {name: np.unique(numbers) for name, numbers in listing.parts.items()}  # a slice may name an example twice
    fractions = {"test": settings.test_fraction, "val": settings.val_fraction}
    missing = {name: fraction for name, fraction in fractions.items() if name not in rows}
    train = rows["train"]
    cut = cut_all(listing.labels[train], missing, settings.split_seed, listing.class_names)
    return rows | {name: train[part] for name, part in cut.items()}


def _parts(images: Images, rows: Mapping[str, np.ndarray]) -> dict[str, Images]:
    if isinstance(images, Streamed):
        return {name: dataclasses.replace(images, rows=images.rows[numbers]) for name, numbers in rows.items()}
    return {name: _rows_in_memory(images, numbers) for name, numbers in rows.items()}


def _rows_in_memory(images: Images, rows: np.ndarray) -> np.ndarray:
    part = empty((len(rows), *images.shape[1:]))
    part[:] = images[rows]
    return part


def _with_invalid(
    dataset: Dataset, invalid: Sequence[Invalid], held_in: str, reporter: Reporter, folder: Path | None
) -> Dataset:
    """Returns the data set with a record of the examples that were left out."""
    record = dataset.record
    params = {**record.params, "held_in": held_in, "data/skipped": len(invalid)}
    files = dict(record.files)
    if invalid:
        reporter.warn(f"{len(invalid):,} of {dataset.name} left out; the first: {invalid[0].where}: {invalid[0].why}")
    if invalid and folder is not None:
        path = folder / "data" / "skipped.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_csv(path, [("where", "why"), *((example.where, example.why) for example in invalid)])
        before = files.get("data", ())
        files["data"] = (*([before] if isinstance(before, Path) else before), path)
    return dataclasses.replace(dataset, record=dataclasses.replace(record, params=params, files=files))
