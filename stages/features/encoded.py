"""Splits encoded once: the tensors that the network takes, in memory, or in the cache where the columns are."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import keras
import numpy as np

from stages.data.columns import Column, Streamed
from stages.data.split import Split
from stages.errors import UserError
from stages.features import texts
from stages.features.drift import with_bins
from stages.features.kinds import Feature
from stages.features.numbers_and_categories import BLOCK, VECTOR_VALUES, encode, encoder_of, learn, with_facts
from stages.reporter import Reporter
from stages.results import Dataset, Record
from stages.safe_places import safe_place
from stages.settings.images import NormalizeSettings
from stages.storage.atomic import atomic_write
from stages.storage.cache import ArrayFile, Contents, cached

NAME = "encoder"


def learn_encoder(
    dataset: Dataset, settings: NormalizeSettings, cache: Path | None, reporter: Reporter, folder: Path | None = None
) -> Dataset:
    """Returns the data set with an encoder, learnt from its training split alone, and its splits encoded by it.

    Args:
        cache: the folder that runs share; takes the tensors of columns that are read at each use.
        folder: the run's; takes `data/features.json`, the mean or the vocabulary of each feature. None: no file.
    """
    others = {feature.kind for feature in dataset.features.values()} - {"number", "category", "text", "vector"}
    if others:
        raise UserError(
            f"{dataset.name} has features that are {', '.join(sorted(others))}",
            "numbers, vectors, categories and texts",
        )
    learnt = learn(dataset.features, dataset.train.features, settings.max_tokens, settings.length)
    features = with_bins(with_facts(dataset.features, learnt), dataset.train.features)
    files = {}
    if folder is not None:
        files["data"] = folder / "data" / "features.json"
        files["data"].parent.mkdir(exist_ok=True, parents=True)
        atomic_write(files["data"], _described(features))
    encoded = with_encoder(dataset, encoder_of(dataset.features, learnt), features, cache, reporter)
    width = sum(column.shape[1] if len(column.shape) > 1 else 1 for column in encoded.train.inputs.values())
    return dataclasses.replace(encoded, record=Record({"width": width}, files=files))


def with_encoder(
    dataset: Dataset, encoder: keras.Model, features: Mapping[str, Feature], cache: Path | None, reporter: Reporter
) -> Dataset:
    """Returns the data set with its splits encoded by `encoder`.

    Args:
        features: with the facts that the encoder was made of.
    """
    key = hashlib.sha256((dataset.fingerprint + _described(features)).encode()).hexdigest()[:32]

    def encoded(name: str) -> Split:
        split = dataset.splits[name]
        in_memory = all(isinstance(column, np.ndarray) for column in split.features.values())
        place = None if cache is None or in_memory else cache / f"encoded-{name}-{key}"
        return dataclasses.replace(split, encoded=_encoded(encoder, split, place, reporter))

    train, val, test = map(encoded, ("train", "val", "test"))
    return dataclasses.replace(dataset, train=train, val=val, test=test, encoder=encoder, features=features)


def _described(features: Mapping[str, Feature]) -> str:
    return json.dumps({name: dataclasses.asdict(feature) for name, feature in features.items()}, indent=1)


def _encoded(encoder: keras.Model, split: Split, place: Path | None, reporter: Reporter) -> dict[str, Column]:
    """Returns the tensors of a split; place: of an entry of the cache, for a split that is larger than memory."""
    if place is None:
        blocks = list(_blocks(encoder, split))
        return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    entry, _ = cached(place, partial(_make, encoder, split), reporter)
    arrays = {name: entry.arrays[f"tensor_{number}"] for number, name in enumerate(entry.facts["names"])}
    rows = np.arange(len(split))
    return {name: Streamed(array.__getitem__, rows, array.shape[1:], array.dtype) for name, array in arrays.items()}


def _make(encoder: keras.Model, split: Split, folder: Path) -> Contents:
    files: dict[str, ArrayFile] = {}
    for block in _blocks(encoder, split):
        for name, part in block.items():
            if name not in files:
                path = folder / f"tensor_{len(files)}.npy"
                files[name] = ArrayFile(path, part.dtype, (len(split), *part.shape[1:]))
            files[name].add(part)
    for file in files.values():
        file.close()
    return Contents({"names": list(files)}, {}, [f"tensor_{number}" for number in range(len(files))])


def _blocks(encoder: keras.Model, split: Split) -> Iterator[dict[str, np.ndarray]]:
    has_text = any(len(value.shape) > 1 and value.dtype == "int32" for value in encoder.output.values())
    width = sum(column.shape[1] for column in split.features.values() if len(column.shape) > 1)
    step = texts.BLOCK if has_text else min(BLOCK, max(1, VECTOR_VALUES // max(width, 1)))
    for start in range(0, len(split), step):
        yield encode(encoder, split.features, slice(start, start + step))
        safe_place()


def save_encoder(dataset: Dataset, folder: Path) -> None:
    """Writes the encoder, and the facts of the features that it was made of."""
    assert dataset.encoder is not None
    dataset.encoder.save(folder / f"{NAME}.keras")
    (folder / f"{NAME}.json").write_text(_described(dataset.features))


def restore_encoder(saved: Path, dataset: Dataset, cache: Path | None, reporter: Reporter) -> Dataset:
    """Returns `dataset`, of whatever rows, encoded as the data set was of which `save_encoder` has written.

    Raises:
        UserError: where it lacks a feature that this one had, or has it of another kind.
    """
    features = {name: Feature(**facts) for name, facts in json.loads((saved / f"{NAME}.json").read_text()).items()}
    for name, feature in features.items():
        own = dataset.features.get(name)
        if own is None or (own.kind, own.dtype) != (feature.kind, feature.dtype):
            have = "is missing" if own is None else f"is a {own.kind} of {own.dtype}"
            column = feature.facts.get("column", name)
            raise UserError(
                f"{dataset.name}: {column} {have}, and the run was trained on a {feature.kind} of {feature.dtype}",
                "the columns that the run was trained on, of the same kinds",
                f"'data.features={{{column}: {feature.kind}}}'",
            )
    encoder = keras.models.load_model(saved / f"{NAME}.keras")
    return with_encoder(dataset, encoder, features, cache, reporter)
