"""Splits encoded once: the tensors that the network takes, in memory, or in the cache where the columns are."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
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
from stages.features.numbers_and_categories import BLOCK, VECTOR_VALUES, Encode, encoder_of, encoding, learn, with_facts
from stages.reporter import Reporter
from stages.results import Dataset, Record
from stages.safe_places import safe_place
from stages.settings.images import NormalizeSettings
from stages.storage.atomic import atomic_write
from stages.storage.cache import ArrayFile, Contents, cached

NAME = "encoder"

Blocks = Callable[[Split], Iterator[dict[str, np.ndarray]]]
"""The tensors of a split, some rows at once."""


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
    texts_of = [name for name, feature in dataset.features.items() if feature.kind == "text"]
    if settings.tokenizer is not None and len(texts_of) != 1:
        have = f"the texts {', '.join(texts_of)}" if texts_of else "no text"
        raise UserError(f"{settings.tokenizer} takes one text, and {dataset.name} has {have}", "one text", "model=auto")
    learnt = learn(dataset.features, dataset.train.features, settings.max_tokens, settings.length, settings.tokenizer)
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
    has_text = any(feature.kind == "text" for feature in features.values())
    blocks = partial(_blocks, encoding(encoder), texts.BLOCK if has_text else BLOCK)
    key = hashlib.sha256((dataset.fingerprint + _described(features)).encode()).hexdigest()[:32]

    def encoded(name: str) -> Split:
        split = dataset.splits[name]
        in_memory = all(isinstance(column, np.ndarray) for column in split.features.values())
        place = None if cache is None or in_memory else cache / f"encoded-{name}-{key}"
        return dataclasses.replace(split, encoded=_encoded(blocks, split, place, reporter))

    train, val, test = map(encoded, ("train", "val", "test"))
    return dataclasses.replace(dataset, train=train, val=val, test=test, encoder=encoder, features=features)


def _described(features: Mapping[str, Feature]) -> str:
    return json.dumps({name: dataclasses.asdict(feature) for name, feature in features.items()}, indent=1)


def _encoded(blocks: Blocks, split: Split, place: Path | None, reporter: Reporter) -> dict[str, Column]:
    """Returns the tensors of a split; place: of an entry of the cache, for a split that is larger than memory."""
    if place is None:
        parts = list(blocks(split))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    entry, _ = cached(place, partial(_make, blocks, split), reporter)
    arrays = {name: entry.arrays[f"tensor_{number}"] for number, name in enumerate(entry.facts["names"])}
    rows = np.arange(len(split))
    return {name: Streamed(array.__getitem__, rows, array.shape[1:], array.dtype) for name, array in arrays.items()}


def _make(blocks: Blocks, split: Split, folder: Path) -> Contents:
    files: dict[str, ArrayFile] = {}
    for block in blocks(split):
        for name, part in block.items():
            if name not in files:
                path = folder / f"tensor_{len(files)}.npy"
                files[name] = ArrayFile(path, part.dtype, (len(split), *part.shape[1:]))
            files[name].add(part)
    for file in files.values():
        file.close()
    return Contents({"names": list(files)}, {}, [f"tensor_{number}" for number in range(len(files))])


def _blocks(encode: Encode, most: int, split: Split) -> Iterator[dict[str, np.ndarray]]:
    width = sum(column.shape[1] for column in split.features.values() if len(column.shape) > 1)
    step = min(most, max(1, VECTOR_VALUES // max(width, 1)))
    for start in range(0, len(split), step):
        yield encode(split.features, slice(start, start + step))
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
