"""From a source to a data set: prepared, divided into splits, held in memory or streamed."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from stages.data.columns import Column, Streamed
from stages.data.free_memory import available_memory
from stages.data.prepared import Prepared, hold, prepare, read_into_memory, read_rows
from stages.data.source import Invalid, Source
from stages.data.split import Split
from stages.data.splits import cut_all, dataset_of, fingerprint_of
from stages.errors import UserError
from stages.features.kinds import IMAGES, image
from stages.reporter import Reporter, Silent
from stages.results import Dataset
from stages.settings.data import ImagesSettings, SourceSettings
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
    reporter = reporter or Silent()
    if source.passed_over:
        reporter.log(f"{source.name}: {source.passed_over:,} files that are no images are passed over")
    cache = cache if settings.cache == "disk" else None
    fits = _fits((len(source), *source.image_shape), settings.memory_gib)
    prepared = _prepared(source, settings, cache, fits, reporter)
    rows = splits_of(source, prepared, settings)
    images: Mapping[str, Column]
    if not fits:
        held_in = "source" if prepared.entry is None else "disk"
        reporter.log(f"{source.name} is read from its {held_in} during training")
        read = prepared.images.read if isinstance(prepared.images, Streamed) else read_rows(prepared)
        every = Streamed.all((len(prepared.labels), *source.image_shape), read)
        images = {name: dataclasses.replace(every, rows=part) for name, part in rows.items()}
    else:
        held_in, images = "memory", hold(prepared, rows)
    splits = {name: _split(source, prepared, images[name], part, name) for name, part in rows.items()}
    # Without a cache, free memory decides whether all pixels are read: the fingerprint must not depend on it.
    fingerprint = f"{source.fingerprint} {len(prepared.invalid)} left out" if settings.cache == "off" else None
    resize = settings.resize if isinstance(settings, ImagesSettings) else "stretch"
    features = {IMAGES: image(source.image_shape, np.dtype(np.uint8), (0.0, 255.0), resize)}
    dataset = dataset_of(source.name, splits, source.class_names, features, fingerprint_of(splits, fingerprint, rows))
    params = {"held_in": held_in, "data/skipped": len(prepared.invalid), "data/passed_over": source.passed_over}
    files = _report_invalid(prepared.invalid, source.name, reporter, folder)
    record = dataclasses.replace(dataset.record, params={**dataset.record.params, **params}, files=files)
    return dataclasses.replace(dataset, record=record)


def _prepared(source: Source, settings: SourceSettings, cache: Path | None, fits: bool, reporter: Reporter) -> Prepared:
    """Returns the images in the cache, or in memory, or as they are read at each use."""
    if cache is not None:
        return prepare(source, cache, settings.on_error, reporter)
    if fits:
        return read_into_memory(source, settings.on_error, reporter)
    if settings.on_error == "skip" or not source.is_indexed:
        why = "too late to skip it" if source.is_indexed else "and TFRecord files are read from end to end alone"
        raise UserError(
            f"{source.name} with data.cache=off does not fit into memory: an image is decoded when a batch needs it, "
            f"{why}",
            ("data.cache=disk", "data.on_error=fail, and files or ArrayRecord"),
            "data.cache=disk",
        )
    labels = source.labels()
    images = Streamed.all((len(labels), *source.image_shape), lambda numbers: _read_now(source, numbers))
    return Prepared(images, labels, np.arange(len(labels)), None, ())


def _read_now(source: Source, numbers: np.ndarray) -> np.ndarray:
    images = []
    for result in source.read(numbers):
        if isinstance(result, Invalid):
            fix = "data.cache=disk data.on_error=skip"
            raise UserError(f"{result.where}: {result.why}", "examples that can be used", fix)
        images.append(result[0])
    return np.stack(images)


def splits_of(source: Source, prepared: Prepared, settings: SourceSettings) -> dict[str, np.ndarray]:
    """Returns the rows of each split, in order; what the source does not have is cut from its training examples.

    Raises:
        UserError: where a split has no example, a class has too few for each, or only one class can be learned.
    """
    place = np.full(len(source), -1)
    place[prepared.numbers] = np.arange(len(prepared.numbers))
    rows = {name: np.sort(place[numbers][place[numbers] >= 0]) for name, numbers in source.parts.items()}
    for name, part in rows.items():
        if not len(part):
            raise UserError(f"the {name} split of {source.name} has no example that can be used", "one at least")
    train = rows["train"]
    present = np.unique(prepared.labels[train])
    if len(present) < 2:
        raise UserError(
            f"only the class {source.class_names[int(present[0])]} has training examples that can be used",
            "training examples of two classes or more",
        )
    fractions = {"test": settings.test_fraction, "val": settings.val_fraction}
    missing = {name: fraction for name, fraction in fractions.items() if name not in rows}
    cut = cut_all(prepared.labels[train], missing, settings.split_seed)
    return rows | {name: train[part] for name, part in cut.items()}


def _fits(shape: tuple[int, ...], memory_gib: float | None) -> bool:
    allowed = memory_gib * 2**30 if memory_gib is not None else HELD_SHARE * available_memory()
    return int(np.prod(shape)) <= allowed


def _split(source: Source, prepared: Prepared, images: Column, rows: np.ndarray, name: str) -> Split:
    numbers = prepared.numbers[rows]
    files = [source.file(int(number)) for number in numbers] if name == "test" else [None]
    named = [file for file in files if file is not None]
    described = prepared.described and prepared.described.of(rows)
    labels = prepared.labels[rows]
    return Split.of_images(images, labels, cached=described, numbers=numbers, files=named or None)


def _report_invalid(
    invalid: tuple[Invalid, ...], name: str, reporter: Reporter, folder: Path | None
) -> dict[str, Path]:
    """Warns of the examples that were left out, and lists them; returns the file to record."""
    if not invalid:
        return {}
    reporter.warn(f"{len(invalid):,} of {name} left out; the first: {invalid[0].where}: {invalid[0].why}")
    if folder is None:
        return {}
    path = folder / "data" / "skipped.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_csv(path, [("where", "why"), *((example.where, example.why) for example in invalid)])
    return {"data": path}
