"""Encoders: what features have learned from the training split, as a Keras model in front of the network."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from stages.data.columns import Column, Gathered, Rows, Streamed, digests_of_rows, is_in_memory
from stages.data.split import Split
from stages.errors import UserError
from stages.features.drift import with_bins
from stages.features.kinds import BLOCK, Feature, Schema
from stages.features.numbers import VALUES, NumberFeature, moments_in, standardized
from stages.features.schema import of_json, to_json
from stages.features.texts import TextFeature
from stages.features.windows import StepFeature, WindowFeature, channels_in_order
from stages.reporter import Reporter, safe_place
from stages.results import Dataset, Record
from stages.settings.data import NormalizeSettings
from stages.settings.table import declaring
from stages.storage.cache import Contents, cached, new_array

NUMBERS = "numbers"
"""Name of the tensor that has all numbers, flags of missing ones, and categories of few values."""


def learn(schema: Schema, columns: Mapping[str, Column], settings: NormalizeSettings) -> dict[str, Feature]:
    """Return the features with what they learn from the columns of the training split."""
    return {name: feature.learn(name, columns[name], settings) for name, feature in schema.items()}


def sizes(schema: Schema) -> dict[str, int]:
    """Return the number of different indices of each feature that has any, the unknown one included."""
    return {name: feature.indices for name, feature in schema.items() if feature.indices}


def edges(schema: Schema) -> list[tuple[float, ...]]:
    """Return the edges of the bins of each number, in the order of the first columns of NUMBERS; empty without bins."""
    numbers = [one for one in schema.values() if isinstance(one, NumberFeature) and one.moments]
    return [part.edges for one in numbers for part in one.parts.values()]


def encoder_of(schema: Schema) -> keras.Model:
    """Return a functional model from raw columns, each [b, ...] and none of images, to tensors.

    NUMBERS, float32 [b, d], has what features encode as numbers: each number, and each element of a vector, minus its
    mean, divided by its std, computed in float64, with the median for a missing one; a 1 if one is missing, provided
    that some were missing in training; the places of dates in the calendar; and a column for each value of a category.
    Categories of many values, texts and windows are a tensor of their name, see their classes. A missing category is
    the empty text, a value like any other.
    """
    inputs = {name: keras.Input(feature.shape, dtype=feature.dtype, name=name) for name, feature in schema.items()}
    plain = {name: one for name, one in schema.items() if isinstance(one, NumberFeature) and one.moments}
    values_of = {name: one.part_values(inputs[name]) for name, one in plain.items()}
    parts: list[Any] = []
    if plain:  # all at once: hundreds of columns would become hundreds of operations
        stacked = ops.stack([value for values in values_of.values() for value in values], axis=-1)
        parts += standardized(stacked, moments_in(plain.values()))
    indices: dict[str, Any] = {}
    for name, feature in schema.items():
        if name in plain:
            parts += plain[name].more_columns(values_of[name])
        else:
            encoded = feature.encode(inputs[name])
            parts += encoded.numbers
            tensor = encoded.indices if encoded.steps is None else encoded.steps
            indices |= {} if tensor is None else {name: tensor}
    floats = [ops.cast(part, "float32") for part in parts]
    numbers = {NUMBERS: floats[0] if len(floats) == 1 else ops.concatenate(floats, axis=-1)} if floats else {}
    return keras.Model(inputs, {**numbers, **indices}, name="encoder")


Encode = Callable[[Mapping[str, Column], Any], dict[str, np.ndarray]]
"""From columns and some rows to their tensors."""


def encoding(encoder: keras.Model) -> Encode:
    """Return a function from columns and some rows to their tensors as arrays, by a graph like that of the export.

    Images and other columns that the encoder does not take are left out.
    """
    given = {name: tf.TensorSpec(value.shape, value.dtype) for name, value in encoder.input.items()}
    graph = tf.function(partial(encoder, training=False), autograph=False, input_signature=[given])

    def encode(columns: Mapping[str, Column], rows: Any) -> dict[str, np.ndarray]:
        raw = {name: ops.convert_to_tensor(columns[name][rows], spec.dtype) for name, spec in given.items()}
        return {name: np.asarray(value) for name, value in graph(raw).items()}

    return encode


NAME = "encoder"


def learn_encoder(dataset: Dataset, settings: NormalizeSettings, cache: Path | None, reporter: Reporter) -> Dataset:
    """Return the data set with an encoder, learned from its training split only, and its splits encoded by it.

    Args:
        dataset: The data set.
        settings: The settings of the stage.
        cache: The folder that runs share, for the tensors of columns that are read at each use.
        reporter: Receives progress.

    Raises:
        UserError: If a feature cannot be encoded or learned from, or a tokenizer has not one text.
    """
    texts_of = [name for name, feature in dataset.features.items() if isinstance(feature, TextFeature)]
    if settings.tokenizer is not None and len(texts_of) != 1:
        listed = f" ({', '.join(texts_of)})" if texts_of else ""
        problem = f"{settings.tokenizer} requires one text column, but {dataset.name} has {len(texts_of)}{listed}"
        raise UserError(problem, "one text column", "model=auto")
    learned = learn(encodable(dataset.features), dataset.train.features, settings)
    features = with_bins({**dataset.features, **learned}, dataset.train.features)
    encoded = with_encoder(dataset, encoder_of(learned) if learned else None, features, cache, reporter)
    columns = [column for name, column in encoded.train.inputs.items() if name not in dataset.scalings]
    width = sum(column.shape[1] if len(column.shape) > 1 else 1 for column in columns)
    return replace(encoded, record=Record({"width": width}))


def encodable(schema: Schema) -> dict[str, Feature]:
    """Return the features that an encoder takes: all but images, which a network takes as they are."""
    return {name: feature for name, feature in schema.items() if feature.is_encodable}


def network_inputs(encoder: keras.Model | None, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the network's inputs of raw columns, [b, ...] by name: those that the encoder returns, and images."""
    if encoder is None:
        return dict(columns)
    given = {name: columns[name] for name in encoder.input}
    return {**encoder(given), **{name: column for name, column in columns.items() if name not in given}}


def with_encoder(
    dataset: Dataset, encoder: keras.Model | None, features: Schema, cache: Path | None, reporter: Reporter
) -> Dataset:
    """Return the data set with its splits encoded by `encoder`, which was built from `features`. Images stay."""
    if encoder is None:
        return replace(dataset, features=features)
    taken = encodable(features)
    block = min(BLOCK, *(feature.block for feature in taken.values()))
    by_steps = [name for name, feature in taken.items() if isinstance(feature, StepFeature)]
    others = [name for name in taken if name not in by_steps]
    groups = [[name] for name in by_steps] + ([others] if others else [])
    parts = [(names, encoder if len(groups) == 1 else _part_of(encoder, names, by_steps)) for names in groups]
    shared: dict[tuple[str, int], dict[str, Rows]] = {}

    def encoded(split: Split) -> Split:
        found: dict[str, Column] = {}
        for names, part in parts:
            columns = {name: split.features[name] for name in names}
            only = columns[names[0]]
            if len(names) > 1 or not isinstance(only, Gathered):
                place = _place(cache, columns, split.described.digests, features)
                found |= _encoded(partial(_tensors, encoding(part), block, columns), place, reporter)
                continue
            key = names[0], id(only.rows)
            if key not in shared:  # all splits have the same rows, which are encoded once
                rows = {names[0]: _as_examples(only)}
                digests = digests_of_rows([only.rows], [None]) if not is_in_memory(only) else np.empty(0)
                place = _place(cache, columns, digests, features)
                tensors = _encoded(partial(_tensors, encoding(part), block, rows), place, reporter)
                shared[key] = {name: _as_rows(tensor, only) for name, tensor in tensors.items()}
            found |= {name: replace(only, rows=rows) for name, rows in shared[key].items()}
        images = {name: column for name, column in split.features.items() if name not in taken}
        return split.with_encoded({**{name: found[name] for name in encoder.output}, **images})

    return dataset.with_each_split(encoded, encoder=encoder, features=features)


def _part_of(encoder: keras.Model, names: Sequence[str], by_steps: Sequence[str]) -> keras.Model:
    """Return the part of an encoder that encodes some features: one of `by_steps`, or all others."""
    outputs = names if names[0] in by_steps else [name for name in encoder.output if name not in by_steps]
    return keras.Model({name: encoder.input[name] for name in names}, {name: encoder.output[name] for name in outputs})


def _as_examples(column: Gathered) -> Column:
    """Return the rows of a gathered column as examples, each row in one of them; the last example is filled up."""
    rows, size = column.rows, column.length
    if size is None:
        return rows

    def read(examples: slice) -> np.ndarray:
        values = rows[examples.start * size : examples.stop * size]
        filled = np.pad(values, [(0, -len(values) % size)] + [(0, 0)] * (values.ndim - 1))
        return filled.reshape(-1, size, *values.shape[1:])

    return Streamed(read, (-(-rows.shape[0] // size), size, *rows.shape[1:]), rows.dtype)


def _as_rows(tensor: Rows, column: Gathered) -> Rows:
    """Return the rows of a tensor that was computed from `_as_examples`."""
    if column.length is None:
        return tensor
    size, shape = column.length, (column.rows.shape[0], *tensor.shape[2:])
    if isinstance(tensor, np.ndarray):
        return tensor.reshape(-1, *shape[1:])[: shape[0]]
    return Streamed(lambda rows: _rows_of(tensor, rows, size), shape, tensor.dtype)


def _rows_of(tensor: Rows, rows: Any, size: int) -> np.ndarray:
    places = np.arange(tensor.shape[0] * size)[rows]
    found, inverse = np.unique(places // size, return_inverse=True)
    return tensor[found][inverse, places % size]


def _described(features: Schema) -> str:
    return json.dumps(to_json(features), indent=1)


def _place(cache: Path | None, columns: Mapping[str, Column], digests: np.ndarray, features: Schema) -> Path | None:
    """Return the entry of the cache for the tensors of columns; None if these are in memory."""
    if cache is None or all(map(is_in_memory, columns.values())):
        return None
    names = "" if len(columns) > 1 or not isinstance(next(iter(columns.values())), Gathered) else str([*columns])
    content = digests.tobytes() + names.encode() + _described(features).encode()
    return cache / f"encoded-{hashlib.sha256(content).hexdigest()[:32]}"


def _encoded(
    tensors: Callable[[Path | None], dict[str, np.ndarray]], place: Path | None, reporter: Reporter
) -> dict[str, Rows]:
    """Return the tensors of a split; place: of an entry of the cache, for a split that is larger than memory."""
    if place is None:
        return dict(tensors(None))
    entry, _ = cached(place, lambda folder: Contents({}, tensors(folder)), reporter)
    return {name: Streamed.of(array) for name, array in entry.arrays.items()}


def _tensors(encode: Encode, most: int, columns: Mapping[str, Column], folder: Path | None) -> dict[str, np.ndarray]:
    """Return the tensors of the columns of a split, made of `most` rows at once; folder: takes them as files."""
    width = sum(math.prod(column.shape[1:]) for column in columns.values() if len(column.shape) > 1)
    count = next(iter(columns.values())).shape[0]
    step = min(most, max(1, VALUES // max(width, 1)))
    arrays: dict[str, np.ndarray] = {}
    for start in range(0, count, step):
        for name, part in encode(columns, slice(start, start + step)).items():
            if name not in arrays:
                path = folder / f"{name}.npy" if folder is not None else None
                arrays[name] = new_array(path, part.dtype, (count, *part.shape[1:]))
            arrays[name][start : start + step] = part
        safe_place()
    return arrays


def save_encoder(dataset: Dataset, folder: Path) -> None:
    """Write the encoder, if there is one, and the features of the data set."""
    if dataset.encoder is not None:
        dataset.encoder.save(folder / f"{NAME}.keras")
    (folder / f"{NAME}.json").write_text(_described(dataset.features))


def saved_features(saved: Path) -> dict[str, Feature]:
    """Return the features that `save_encoder` has written."""
    return of_json(json.loads((saved / f"{NAME}.json").read_text()))


def restore_encoder(saved: Path, dataset: Dataset, cache: Path | None, reporter: Reporter) -> Dataset:
    """Return `dataset`, which may have other rows, encoded like the data set whose encoder `save_encoder` has written.

    Raises:
        UserError: If it lacks features of that data set, or has them with a different kind.
    """
    features = saved_features(saved)
    names = {one.column_name(name): name for name, one in dataset.features.items()}
    own = {name: names.get(one.column_name(name), "") for name, one in features.items()}
    kinds = {name: f"{one.kind} ({one.dtype})" for name, one in dataset.features.items()}
    others = {name: one for name, one in features.items() if kinds.get(own[name]) != f"{one.kind} ({one.dtype})"}
    if others:
        columns = {name: one.column_name(name) for name, one in others.items()}
        found = ", ".join(f"{columns[name]} is {kinds.get(own[name], 'missing')}" for name in others)
        wanted = {columns[name]: one.kind for name, one in others.items() if own[name]}
        raise UserError(
            f"{dataset.name}: {found}, unlike in training",
            "the columns that the run was trained on, of the same kinds",
            declaring(wanted) if wanted else "",
        )

    arranged: dict[tuple[str, int], Rows] = {}

    def arrange(name: str, column: Column) -> Column:
        given, trained = dataset.features[own[name]], features[name]
        if not isinstance(given, WindowFeature) or not isinstance(trained, WindowFeature):
            return column
        order = given.order_of(trained, dataset.name)
        if order == [*range(given.shape[1])]:
            return column
        rows = column.rows if isinstance(column, Gathered) else column
        if (name, id(rows)) not in arranged:  # all splits of a table have the same rows
            arranged[name, id(rows)] = channels_in_order(rows, order)
        found = arranged[name, id(rows)]
        return replace(column, rows=found) if isinstance(column, Gathered) else found

    def renamed(split: Split) -> Split:
        return split.with_same_values({name: arrange(name, split.features[own[name]]) for name in features})

    encoder = keras.models.load_model(saved / f"{NAME}.keras", safe_mode=True) if encodable(features) else None
    return with_encoder(dataset.with_each_split(renamed, features=features), encoder, features, cache, reporter)
