"""Sets of TensorFlow Datasets: image classification here, all others as columns."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets
from tensorflow_datasets.core.registered import DatasetNotFoundError

from stages.data.batches import WITHOUT_AUTOTUNER
from stages.data.decode import Decoder
from stages.data.loading import load
from stages.data.source import Encoded, EncodedSource
from stages.errors import UserError
from stages.load.tfds_columns import tfds_columns
from stages.reporter import Reporter
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
    classes = [part for part in builder.info.features.values() if type(part).__name__ == "ClassLabel"]
    images = [part for part in builder.info.features.values() if type(part).__name__ == "Image"]
    if images and classes and settings.label_key in (None, *builder.info.features):
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
        self._image = _key(info, "Image", settings.image_key, "image", 0)
        self._label = _key(info, "ClassLabel", settings.label_key, "label", 1)
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


def _key(info: Any, kind: str, key: str | None, usual: str, place: int) -> str:
    """Returns the name of a feature: the given one, that of the declared pair, the usual one, or the only one.

    Raises:
        UserError: where none of them is of this kind.
    """
    features = dict(sorted(info.features.items()))
    of_kind = [name for name, feature in features.items() if type(feature).__name__ == kind]
    if kind == "ClassLabel":
        of_kind = [name for name in of_kind if (features[name].num_classes or 0) > 1]
    declared = info.supervised_keys[place] if len(info.supervised_keys or ()) == 2 else None
    wanted = [key] if key is not None else [declared, usual, *(of_kind if len(of_kind) == 1 else ())]
    found = [name for name in wanted if name in of_kind]
    if not found:
        listed = ", ".join(f"{name} ({type(feature).__name__})" for name, feature in features.items())
        raise UserError(
            f"data.{usual}_key={key or 'null'}: {info.name} has {listed}",
            f"one Image of uint8 and one ClassLabel of two classes or more for each example; as {kind} "
            f"{', '.join(of_kind) or 'nothing'} can be taken",
            f"data.{usual}_key={of_kind[0]}" if of_kind else "data.name=<a set with an image and a label>",
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
