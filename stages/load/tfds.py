"""Image-classification sets of TensorFlow Datasets, by the records of their files."""

import hashlib
import os
import re
import struct
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets
from tensorflow_datasets.core.registered import DatasetNotFoundError

from stages.errors import UserError
from stages.load.decode import Decoder
from stages.load.loading import load
from stages.load.source import Bad, BadPictureError, Listing
from stages.reporter import Reporter
from stages.results import Dataset
from stages.settings.data import TfdsSettings


def tfds(
    settings: TfdsSettings, reporter: Reporter | None = None, folder: Path | None = None, cache: Path | None = None
) -> Dataset:
    """Returns the set named `settings.name`; what it has no split for is cut from its training examples.

    Arguments and files are those of `stages.load.loading.load`.

    Raises:
        UserError: for an unknown name or split, a set that is no image classification, or pictures of several sizes
            without a `size` that they are to have.
    """
    return load(TfdsSource(settings), settings, reporter, folder, cache)


class TfdsSource:
    """A prepared set of TFDS: its TFRecord files, any record of which is one read at a known place."""

    def __init__(self, settings: TfdsSettings) -> None:
        builder = _prepared(settings)
        image, self._label = _features(builder, settings)
        splits = {
            "train": settings.train_split,
            "val": settings.val_split or _own(builder, "validation"),
            "test": settings.test_split or _own(builder, "test"),
        }
        self._parts = {name: _instructions(builder, name, split, settings) for name, split in splits.items() if split}
        self.name = builder.info.full_name
        self.picture = settings.shape(image.shape)
        self._decode = Decoder(self.picture, settings.resize, settings.min_side)
        self.fingerprint = _fingerprint(builder, splits, self._decode)
        self._records: list[tuple[Path, int, int]] = []

    def listing(self) -> Listing:
        """Reads every record once, for its label."""
        parts: dict[str, np.ndarray] = {}
        numbers: dict[tuple[Path, int], int] = {}
        labels: list[int] = []
        bad: list[Bad] = []
        count = self._label.num_classes
        for name, instructions in self._parts.items():
            mine = []
            for instruction in instructions:
                path = Path(instruction.filename)
                places = _places(path)
                if len(places) != instruction.examples_in_shard:
                    raise _broken(path, f"has {len(places)} examples, and should have {instruction.examples_in_shard}")
                places = places[instruction.skip :]
                for offset, length in places[: instruction.take] if instruction.take >= 0 else places:
                    number = numbers.get((path, offset))
                    if number is None:
                        label, why = _label(_read(path, offset, length), count)
                        if why:
                            bad.append(Bad(f"{path} at byte {offset}", why))
                            continue
                        number = numbers[path, offset] = len(labels)
                        labels.append(label)
                        self._records.append((path, offset, length))
                    mine.append(number)
            parts[name] = np.array(mine, np.int64)
        return Listing(np.array(labels, np.int32), parts, tuple(self._label.names), tuple(bad))

    def read(self, number: int) -> np.ndarray:
        example = _example(_read(*self._records[number]))
        content = example["image"].bytes_list.value
        if not content:
            raise BadPictureError("a record without a picture")
        return self._decode(content[0])

    def where(self, number: int) -> str:
        path, offset, _ = self._records[number]
        return f"{path} at byte {offset}"


def _example(record: bytes) -> Mapping[str, Any]:
    try:
        return tf.train.Example.FromString(record).features.feature
    except Exception as error:  # protobuf's DecodeError is not public
        raise BadPictureError(f"no tf.train.Example ({error})") from error


def _label(record: bytes, count: int) -> tuple[int, str]:
    """Returns a record's label, or why it has none of `count` classes."""
    try:
        labels = _example(record)["label"].int64_list.value
    except BadPictureError as error:
        return -1, str(error)
    if len(labels) != 1:
        return -1, "a record without a label"
    return labels[0], "" if 0 <= labels[0] < count else f"label {labels[0]} of {count} classes"


@cache
def _places(path: Path) -> list[tuple[int, int]]:
    """Returns where each record of a TFRecord file begins, and its length: 8 bytes of length and 4 of its checksum
    come before it, 4 after (tensorflow.org/tutorials/load_data/tfrecord).
    """
    if not path.is_file():
        raise _broken(path, "is not there")
    found, place, size = [], 0, path.stat().st_size
    with path.open("rb") as file:
        while place < size:
            file.seek(place)
            begin = file.read(8)
            length = struct.unpack("<Q", begin)[0] if len(begin) == 8 else size
            if place + 16 + length > size:
                raise UserError(
                    f"{path} ends within a record", "a file that TFDS has prepared whole", "prepare it again"
                )
            found.append((place + 12, length))
            place += 16 + length
    return found


def _read(path: Path, offset: int, length: int) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:  # a set may have more files than a process may hold open
            return os.pread(file.fileno(), length, offset)
    except OSError as error:
        raise _broken(path, error.strerror or str(error)) from error


def _broken(path: Path, why: str) -> UserError:
    return UserError(f"{path}: {why}", "a set that TFDS has prepared whole", "prepare it again")


def _prepared(settings: TfdsSettings) -> tensorflow_datasets.core.DatasetBuilder:
    if not settings.download:  # what is on the disk says all of itself; TFDS's own code for the set is slow to import
        name, _, version = settings.name.partition(":")
        found = [path.parent for path in (settings.folder / name).glob("**/dataset_info.json")]
        wanted = re.escape(version) if version else r"\d+\.\d+\.\d+"  # not what a killed preparation has left
        found = [path for path in found if re.fullmatch(wanted, path.name)]
        configs = sorted({str(path.parent.relative_to(settings.folder)) for path in found})
        if len(configs) > 1:
            raise UserError(
                f"data.name={settings.name} has several configurations", ", ".join(configs), f"data.name={configs[0]}"
            )
        if found:
            return tensorflow_datasets.builder_from_directory(max(found, key=_version))
    try:
        builder = tensorflow_datasets.builder(settings.name, data_dir=settings.folder)
    except DatasetNotFoundError as error:
        raise UserError(
            f"data.name={settings.name} is not a TFDS data set", "a name that TFDS has", "data.name=mnist"
        ) from error
    if settings.download:
        builder.download_and_prepare()
    return builder


def _version(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in folder.name.split(".") if part.isdecimal())


def _features(builder: tensorflow_datasets.core.DatasetBuilder, settings: TfdsSettings) -> tuple[Any, Any]:
    features = dict(builder.info.features.items())
    image, label = features.get("image"), features.get("label")
    kinds = (tensorflow_datasets.features.Image, tensorflow_datasets.features.ClassLabel)
    if not isinstance(image, kinds[0]) or not isinstance(label, kinds[1]) or image.np_dtype != np.uint8:
        raise UserError(f"data.name={settings.name} has features {features}", "`image` of 8 bits and one `label`")
    if builder.info.file_format is not tensorflow_datasets.core.FileFormat.TFRECORD:
        raise UserError(
            f"data.name={settings.name} is prepared as {builder.info.file_format.value}",
            "tfrecord, TFDS' default",
            "prepare it with file_format='tfrecord'",
        )
    return image, label


def _own(builder: tensorflow_datasets.core.DatasetBuilder, name: str) -> str | None:
    return name if name in builder.info.splits else None


def _instructions(
    builder: tensorflow_datasets.core.DatasetBuilder, name: str, split: str, settings: TfdsSettings
) -> list[Any]:
    try:
        return list(builder.info.splits[split].file_instructions)
    except (KeyError, ValueError) as error:
        raise UserError(
            f"data.{name}_split={split} is not in {settings.name}",
            ", ".join(builder.info.splits),
            f"'data.{name}_split=\"{next(iter(builder.info.splits))}[:80%]\"'",
        ) from error


def _fingerprint(
    builder: tensorflow_datasets.core.DatasetBuilder,
    splits: Mapping[str, str | None],
    decoder: Decoder,
) -> str:
    content = hashlib.sha256(repr((builder.info.full_name, splits, decoder.key)).encode())
    for path in sorted(Path(builder.data_dir).iterdir()):
        facts = path.stat()
        content.update(f"{path.name} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return content.hexdigest()[:32]
