"""Data sets of arrays, from a user's function or an `.npz` file. The kinds of columns and the task are detected."""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from stages.data.array_tables import arrow_of
from stages.data.split import Split
from stages.data.splits import cut_all, dataset_of
from stages.data.table_source import Wide, read_rows
from stages.data.tables import Rows, argument_names
from stages.errors import UserError
from stages.features.images import ImageFeature
from stages.features.kinds import HISTORY, IMAGES, Feature
from stages.features.vectors import VectorFeature
from stages.features.windows import WindowFeature
from stages.load.series import series_of_result
from stages.load.table import cut, dataset_of_rows
from stages.reporter import Reporter
from stages.results import Dataset
from stages.settings.arrays import SERIES, ArraysSettings, is_series
from stages.settings.series import SeriesSettings
from stages.settings.table import TableSettings, check_kinds, declaring
from stages.tasks.segmentation import IGNORED, segmentation

FEATURES = "features"
"""Name of the only feature if the examples are a single array."""

TARGET = "target"
"""Name of the target; several targets are numbered."""

WEIGHT = "(weight)"
"""Name of the column of weights."""

RANGES = ((0.0, 1.0), (-0.5, 0.5), (-1.0, 1.0), (0.0, 255.0), (0.0, 65535.0))
"""Usual ranges of pixels. The first range that contains all pixels is chosen, with a tolerance of a hundredth of its
width, if the pixels exceed a quarter of it."""

EXPECTED = (
    "a tuple (train, val, test), each (features, targets) or (features, targets, weights), with None for a split "
    "that is to be cut from train"
)


class Part(NamedTuple):
    """The examples of a split."""

    features: dict[str, np.ndarray]
    """Arrays [N, ...] by name."""
    targets: dict[str, np.ndarray]
    """Arrays [N] by name."""
    weights: np.ndarray | None
    """The weights of the examples, [N]."""

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """All arrays by name."""
        weights = {} if self.weights is None else {WEIGHT: self.weights}
        return {**self.features, **self.targets, **weights}


def arrays(settings: ArraysSettings, reporter: Reporter | None = None, folder: Path | None = None) -> Dataset:
    """Return the arrays of `settings.files` as a data set; see `dataset_of_arrays`."""
    path = settings.path
    given = {}
    if settings.target is None and isinstance(settings.features, Mapping):
        kinds = {FEATURES if name == "x" else name: kind for name, kind in settings.features.items()}
        settings = replace(settings, features=kinds)
    try:
        with np.load(path, allow_pickle=False) as file:
            for split, (features, targets, weight) in settings.parts(file.files).items():
                is_alone = settings.target is None
                columns = {FEATURES if is_alone else name: file[name] for name in features}
                wanted = {TARGET if is_alone else name: file[name] for name in targets}
                given[split] = columns, wanted, None if weight is None else file[weight]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(
            f"{path} cannot be read ({error})", "arrays of numbers or strings, without pickled objects"
        ) from error
    return dataset_of_arrays(path.name, given, settings, reporter, folder)


def dataset_of_result(
    result: object, settings: Any = None, reporter: Reporter | None = None, folder: Path | None = None
) -> Dataset:
    """Return the result of a user's function as a data set.

    Args:
        result: A tuple as described by EXPECTED, or a single pair, which is cut into splits.
        settings: See `dataset_of_arrays`; with those of time series, see `series_of_result`.
        reporter: Receives the description of the data.
        folder: The folder of the run.

    Raises:
        UserError: If the result has a different form, or as in `dataset_of_arrays`.
    """
    if isinstance(settings, SeriesSettings):
        return series_of_result(result, settings, reporter, folder)
    if not isinstance(result, tuple):
        raise UserError(f"the data function returned a {type(result).__name__}", EXPECTED)
    parts = result if result and isinstance(result[0], tuple) else (result,)
    names = ("train", "test") if len(parts) == 2 else ("train", "val", "test")
    given = {name: part for name, part in zip(names, parts, strict=False) if part is not None}
    if len(parts) > 3 or any(not isinstance(part, tuple) or len(part) not in (2, 3) for part in given.values()):
        shown = ", ".join(type(part).__name__ for part in result)
        raise UserError(f"the data function returned ({shown})", EXPECTED)
    return dataset_of_arrays("data", given, settings, reporter, folder)


def dataset_of_arrays(
    name: str,
    given: Mapping[str, Sequence[Any]],
    settings: Any = None,
    reporter: Reporter | None = None,
    folder: Path | None = None,
) -> Dataset:
    """Return arrays as a data set. The kinds of columns and the task are detected as for a table.

    Targets that are whole numbers or texts are classes, floats mean regression, and a matrix of 0 and 1 means several
    labels. Whole numbers [N, H, W] are masks of images. A column of sentences is a text. Missing splits are cut from
    `train`.

    Args:
        name: The name of the data set.
        given: For each split, its features, targets and, optionally, weights. Features are an array [N, ...], arrays by
            name, or a data frame; targets are an array [N] or [N, k], or arrays by name.
        settings: An object that may have fractions of splits, `features` (kinds of columns) and `on_error`.
        reporter: Receives the description of the data.
        folder: The folder of the run.

    Raises:
        UserError: If lengths, names or shapes differ, or as in `dataset_of_rows`.
    """
    if _has_masks(given):
        return _dataset_of_masks(name, given, settings)
    chosen = getattr(settings, "features", None)
    parts = {split: _part(split, chosen, *values) for split, values in given.items()}
    train = parts["train"]
    for split, part in parts.items():
        _refuse_others(split, part, train, chosen)
    wide = [column for column, array in train.features.items() if array.ndim > 1]
    plain = [column for column in train.columns if column not in wide]
    series = _the_series(train, wide, chosen)
    rows = {
        split: pa.table({column: arrow_of(split, column, part.columns[column]) for column in plain})
        for split, part in parts.items()
    }
    of_table = {key: getattr(settings, key) for key in TABLE if hasattr(settings, key)}
    is_chosen = getattr(getattr(settings, "task", None), "kind", "auto") != "auto"
    table = TableSettings(
        target=[*train.targets],
        features={**({} if is_chosen else _kinds(train.targets)), **_of_table(chosen)},
        weight=None if train.weights is None else WEIGHT,
        **of_table,
    )
    source = read_rows(Rows.of(name, rows, takes_texts=True), table, partial(cut, settings=table))
    kept = source.numbers if source.skipped else slice(None)
    joined = {column: np.concatenate([part.features[column] for part in parts.values()]) for column in wide}
    whole = {
        HISTORY if column == series else name: _plain(joined[column], column == series)[kept]
        for column, name in argument_names([*plain, *wide]).items()
        if column in wide
    }
    if len(whole) == 1 and not source.used and not series and next(iter(whole.values())).ndim > 2:
        whole = {IMAGES: next(iter(whole.values()))}

    def features(train: Split) -> dict[str, Feature]:
        arrays = {key: np.asarray(train.features[key]) for key in whole}
        return {key: _series(array, series) if key == HISTORY else _feature(array) for key, array in arrays.items()}

    return dataset_of_rows(source, table, reporter or Reporter(), folder, Wide(whole, features))


def _of_table(chosen: Any) -> dict[str, str]:
    """Return the declared kinds that tables have, too."""
    kinds = chosen if isinstance(chosen, Mapping) else {}
    return {name: kind for name, kind in kinds.items() if kind != SERIES}


def _the_series(train: Part, wide: Sequence[str], chosen: Any) -> str:
    """Return the name of the only array that has a series for each example; empty if there is none.

    Raises:
        UserError: If there are several, or another feature has the name of the network's input.
    """
    kinds = chosen if isinstance(chosen, Mapping) else {}
    found = [name for name in wide if _is_series(train.features[name], kinds.get(name))]
    if wrong := [name for name, kind in kinds.items() if kind == SERIES and name not in found]:
        shape = train.columns[wrong[0]].shape
        raise UserError(f"data.features: {wrong[0]} has the shape {shape}", "numbers [N, T] or [N, T, C] for a series")
    if len(found) > 1:
        problem = f"{found[0]} and {found[1]} are both series"
        raise UserError(problem, "one array [N, T, C] with the channels of both (np.concatenate, axis=-1)")
    if found and HISTORY in train.columns and found != [HISTORY]:
        raise UserError(f"{HISTORY} is the name of the network's input for {found[0]}", "a different name")
    return found[0] if found else ""


def _is_series(array: np.ndarray, kind: str | None) -> bool:
    dtype = f"{array.dtype.kind}{array.dtype.itemsize}"
    return array.ndim in (2, 3) and array.dtype.kind in "fiub" and is_series(array.shape, dtype, kind)


def _has_masks(given: Mapping[str, Sequence[Any]]) -> bool:
    """Return whether the targets of the training split are masks: whole numbers, [N, H, W]."""
    targets = _only(given["train"][1])
    return getattr(targets, "ndim", 0) == 3 and targets.dtype.kind in "iu"


def _only(values: Any) -> Any:
    """Return the array, or the only one of several by name; the values themselves if there are more."""
    return next(iter(values.values())) if isinstance(values, Mapping) and len(values) == 1 else values


def _dataset_of_masks(name: str, given: Mapping[str, Sequence[Any]], settings: Any) -> Dataset:
    """Return images with their masks as a data set. The classes are the numbers from 0 to the largest in the masks.

    Raises:
        UserError: If the features are not one array of images of the size of the masks, or there is only one class.
    """
    splits = {}
    for split, (features, targets, *weights) in given.items():
        images, masks = _only(features), np.asarray(_only(targets))
        array = np.asarray(images) if not isinstance(images, Mapping) else np.empty(0)
        if array.ndim not in (3, 4) or masks.ndim != 3 or array.shape[:3] != masks.shape:
            problem = f"{split} has masks of shape {masks.shape}, and features of shape {array.shape}"
            raise UserError(problem, "images [N, H, W, C] and masks [N, H, W] of the same size, and no other features")
        given_weights = np.asarray(weights[0], np.float64) if weights and weights[0] is not None else None
        splits[split] = Split({IMAGES: _plain(array)}, masks, weights=given_weights)
    counted = [part[part != IGNORED] for part in (split.target_values for split in splits.values())]
    largest = max(int(part.max(initial=0)) for part in counted)
    if largest < 1:
        problem = f"{name}: the masks have only 0 and {IGNORED}, which means that a pixel does not count"
        raise UserError(problem, "at least two classes: 0, 1, …")
    train = splits["train"]
    fractions = {part: getattr(settings, f"{part}_fraction", default) for part, default in HELD_OUT.items()}
    missing = {part: fraction for part, fraction in fractions.items() if part not in splits}
    rows = cut_all(np.zeros(len(train), np.int32), missing, getattr(settings, "split_seed", 0))
    splits |= {part: train.take(places) for part, places in rows.items()}
    feature = _feature(np.asarray(splits["train"].images[:]))
    return dataset_of(name, splits, segmentation([str(value) for value in range(largest + 1)]), {IMAGES: feature})


HELD_OUT = {"test": 0.2, "val": 0.1}
"""The fractions of the splits that are cut from the training examples, if there are no settings."""

TABLE = ("val_fraction", "test_fraction", "split_seed", "on_error", "task")
"""Settings that are passed to `TableSettings`."""


def _part(split: str, chosen: Any, features: Any, targets: Any, weights: Any = None) -> Part:
    """Return the examples of a split as arrays by name.

    Args:
        split: The name of the split.
        chosen: `features` of the settings: the names of the features to use, or the kinds of columns by name.
        features: The features.
        targets: The targets.
        weights: The weights, if any.
    """
    named = _named(split, features, FEATURES)
    wanted = _named(split, targets, TARGET)
    [matrix] = wanted.values() if len(wanted) == 1 else [np.empty(0)]
    if matrix.ndim == 2:
        [name] = wanted
        several = [name] if matrix.shape[1] == 1 else [f"{name}_{place}" for place in range(matrix.shape[1])]
        wanted = dict(zip(several, matrix.T, strict=True))
    kinds = chosen if isinstance(chosen, Mapping) else {}
    check_kinds("data", _of_table(kinds))
    if absent := [name for name in chosen or () if name not in {*named, *(wanted if kinds else ())}]:
        raise UserError(f"data.features: {absent[0]} is not an array of {split}", [*named])
    named = {name: named[name] for name in (chosen if isinstance(chosen, (list, tuple)) else named)}
    named = {name: array for name, array in named.items() if kinds.get(name) != "leave_out"}
    if not wanted:
        raise UserError(f"{split} has no usable target", "at least one target with different values")
    both = [name for name in wanted if name in named]
    if both:
        raise UserError(
            f"{split}: {both[0]} is both a feature and a target", "different names for features and targets"
        )
    return Part(named, wanted, None if weights is None else np.asarray(weights))


def _named(split: str, values: Any, name: str) -> dict[str, np.ndarray]:
    """Return arrays by name from a mapping, a data frame, or a single array, which is named `name`.

    Raises:
        UserError: For lists of unequal lengths, values that are not arrays, and repeated names.
    """
    is_mapping = isinstance(values, Mapping) or type(values).__name__ == "DataFrame"
    arrays_by_name = {}
    for key, column in values.items() if is_mapping else [(name, values)]:
        try:
            array = _filled(column) if np.ma.is_masked(column) else np.asarray(column)
        except ValueError as error:
            raise UserError(
                f"{split}: {key} is not an array ({error})", "values of the same shape for all examples"
            ) from error
        if not array.ndim:
            fix = f"{key}.toarray()" if hasattr(column, "toarray") else ""
            raise UserError(f"{split}: {key} is a {type(column).__name__}", "an array with one row per example", fix)
        if str(key) in arrays_by_name:
            raise UserError(f"{split} has two columns named {key}", "unique column names")
        arrays_by_name[str(key)] = array
    return arrays_by_name


def _filled(array: np.ma.MaskedArray) -> np.ndarray:
    """Return a masked array with its masked values as missing values."""
    dtype, missing = (np.float64, np.nan) if array.dtype.kind in "fiub" else (object, None)
    filled: np.ndarray = np.ma.filled(array.astype(dtype), missing)
    return filled


def _refuse_others(split: str, part: Part, train: Part, chosen: Any) -> None:
    """Raise UserError if the arrays of a split do not fit each other or those of the training split."""
    columns = part.columns
    if others := {*columns} ^ {*train.columns}:
        problem = f"{split} and train have different columns: {min(others)} is only in one of them"
        raise UserError(problem, f"the columns {', '.join(train.columns)} in all splits")
    lengths = {name: len(array) for name, array in columns.items()}
    first = next(iter(part.targets))
    if not lengths[first]:
        raise UserError(f"{split} has no examples", "at least one, or None for a split that is to be cut from train")
    for name, array in columns.items():
        if lengths[name] != lengths[first]:
            raise UserError(
                f"{split}: {name} has {lengths[name]:,} rows, and {first} has {lengths[first]:,}",
                "the same number of rows in all arrays",
            )
        kind = chosen.get(name) if isinstance(chosen, Mapping) else None
        is_of_steps = array.ndim == 3 and (array.dtype in (np.uint8, np.bool_) or _is_series(array, kind))
        if name in part.features and (is_of_steps or (array.ndim in (2, 4) and array.dtype.kind in "fiub")):
            if array.shape[1:] != train.columns[name].shape[1:]:
                raise UserError(
                    f"{split}: examples of {name} have the shape {array.shape[1:]}",
                    f"{train.columns[name].shape[1:]}, as in train",
                )
            if array.dtype.kind == "f" and (wrong := np.isinf(array) if array.ndim < 4 else ~np.isfinite(array)).any():
                place = tuple(np.argwhere(wrong)[0])
                expected = "finite numbers; in vectors and series, nan means a missing value"
                raise UserError(f"{split}: {name} is {array[place]} in row {place[0] + 1:,}", expected)
        elif array.ndim != 1:
            raise UserError(
                f"{split}: {name} has dtype {array.dtype} and shape {array.shape}",
                "values [N], vectors [N, d], images [N, H, W, C], uint8 images [N, H, W], or series [N, T, C]",
                declaring({name: SERIES}) if array.ndim == 3 and array.dtype.kind in "fiub" else "",
            )


def _kinds(targets: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return the kinds of targets by their dtypes; it is empty if the kinds must be detected from the values."""
    if len(targets) == 1:
        return {name: "category" for name, array in targets.items() if array.dtype.kind != "f"}
    are_numbers = all(array.dtype.kind in "fiu" for array in targets.values())
    are_labels = are_numbers and all(np.isin(array, (0, 1)).all() for array in targets.values())
    return dict.fromkeys(targets, "number") if are_numbers and not are_labels else {}


def _series(array: np.ndarray, name: str) -> WindowFeature:
    """Return the description of series [N, T, C], from the array of the training split."""
    channels = array.shape[2]
    names = (name,) if channels == 1 else tuple(f"{name}_{place}" for place in range(channels))
    return WindowFeature(array.shape[1:], names, column=name if name != HISTORY else None)


def _plain(array: np.ndarray, is_series: bool = False) -> np.ndarray:
    """Return images as uint8 or float32 [N, H, W, C], vectors as float64 [N, d], and series as float64 [N, T, C]."""
    if is_series:
        return array.reshape(*array.shape[:2], -1).astype(np.float64)
    array = array[..., np.newaxis] if array.ndim == 3 else array
    if array.ndim == 2:
        return array.astype(np.float64, copy=False)
    return array.astype(np.uint8 if array.dtype in (np.uint8, np.bool_) else np.float32, copy=False)


def _feature(array: np.ndarray) -> Feature:
    """Return the description of vectors [N, d] or images, from the array of the training split."""
    if array.ndim == 2:
        return VectorFeature(array.shape[1:])
    low, high = float(array.min()), float(array.max())

    def is_likely(ends: tuple[float, float]) -> bool:
        more = (ends[1] - ends[0]) / 100
        reaches = (low == high and ends[0] <= low) or (min(low, 0) <= ends[0] / 4 and high > ends[1] / 4)
        return reaches and ends[0] - more <= low and high <= ends[1] + more

    unit = next(filter(is_likely, RANGES), None)
    return replace(ImageFeature.of(array.shape[1:], array.dtype, unit or (low, high)), is_measured=unit is None)
