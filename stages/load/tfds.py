"""Data sets of TensorFlow Datasets: images with classes or masks are read encoded, all others as columns in memory."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets
from tensorflow_datasets import features as kinds

from stages.data.batches import WITHOUT_AUTOTUNER
from stages.data.convert import InvalidImageError
from stages.data.decode import Decoder
from stages.data.loading import Encoded, Read, Source, load
from stages.data.masks import MaskDecoder, classes_of_values
from stages.data.profiles import FEW
from stages.errors import UserError
from stages.load.arrays import dataset_of_arrays
from stages.reporter import Reporter
from stages.results import Dataset
from stages.settings.data import TfdsSettings

BATCH = 1024
"""Maximum number of records that are read at once."""


def tfds(
    settings: TfdsSettings, reporter: Reporter | None = None, folder: Path | None = None, cache: Path | None = None
) -> Dataset:
    """Return the data set `settings.name`. Splits that it does not have are cut from its training examples.

    Images with a class or a mask are read like image files. All other data sets become arrays in memory, and the kinds
    of their columns and the task are detected as for a table. The arguments and the written files are those of
    `stages.data.loading.load`.

    Raises:
        UserError: For an unknown name or split, a data set without a possible target, or images of several sizes
            without `size`, or classes of masks for a target that is not a mask.
    """
    builder = _prepared(settings)
    info, features = builder.info, dict(_flat(builder.info.features))
    usable = {name: feature for name, feature in features.items() if _is_usable(feature)}
    images = [name for name, feature in usable.items() if _is_image(feature)]
    if any(_is_image(feature) for feature in features.values()):
        photos = [name for name in images if name != settings.label_key or not _is_mask(features[name])] or images
        image = _key(info, "image", settings.image_key, photos, photos, "one uint8 Image per example")
        masks = [name for name in images if name != image and _is_mask(features[name])]
    else:
        masks = []
    others = [name for name in usable if name not in images]
    classes = [name for name in others if isinstance(features[name], (kinds.ClassLabel, kinds.Sequence))]
    expected = "a class, labels, a number, a text or a mask to predict"
    label = _key(info, "label", settings.label_key, [*others, *masks], classes, expected)
    if label not in masks and (settings.classes is not None or settings.mask_values is not None):
        problem = f"data.classes and data.mask_values have no effect, as {label} of {info.full_name} is not a mask"
        raise UserError(problem, "data.label_key=<a feature that is an image of one channel>")
    if images:  # other columns are left out, because an encoder does not support images with other columns
        usable = {name: features[name] for name in (image, label)}
    left_out = [f"{name} ({type(feature).__name__})" for name, feature in features.items() if name not in usable]
    if left_out:
        (reporter or Reporter()).log(f"{info.full_name}: these features are not used: {', '.join(left_out)}")
    records = Records(builder, settings, usable)
    if label in masks or (images and isinstance(features[label], kinds.ClassLabel)):
        return load(_source(records, settings, image, label), settings, reporter, folder, cache)
    columns = records.columns(settings)
    targets = _targets(label, columns.pop(label), features[label], reporter or Reporter())
    given = {
        split: tuple({name: column[rows] for name, column in part.items()} for part in (columns, targets))
        for split, rows in records.parts.items()
    }
    return dataset_of_arrays(info.full_name, given, settings, reporter, folder)


class Records:
    """Records (`tf.train.Example`) of a prepared data set, split after split, in the order of its files.

    `as_dataset` of TFDS takes four times as long for small images.

    Attributes:
        features: The features to read.
        parts: For each split, the numbers of its examples, int64.
    """

    def __init__(self, builder: Any, settings: TfdsSettings, features: Mapping[str, Any]) -> None:
        self.builder, self.features = builder, features
        known = builder.info.splits
        splits = {
            "train": settings.train_split,
            "val": settings.val_split or ("validation" if "validation" in known else None),
            "test": settings.test_split or ("test" if "test" in known else None),
        }
        self.splits = {name: split for name, split in splits.items() if split}
        files = {name: _files(builder.info, name, split) for name, split in self.splits.items()}
        self._files = [part for parts in files.values() for part in parts]
        _refuse_repeated(self._files)
        ends = np.cumsum([0, *(sum(part.take for part in parts) for parts in files.values())])
        self.count = int(ends[-1])
        self.parts = {name: np.arange(ends[i], ends[i + 1]) for i, name in enumerate(files)}

    def blocks(self, size: int) -> Iterator[tuple[int, Mapping[str, tf.Tensor]]]:
        """Yield blocks of `size` examples: the number of the first one, and their values by name.

        Raises:
            UserError: If the files do not have the declared number of examples.
        """
        done = 0
        for values in self._parsed(size):
            yield done, values
            done += next(iter(values.values())).shape[0]
        if done != self.count:
            problem = f"{self.builder.data_dir} has {done:,} examples instead of {self.count:,}"
            raise UserError(problem, "a completely prepared data set; prepare it again")

    def _parsed(self, size: int) -> Iterator[Mapping[str, tf.Tensor]]:
        specs = {name: _spec(feature) for name, feature in self.features.items()}
        parse = partial(tf.io.parse_example, features=specs)
        if self.builder.info.file_format.value == "array_record":
            source = self.builder.as_data_source("+".join(self.splits.values())).data_source
            for start in range(0, self.count, size):
                yield parse(tf.constant(source.__getitems__([*range(start, min(start + size, self.count))])))
            return
        paths = [part.filename for part in self._files]
        skips, takes = (np.array([getattr(part, name) for part in self._files], np.int64) for name in ("skip", "take"))
        files = tf.data.Dataset.from_tensor_slices((paths, skips, takes))
        records = files.flat_map(lambda path, skip, take: tf.data.TFRecordDataset(path).skip(skip).take(take))
        yield from records.batch(size).map(parse).prefetch(2).with_options(WITHOUT_AUTOTUNER)

    def columns(self, settings: TfdsSettings) -> dict[str, np.ndarray]:
        """Return all examples, [N, ...] by name."""
        blocks = list(self.blocks(BATCH))
        return {
            name: np.concatenate(
                [
                    self._pixels(*block, name, settings) if _is_image(feature) else _column(block[1][name], feature)
                    for block in blocks
                ]
            )
            for name, feature in self.features.items()
        }

    def _pixels(self, first: int, values: Mapping[str, Any], name: str, settings: TfdsSettings) -> np.ndarray:
        shape = settings.shape(self.features[name].shape)
        images = []
        for number, image in enumerate(Decoder(shape, settings.resize)(values[name].numpy().tolist()), first):
            if isinstance(image, InvalidImageError):
                raise UserError(f"{self.where(number)}: {image}", "valid images")
            images.append(image)
        return np.stack(images)

    def where(self, number: int) -> str:
        """Return the description of an example, for errors."""
        return f"{self.builder.info.full_name}, example {number} of its splits"


def _source(records: Records, settings: TfdsSettings, image: str, label: str) -> Source:
    """Return the encoded images with their classes or masks."""
    name, feature = records.builder.info.full_name, records.features[label]
    decode = Decoder(settings.shape(records.features[image].shape), settings.resize)
    masks = None
    if _is_image(feature):
        values, names = classes_of_values(settings.mask_values or {})
        classes = tuple(names or map(str, settings.classes or ()))
        masks = MaskDecoder(decode.image_shape[:2], settings.resize, values)
    else:
        classes = tuple(feature.names)
    splits = {name: records.splits.get(name) for name in ("train", "val", "test")}
    content = hashlib.sha256(repr((name, splits, decode.key, (image, label))).encode())
    content.update(repr((masks.key, classes)).encode() if masks is not None else b"")
    for path in sorted(Path(records.builder.data_dir).iterdir()):
        status = path.stat()
        content.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode())

    def blocks(size: int) -> Iterator[Read]:
        for first, values in records.blocks(min(size, BATCH)):
            yield partial(_encoded, records, first, values[image], values[label])

    fingerprint = content.hexdigest()[:32]
    return Source(name, fingerprint, decode.image_shape, classes, records.parts, blocks, decode, masks)


def _encoded(records: Records, first: int, images: tf.Tensor, labels: tf.Tensor) -> list[Encoded]:
    pairs = enumerate(zip(images.numpy(), labels.numpy(), strict=True), first)
    if labels.dtype == tf.string:
        return [Encoded(records.where(number), image, mask=mask) for number, (image, mask) in pairs]
    return [Encoded(records.where(number), image, int(label)) for number, (image, label) in pairs]


def _files(info: Any, name: str, split: str) -> list[Any]:
    """Return the parts of files that a split in TFDS' syntax consists of."""
    try:
        return list(info.splits[split].file_instructions)
    except (KeyError, ValueError) as error:
        raise UserError(
            f"data.{name}_split={split} is not a split of {info.name}",
            list(info.splits),
            f"data.{name}_split={'train' if name == 'train' else 'null'}",
        ) from error


def _refuse_repeated(files: Sequence[Any]) -> None:
    """Refuse splits that share examples, by comparing the parts of files that they consist of."""
    ordered = sorted((part.filename, part.skip, part.skip + part.take) for part in files)
    twice = sum(max(first[2] - second[1], 0) for first, second in pairwise(ordered) if first[0] == second[0])
    if twice:
        raise UserError(
            f"data: {twice:,} examples are in two splits, or twice in the same split",
            "splits without common examples, such as those of the data set itself",
            "data.train_split=train data.val_split=null data.test_split=null",
        )


def _prepared(settings: TfdsSettings) -> Any:
    """Return the builder of the newest prepared version, from its files, because the code of TFDS is slow to import."""
    if settings.download:
        builder = tensorflow_datasets.builder(settings.name, data_dir=settings.folder)
        builder.download_and_prepare()
        return builder
    name, _, version = settings.name.partition(":")
    pattern = re.escape(version) if version else r"\d+\.\d+\.\d+"  # excludes the leftovers of a killed preparation
    versions = [path.parent for path in (settings.folder / name).glob("**/dataset_info.json")]
    versions = [path for path in versions if re.fullmatch(pattern, path.name)]
    configs = sorted({str(path.parent.relative_to(settings.folder)) for path in versions})
    if len(configs) != 1:
        raise UserError(
            f"data.name={settings.name} has {len(configs)} prepared configurations in {settings.folder}",
            configs or "a configuration that TFDS has prepared",
            f"data.name={configs[0]}" if configs else "data.download=true",
        )
    newest = max(versions, key=lambda path: [int(part) for part in path.name.split(".") if part.isdecimal()])
    return tensorflow_datasets.builder_from_directory(newest)


def _key(info: Any, setting: str, key: str | None, usable: Sequence[str], likely: Sequence[str], expected: str) -> str:
    """Return the name of the image or the label among the features.

    It is the given name, or else the first usable one of these: the name in the declared pair, the usual name, and the
    only likely name.

    Args:
        info: The description of the data set.
        setting: `image` or `label`, which is also the usual name.
        key: The given name.
        usable: The names of all features that can be used.
        likely: The names of likely features.
        expected: The description of the expected feature, for errors.

    Raises:
        UserError: If none of the names is usable.
    """
    pair = info.supervised_keys if len(info.supervised_keys or ()) == 2 else ("", "")
    usual = (pair[setting == "label"], setting, f"{setting}s", *(likely if len(likely) == 1 else ()))
    names = [name for name in ([key] if key else usual) if name in usable]
    if not names:
        listed = (f"{name} ({type(feature).__name__})" for name, feature in sorted(_flat(info.features)))
        raise UserError(
            f"data.{setting}_key={key or 'null'}: {info.full_name} has the features {', '.join(listed)}",
            f"{expected}{': ' * bool(usable)}{', '.join(usable)}",
            f"data.{setting}_key={[*likely, *usable, '<its name>'][0]}",
        )
    return str(names[0])


def _flat(features: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the features of nested mappings by their names in records, such as `numbers/age`."""
    for name, feature in features.items():
        if isinstance(feature, kinds.FeaturesDict):
            yield from _flat(feature, f"{above}{name}/")
        else:
            yield f"{above}{name}", feature


def _is_image(feature: Any) -> bool:
    return isinstance(feature, kinds.Image)


def _is_mask(feature: Any) -> bool:
    return _is_image(feature) and feature.shape[-1] == 1


def _is_usable(feature: Any) -> bool:
    if isinstance(feature, kinds.Sequence):
        return isinstance(feature.feature, kinds.ClassLabel)
    is_flat = isinstance(feature, kinds.Tensor) and len(feature.shape) < 2 and None not in feature.shape
    return is_flat or (_is_image(feature) and feature.np_dtype == np.uint8)


def _spec(feature: Any) -> Any:
    """Return the format of a feature in a record. A missing image is b"", and a missing class is -1."""
    if isinstance(feature, kinds.Sequence):
        return tf.io.RaggedFeature(tf.int64)
    if _is_image(feature):
        return tf.io.FixedLenFeature((), tf.string, b"")
    if isinstance(feature, kinds.ClassLabel):
        return tf.io.FixedLenFeature((), tf.int64, -1)
    dtype = {"f": tf.float32, "O": tf.string}.get(np.dtype(feature.np_dtype).kind, tf.int64)
    return tf.io.FixedLenFeature(feature.shape, dtype)


def _column(values: Any, feature: Any) -> np.ndarray:
    """Return the values of a feature as for a table: names of classes, labels as 0 and 1, and texts."""
    if isinstance(feature, kinds.Sequence):
        hot = np.zeros((values.shape[0], feature.feature.num_classes), np.int32)
        hot[values.value_rowids(), values.values] = 1
        return hot
    array: np.ndarray = values.numpy()
    if isinstance(feature, kinds.ClassLabel):
        return np.array([*feature.names, None], object)[array]  # -1 means an unknown class
    if array.dtype == object:
        return np.array([text.decode(errors="replace") for text in array], object)
    return array.astype(feature.np_dtype)


def _targets(name: str, column: np.ndarray, feature: Any, reporter: Reporter) -> dict[str, np.ndarray]:
    """Return targets by name. Labels with a single value are left out; many different whole numbers are not classes."""
    if not isinstance(feature, kinds.Sequence):
        is_number = column.dtype.kind in "iu" and len(np.unique(column)) > FEW
        return {name: column.astype(np.float64) if is_number else column}
    labels = dict(zip(feature.feature.names, column.T, strict=True))
    constant = [name for name, values in labels.items() if values.min() == values.max()]
    if constant:
        reporter.warn(
            f"left out {len(constant)} labels that have the same value in all examples: {', '.join(constant[:5])}"
        )
    return {name: values for name, values in labels.items() if name not in constant}
