"""Image classification sets of TensorFlow Datasets, read record by record."""

import hashlib
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets
from tensorflow_datasets.core.registered import DatasetNotFoundError

from stages.data import tfds_folder
from stages.data.convert import InvalidImageError
from stages.data.decode import Decoder
from stages.data.loading import load
from stages.data.source import EncodedSource, Invalid, Listing
from stages.errors import UserError
from stages.reporter import Reporter
from stages.results import Dataset
from stages.settings.data import TfdsSettings


def tfds(
    settings: TfdsSettings, reporter: Reporter | None = None, folder: Path | None = None, cache: Path | None = None
) -> Dataset:
    """Returns the set `settings.name`; splits that it does not have are cut from its training examples.

    Arguments and files are those of `stages.data.loading.load`.

    Raises:
        UserError: for an unknown name or split, a set that is no image classification, or images of several sizes
            without `size`.
    """
    return load(TfdsSource(settings), settings, reporter, folder, cache)


class TfdsSource(EncodedSource):
    """A prepared set of TFDS: its TFRecord files, any record of which is one read at a known offset."""

    def __init__(self, settings: TfdsSettings) -> None:
        builder = _prepared(settings)
        (self._image_key, image), (self._label_key, _) = tfds_folder.image_and_label(
            tfds_folder.read(Path(builder.data_dir)), settings
        )
        self._label = _feature(builder.info.features, self._label_key)
        splits = {
            "train": settings.train_split,
            "val": settings.val_split or _if_in_set(builder, "validation"),
            "test": settings.test_split or _if_in_set(builder, "test"),
        }
        self._parts = {name: _instructions(builder, name, split, settings) for name, split in splits.items() if split}
        self.name = builder.info.full_name
        self.image_shape = settings.shape((image.shape[0], image.shape[1], image.shape[2]))
        self.decode = decode = Decoder(self.image_shape, settings.resize, settings.min_side)
        self.fingerprint = _fingerprint(builder, splits, decode, (self._image_key, self._label_key))
        self._records: list[tuple[Path, int, int]] = []

    def listing(self) -> Listing:
        """Reads every record once, for its label.

        Raises:
            UserError: where a file is not whole, or a split selects nothing.
        """
        parts: dict[str, np.ndarray] = {}
        numbers: dict[tuple[Path, int], int] = {}
        labels: list[int] = []
        invalid: list[Invalid] = []
        count = self._label.num_classes
        for name, instructions in self._parts.items():
            in_split = []
            for instruction in instructions:
                path = Path(instruction.filename)
                records = _records_of(path)
                if len(records) != instruction.examples_in_shard:
                    raise _broken(path, f"has {len(records)} examples, and should have {instruction.examples_in_shard}")
                records = records[instruction.skip :]
                with _opened(path) as file:
                    for offset, length in records[: instruction.take] if instruction.take >= 0 else records:
                        example = numbers.get((path, offset))
                        if example is None:
                            label, why = _label(_read(file, offset, length), self._label_key, count)
                            if why:
                                invalid.append(Invalid(f"{path} at byte {offset}", why))
                                continue
                            example = numbers[path, offset] = len(labels)
                            labels.append(label)
                            self._records.append((path, offset, length))
                        in_split.append(example)
            if not in_split and not invalid:
                raise UserError(f"{self.name}: the {name} split selects no example", "one at least")
            parts[name] = np.array(in_split, np.int64)
        return Listing(np.array(labels, np.int32), parts, tuple(self._label.names), tuple(invalid))

    def content(self, number: int) -> bytes:
        path, offset, length = self._records[number]
        with _opened(path) as file:
            content = _example(_read(file, offset, length))[self._image_key].bytes_list.value
        if not content:
            raise InvalidImageError("a record without an image")
        return bytes(content[0])

    def where(self, number: int) -> str:
        path, offset, _ = self._records[number]
        return f"{path} at byte {offset}"


def _example(record: bytes) -> Mapping[str, Any]:
    try:
        return tf.train.Example.FromString(record).features.feature
    except Exception as error:  # protobuf's DecodeError is not public
        raise InvalidImageError(f"no tf.train.Example ({error})") from error


def _label(record: bytes, key: str, count: int) -> tuple[int, str]:
    """Returns a record's label, or why it has none of `count` classes."""
    try:
        labels = _example(record)[key].int64_list.value
    except InvalidImageError as error:
        return -1, str(error)
    if len(labels) != 1:
        return -1, "a record without a label"
    return labels[0], "" if 0 <= labels[0] < count else f"label {labels[0]} of {count} classes"


@cache
def _records_of(path: Path) -> list[tuple[int, int]]:
    """Returns the offset and the length of each record of a TFRecord file: 8 bytes of length and 4 of its checksum
    precede it, 4 follow (tensorflow.org/tutorials/load_data/tfrecord).
    """
    if not path.is_file():
        raise _broken(path, "is not there")
    records = []
    offset = 0
    size = path.stat().st_size
    with path.open("rb") as file:
        while offset < size:
            file.seek(offset)
            header = file.read(8)
            length = struct.unpack("<Q", header)[0] if len(header) == 8 else size
            if offset + 16 + length > size:
                raise UserError(
                    f"{path} ends within a record", "a file that TFDS has prepared whole", "prepare it again"
                )
            records.append((offset + 12, length))
            offset += 16 + length
    return records


@contextmanager
def _opened(path: Path) -> Iterator[FileIO]:
    """Opens a file of records for a while: a set may have more files than a process may hold open."""
    try:
        with path.open("rb", buffering=0) as file:
            yield file
    except OSError as error:
        raise _broken(path, error.strerror or str(error)) from error


def _read(file: FileIO, offset: int, length: int) -> bytes:
    return os.pread(file.fileno(), length, offset)


def _broken(path: Path, why: str) -> UserError:
    return UserError(f"{path}: {why}", "a set that TFDS has prepared whole", "prepare it again")


def _prepared(settings: TfdsSettings) -> tensorflow_datasets.core.DatasetBuilder:
    if not settings.download:  # the files describe themselves; TFDS's own code for the set is slow to import
        folder = tfds_folder.find(settings)
        if folder is not None:
            return tensorflow_datasets.builder_from_directory(folder)
    try:
        builder = tensorflow_datasets.builder(settings.name, data_dir=settings.folder)
    except DatasetNotFoundError as error:
        raise UserError(
            f"data.name={settings.name} is not a TFDS data set", "a name that TFDS has", "data.name=<its name>"
        ) from error
    if settings.download:
        builder.download_and_prepare()
    return builder


def _feature(features: Any, key: str) -> Any:
    """Returns the feature named `key`, such as `label` or `a/b`."""
    for part in key.split("/"):
        features = features[part]
    return features


def _if_in_set(builder: tensorflow_datasets.core.DatasetBuilder, name: str) -> str | None:
    return name if name in builder.info.splits else None


def _instructions(
    builder: tensorflow_datasets.core.DatasetBuilder, name: str, split: str, settings: TfdsSettings
) -> list[Any]:
    try:
        return list(builder.info.splits[split].file_instructions)
    except (KeyError, ValueError) as error:
        raise tfds_folder.no_split(settings, name, split, list(builder.info.splits)) from error


def _fingerprint(
    builder: tensorflow_datasets.core.DatasetBuilder,
    splits: Mapping[str, str | None],
    decoder: Decoder,
    keys: tuple[str, str],
) -> str:
    content = hashlib.sha256(repr((builder.info.full_name, splits, decoder.key, keys)).encode())
    for path in sorted(Path(builder.data_dir).iterdir()):
        facts = path.stat()
        content.update(f"{path.name} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return content.hexdigest()[:32]
