"""Sets of TensorFlow Datasets that are no image classification: texts, numbers, classes and several labels."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets
from tensorflow_datasets import features as kinds

from stages.data.convert import InvalidImageError
from stages.data.decode import Decoder
from stages.data.tables import FEW
from stages.errors import UserError
from stages.load.arrays import dataset_of_arrays
from stages.reporter import Reporter, Silent
from stages.results import Dataset
from stages.settings.data import TfdsSettings

BATCH = 1024
"""Examples that are read at once."""

Keys = tuple[str, ...]
"""Place of a feature, from the outermost mapping inward."""


def tfds_columns(
    builder: Any,
    splits: Mapping[str, str],
    settings: TfdsSettings,
    reporter: Reporter | None = None,
    folder: Path | None = None,
) -> Dataset:
    """Returns a prepared set as arrays in memory, whose kinds and task are found as those of a table are.

    Args:
        splits: from `train`, and others that there are, to splits in TFDS' syntax.

    Raises:
        UserError: where nothing can be the target, or as in `dataset_of_arrays`.
    """
    info = builder.info
    features = {"/".join(keys): (keys, feature) for keys, feature in _flat(info.features)}
    usable = {name: pair for name, pair in features.items() if _is_usable(pair[1])}
    target = _target(info, features, [name for name in usable if not _is_image(usable[name][1])], settings)
    images = [name for name, (_, feature) in usable.items() if _is_image(feature)]
    if images:  # alone, as an encoder takes none beside other columns
        usable = {name: pair for name, pair in usable.items() if name in (settings.image_key or images[0], target)}
    left_out = [f"{name} ({type(feature).__name__})" for name, (_, feature) in features.items() if name not in usable]
    if left_out:
        (reporter or Silent()).log(f"{info.full_name}: left out {', '.join(left_out)}")
    given = {}
    for name, split in splits.items():
        columns = {key: _column(array, usable[key][1], settings) for key, array in _read(builder, split, usable)}
        given[name] = (columns, _targets(target, columns.pop(target), usable[target][1]))
    if isinstance(usable[target][1], kinds.Sequence):
        _leave_out_constants(given, reporter or Silent())
    return dataset_of_arrays(info.full_name, given, settings, reporter, folder)


def _flat(features: Any, keys: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Yields the features of nested mappings."""
    for name, feature in features.items():
        if isinstance(feature, kinds.FeaturesDict):
            yield from _flat(feature, (*keys, name))
        else:
            yield (*keys, name), feature


def _is_usable(feature: Any) -> bool:
    if isinstance(feature, kinds.Sequence):
        return isinstance(feature.feature, kinds.ClassLabel)
    is_flat = isinstance(feature, kinds.Tensor) and len(feature.shape) < 2 and None not in feature.shape
    return is_flat or (_is_image(feature) and feature.np_dtype == np.uint8)


def _target(info: Any, features: Mapping[str, tuple[Keys, Any]], usable: Sequence[str], settings: TfdsSettings) -> str:
    """Returns the name of the target: the given one, that of the declared pair, the usual one, or the only class."""
    classes = [name for name in usable if isinstance(features[name][1], (kinds.ClassLabel, kinds.Sequence))]
    declared = info.supervised_keys[1] if len(info.supervised_keys or ()) == 2 else None
    wanted = [declared, "label", "labels", *(classes if len(classes) == 1 else ())]
    found = [name for name in ([settings.label_key] if settings.label_key else wanted) if name in usable]
    if not found:
        listed = ", ".join(f"{name} ({type(feature).__name__})" for name, (_, feature) in sorted(features.items()))
        raise UserError(
            f"data.label_key={settings.label_key or 'null'}: {info.full_name} has {listed}",
            f"one of {', '.join(usable)} to predict" if usable else "a class, labels, a number or a text to predict",
            f"data.label_key={[*classes, *usable, '<its name>'][0]}",
        )
    return str(found[0])


def _read(builder: Any, split: str, features: Mapping[str, tuple[Keys, Any]]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields each column of a split, [N, ...], by its name; of labels, a row of 0 and 1."""
    encoded = {keys[0]: tensorflow_datasets.decode.SkipDecoding() for keys, one in features.values() if _is_image(one)}
    config = tensorflow_datasets.ReadConfig(interleave_cycle_length=1, try_autocache=False)

    def plain(example: Any) -> dict[str, tf.Tensor]:
        values = {}
        for name, (keys, feature) in features.items():
            value = example
            for key in keys:
                value = value[key]
            if isinstance(feature, kinds.Sequence):
                hot = tf.reduce_sum(tf.one_hot(value, feature.feature.num_classes, dtype=tf.int32), axis=0)
                value = tf.minimum(hot, 1)
            values[name] = value
        return values

    data = builder.as_dataset(split=split, read_config=config, decoders=encoded or None)
    parts = list(data.map(plain).batch(BATCH).as_numpy_iterator())
    for name in features if parts else ():
        yield name, np.concatenate([part[name] for part in parts])


def _is_image(feature: Any) -> bool:
    return isinstance(feature, kinds.Image)


def _column(array: np.ndarray, feature: Any, settings: TfdsSettings) -> np.ndarray:
    """Returns values as a table has them: classes by their names, texts, pixels."""
    if isinstance(feature, kinds.ClassLabel):
        names = np.array([*feature.names, None], object)  # -1: none is known
        return names[array]
    if _is_image(feature):
        return _pixels(array, Decoder(settings.shape(feature.shape), settings.resize, settings.min_side))
    return np.array([text.decode(errors="replace") for text in array], object) if array.dtype == object else array


def _pixels(contents: np.ndarray, decode: Decoder) -> np.ndarray:
    images = []
    for number, image in enumerate(decode(contents.tolist())):
        if isinstance(image, InvalidImageError):
            raise UserError(f"example {number}: {image}", "images that can be used")
        images.append(image)
    return np.stack(images)


def _targets(name: str, column: np.ndarray, feature: Any) -> dict[str, np.ndarray]:
    """Returns targets by name: of several labels a column each; many different whole numbers are no classes."""
    if isinstance(feature, kinds.Sequence):
        return dict(zip(feature.feature.names, column.T, strict=True))
    is_number = column.dtype.kind in "iu" and len(np.unique(column)) > FEW
    return {name: column.astype(np.float64) if is_number else column}


def _leave_out_constants(given: Mapping[str, tuple[Any, dict[str, np.ndarray]]], reporter: Reporter) -> None:
    """Removes labels that hold for no example, or for all."""
    wholes = {name: np.concatenate([part[1][name] for part in given.values()]) for name in given["train"][1]}
    constant = [name for name, values in wholes.items() if values.min() == values.max()]
    if constant:
        reporter.warn(f"{len(constant)} labels are the same in all examples, and left out: {', '.join(constant[:5])}")
    for _, targets in given.values():
        for name in constant:
            del targets[name]
