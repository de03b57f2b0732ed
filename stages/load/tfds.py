"""Sets of TensorFlow Datasets: image classification by its records, all others as columns."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets
from tensorflow_datasets import features as kinds
from tensorflow_datasets.core.registered import DatasetNotFoundError

from stages.data.batches import WITHOUT_AUTOTUNER
from stages.data.convert import InvalidImageError
from stages.data.decode import Decoder
from stages.data.loading import load
from stages.data.source import Encoded, EncodedSource
from stages.data.tables import FEW
from stages.errors import UserError
from stages.load.arrays import dataset_of_arrays
from stages.reporter import Reporter, Silent
from stages.results import Dataset
from stages.settings.data import TfdsSettings
from stages.settings.places import regular_folder


def tfds(
    settings: TfdsSettings, reporter: Reporter | None = None, folder: Path | None = None, cache: Path | None = None
) -> Dataset:
    """Returns the set `settings.name`; splits that it does not have are cut from its training examples.

    Arguments and files are those of `stages.data.loading.load`.

    Raises:
        UserError: for an unknown name or split, a set of which nothing can be predicted, or images of several sizes
            without `size`.
    """
    builder = _prepared(settings)
    features = builder.info.features
    has_both = any(map(_is_image, features.values())) and any(map(_is_class, features.values()))
    if has_both and settings.label_key in (None, *features):
        return load(TfdsSource(settings, builder), settings, reporter, folder, cache)
    splits = _splits(builder.info, settings)
    _refuse_repeated([part for name, split in splits.items() for part in _files(builder.info, name, split)])
    return tfds_columns(builder, splits, settings, reporter, folder)


def _splits(info: Any, settings: TfdsSettings) -> dict[str, str]:
    """Returns those splits that the set has, or the settings name, in TFDS' syntax."""
    splits = {
        "train": settings.train_split,
        "val": settings.val_split or ("validation" if "validation" in info.splits else None),
        "test": settings.test_split or ("test" if "test" in info.splits else None),
    }
    return {name: split for name, split in splits.items() if split}


class TfdsSource(EncodedSource):
    """Examples of a prepared set, in the order of its files.

    Their records are parsed many at a time: TFDS' own `as_dataset` takes six times as long for small images.
    """

    def __init__(self, settings: TfdsSettings, builder: Any) -> None:
        self._builder = builder
        info = builder.info
        images = [name for name, part in info.features.items() if _is_image(part)]
        classes = [name for name, part in info.features.items() if _is_class(part) and (part.num_classes or 0) > 1]
        expected = "one Image of uint8 for each example"
        self._image = _key(info, "image", settings.image_key, images, images, expected)
        expected = "one ClassLabel of two classes or more for each example"
        self._label = _key(info, "label", settings.label_key, classes, classes, expected)
        image = info.features[self._image]
        if image.np_dtype != np.uint8:
            raise UserError(f"data.name={settings.name} has images of {np.dtype(image.np_dtype)}", "images of uint8")
        self._splits = _splits(info, settings)
        self._files = [part for name, split in self._splits.items() for part in _files(info, name, split)]
        self._ends = np.cumsum([0, *(part.take for part in self._files)])
        sizes = [info.splits[split].num_examples for split in self._splits.values()]
        ends = np.cumsum([0, *sizes])
        self.parts = {name: np.arange(ends[i], ends[i + 1]) for i, name in enumerate(self._splits)}
        _refuse_repeated(self._files)
        self.name = info.full_name
        self.class_names = tuple(info.features[self._label].names)
        self.image_shape = settings.shape(image.shape)
        self.decode = Decoder(self.image_shape, settings.resize, settings.min_side)
        splits = {name: self._splits.get(name) for name in ("train", "val", "test")}
        facts = (info.full_name, splits, self.decode.key, (self._image, self._label))
        content = hashlib.sha256(repr(facts).encode())
        for path in sorted(Path(builder.data_dir).iterdir()):
            status = path.stat()
            content.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode())
        self.fingerprint = content.hexdigest()[:32]

    def blocks(self) -> Iterator[Any]:
        """See `Source`: the number of the first example, and records of `tf.train.Example`, string [n].

        Raises:
            UserError: where a file is damaged, or has not as many examples as the set says.
        """
        done = 0
        try:
            for records in self._records():
                yield done, records
                done += len(records)
        except tf.errors.OpError as error:
            raise _broken(self._where(min(done, len(self) - 1)), str(error.message)) from error
        if done != len(self):
            raise _broken(str(self._builder.data_dir), f"has {done:,} examples in place of {len(self):,}")

    def _records(self) -> Iterator[Any]:
        if self._builder.info.file_format.value == "array_record":
            source = self._builder.as_data_source("+".join(self._splits.values())).data_source
            for numbers in super().blocks():
                yield tf.constant(source.__getitems__(numbers.tolist()))
            return
        paths = [part.filename for part in self._files]
        skips, takes = (np.array([getattr(part, name) for part in self._files], np.int64) for name in ("skip", "take"))
        files = tf.data.Dataset.from_tensor_slices((paths, skips, takes))
        records = files.flat_map(lambda path, skip, take: tf.data.TFRecordDataset(path).skip(skip).take(take))
        yield from records.batch(self.block).prefetch(2).with_options(WITHOUT_AUTOTUNER)

    def encoded(self, block: Any) -> Sequence[Encoded]:
        """See `EncodedSource`. A record without an image or a label has b"" or -1."""
        first, records = block
        image, label = tf.io.FixedLenFeature((), tf.string, b""), tf.io.FixedLenFeature((), tf.int64, -1)
        try:
            parsed = tf.io.parse_example(records, {self._image: image, self._label: label})
        except tf.errors.OpError as error:
            raise _broken(self._where(first), str(error.message)) from error
        images, labels = (parsed[key].numpy() for key in (self._image, self._label))
        return [
            Encoded(self._where(number), image, int(label))
            for number, (image, label) in enumerate(zip(images, labels, strict=True), first)
        ]

    def _where(self, number: int) -> str:
        index = int(np.searchsorted(self._ends, number, side="right")) - 1
        part = self._files[index]
        return f"{part.filename}, example {number - self._ends[index] + part.skip}"


def _refuse_repeated(files: Sequence[Any]) -> None:
    """Refuses splits that share examples, by the files that they are in."""
    seen: dict[str, np.ndarray] = {}
    for part in files:
        is_seen = seen.setdefault(part.filename, np.zeros(part.examples_in_shard, bool))
        rows = slice(part.skip, part.skip + part.take)
        if is_seen[rows].any():
            raise UserError(
                f"data: {is_seen[rows].sum():,} examples are in two splits, or in one of them twice",
                "splits that share nothing, such as those that the set has itself",
                "data.train_split=train data.val_split=null data.test_split=null",
            )
        is_seen[rows] = True


def _broken(where: str, why: str) -> UserError:
    return UserError(f"{where}: {why}", "a set that TFDS has prepared whole", "prepare it again")


def _prepared(settings: TfdsSettings) -> Any:
    """Returns the builder of the newest prepared version, from its files alone: TFDS' own code is slow to import."""
    if settings.download:
        try:
            builder = tensorflow_datasets.builder(settings.name, data_dir=settings.folder)
        except DatasetNotFoundError as error:
            raise UserError(
                f"data.name={settings.name} is not a TFDS data set", "a name that TFDS has", "data.name=<its name>"
            ) from error
        builder.download_and_prepare()
        return builder
    name, _, version = settings.name.partition(":")
    pattern = re.escape(version) if version else r"\d+\.\d+\.\d+"  # excludes the leftovers of a killed preparation
    found = [path.parent for path in (settings.folder / name).glob("**/dataset_info.json")]
    found = [path for path in found if re.fullmatch(pattern, path.name)]
    configs = sorted({str(path.parent.relative_to(settings.folder)) for path in found})
    if len(configs) != 1:
        raise UserError(
            f"data.name={settings.name} has {len(configs)} prepared configurations in {settings.folder}",
            configs or "one that TFDS has prepared",
            f"data.name={configs[0]}" if configs else "data.download=true",
        )
    place = max(found, key=lambda path: [int(part) for part in path.name.split(".") if part.isdecimal()])
    try:
        return tensorflow_datasets.builder_from_directory(regular_folder(place))
    except Exception as error:  # what TFDS raises for damage has no common class
        raise _broken(str(place), str(error).partition("\n")[0]) from error


def _key(info: Any, setting: str, key: str | None, usable: Sequence[str], likely: Sequence[str], expected: str) -> str:
    """Returns the name of a feature: the given one, that of the declared pair, the usual one, or the only likely one.

    Args:
        setting: `image` or `label`, also the usual name. key: its value. usable, likely: names of features.

    Raises:
        UserError: where none of them is usable.
    """
    pair = info.supervised_keys if len(info.supervised_keys or ()) == 2 else ("", "")
    usual = (pair[setting == "label"], setting, f"{setting}s", *(likely if len(likely) == 1 else ()))
    found = [name for name in ([key] if key else usual) if name in usable]
    if not found:
        listed = (f"{'/'.join(keys)} ({type(feature).__name__})" for keys, feature in sorted(_flat(info.features)))
        raise UserError(
            f"data.{setting}_key={key or 'null'}: {info.full_name} has {', '.join(listed)}",
            f"{expected}: {', '.join(usable) or 'none'}",
            f"data.{setting}_key={[*likely, *usable, '<its name>'][0]}",
        )
    return str(found[0])


def _files(info: Any, name: str, split: str) -> list[Any]:
    try:
        parts = list(info.splits[split].file_instructions)
    except (KeyError, ValueError) as error:
        raise UserError(
            f"data.{name}_split={split} is not in {info.name}",
            list(info.splits),
            f"data.{name}_split={'train' if name == 'train' else 'null'}",
        ) from error
    if not parts:
        raise UserError(f"data.{name}_split={split} of {info.name} has no example", "one at least")
    return parts


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
    predictable = [name for name in usable if not _is_image(usable[name][1])]
    classes = [name for name in predictable if isinstance(features[name][1], (kinds.ClassLabel, kinds.Sequence))]
    expected = "a class, labels, a number or a text to predict"
    target = _key(info, "label", settings.label_key, predictable, classes, expected)
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


def _is_class(feature: Any) -> bool:
    return isinstance(feature, kinds.ClassLabel)


def _column(array: np.ndarray, feature: Any, settings: TfdsSettings) -> np.ndarray:
    """Returns values as a table has them: classes by their names, texts, pixels."""
    if _is_class(feature):
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
