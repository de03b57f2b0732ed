"""From a source to a data set: prepared, divided into splits, held in memory or read from the cache."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from stages.data.columns import Column, Streamed
from stages.data.free_memory import memory_for_data
from stages.data.prepared import Prepared, hold, prepare, read_into_memory, read_rows
from stages.data.source import Invalid, Source
from stages.data.split import Split
from stages.data.splits import cut_classes, dataset_of
from stages.errors import UserError
from stages.features.kinds import IMAGES, Feature, image
from stages.reporter import Reporter, Silent
from stages.results import Dataset
from stages.settings.data import ImagesSettings, SourceSettings
from stages.storage.atomic import write_csv
from stages.tasks.classification import Classification


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
    prepared, fits = read_images(source, settings, reporter, cache)
    rows = splits_of(source, prepared, settings)
    images = columns_of(source, prepared, rows, fits, reporter)
    splits = {name: _split(source, prepared, images[name], part, name) for name, part in rows.items()}
    features = {IMAGES: feature_of(source, settings)}
    dataset = dataset_of(source.name, splits, Classification(source.class_names), features)
    params = {"held_in": "memory" if fits else "disk", "data/skipped": len(prepared.invalid)}
    params |= {"data/passed_over": source.passed_over}
    files = _report_invalid(prepared.invalid, source.name, reporter, folder)
    record = dataclasses.replace(dataset.record, params={**dataset.record.params, **params}, files=files)
    return dataclasses.replace(dataset, record=record)


def read_images(
    source: Source, settings: SourceSettings, reporter: Reporter, cache: Path | None
) -> tuple[Prepared, bool]:
    """Returns the images of `source`, prepared, and whether they fit into memory.

    Raises:
        UserError: where images cannot be used and are not to be skipped, or there is no room for them.
    """
    allowed = memory_for_data(settings.memory_gib)
    fits = len(source) * int(np.prod(source.image_shape)) <= allowed
    if settings.cache == "disk" and cache is not None:
        return prepare(source, cache, settings.on_error, reporter), fits
    if fits:
        return read_into_memory(source, settings.on_error, reporter), fits
    raise UserError(
        f"{source.name} does not fit into memory, and no cache keeps its images on the disk",
        f"data.cache=disk, or at most {allowed / 2**30:.3g} GiB of images",
        "data.cache=disk",
    )


def columns_of(
    source: Source, prepared: Prepared, rows: Mapping[str, np.ndarray], fits: bool, reporter: Reporter
) -> Mapping[str, Column]:
    """Returns the images of each split's rows: in memory where they fit, else read at each use."""
    if fits:
        return hold(prepared, rows)
    reporter.log(f"{source.name} is read from its disk during training")
    every = Streamed.all(prepared.images.shape, read_rows(prepared))
    return {name: dataclasses.replace(every, rows=part) for name, part in rows.items()}


def feature_of(source: Source, settings: SourceSettings) -> Feature:
    """Returns the feature that the images of `source` are."""
    resize = settings.resize if isinstance(settings, ImagesSettings) else "stretch"
    return image(source.image_shape, np.dtype(np.uint8), (0.0, 255.0), resize)


def splits_of(source: Source, prepared: Prepared, settings: SourceSettings) -> dict[str, np.ndarray]:
    """Returns the rows of each split, in order; what the source does not have is cut from its training examples."""
    place = np.full(len(source), -1)
    place[prepared.numbers] = np.arange(len(prepared.numbers))
    rows = {name: np.sort(place[numbers][place[numbers] >= 0]) for name, numbers in source.parts.items()}
    return cut_classes(source.name, rows, prepared.labels, source.class_names, settings)


def _split(source: Source, prepared: Prepared, images: Column, rows: np.ndarray, name: str) -> Split:
    numbers = prepared.numbers[rows]
    files = [source.file(int(number)) for number in numbers] if name == "test" else [None]
    named = [file for file in files if file is not None]
    described, labels = prepared.described.of(rows), prepared.labels[rows]
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
    write_csv(path, [("where", "why"), *((example.where, example.why) for example in invalid)])
    return {"data": path}
