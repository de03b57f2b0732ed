"""Encoders: what is learnt of columns from the training split, as a Keras model before the network, and its tensors."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from stages.data.columns import Column, Streamed, evenly_spread
from stages.data.split import Split
from stages.errors import UserError
from stages.features import texts
from stages.features.drift import with_bins
from stages.features.kinds import NO_NUMBER, Feature
from stages.reporter import Reporter, safe_place
from stages.results import Dataset, Record
from stages.settings.data import NormalizeSettings
from stages.settings.table import declaring
from stages.storage.cache import Contents, cached, new_array

NUMBERS = "numbers"
"""Name of the tensor that has all numbers, flags of missing ones, and categories of few values."""

ONE_HOT = 32
"""Values of a category, at most, that get a column each; one of more is an index, for an embedding."""

BLOCK = 2**16
"""Rows that are learnt from, or encoded, at once."""

VECTOR_VALUES = 2**22
"""Values of numbers and vectors that are learnt from, or encoded, at once; and that medians are of, at most."""


@dataclass(frozen=True)
class LearntNumber:
    """Statistics of a column's values, float64, and whether some are missing."""

    mean: float
    std: float
    median: float
    has_missing: bool


@dataclass(frozen=True)
class LearntVector:
    """Statistics of each element."""

    elements: list[LearntNumber]


def learn_vector(column: Column) -> LearntVector:
    """Returns the statistics of each element of vectors, [N, d], or of numbers, [N], in two passes of float64.

    Those of the values that are not missing; a constant element has the std 1.
    """
    width = column.shape[1] if len(column.shape) > 1 else 1
    rows = max(1, VECTOR_VALUES // width)
    step = min(BLOCK, rows)

    def blocks() -> Iterator[np.ndarray]:
        starts = range(0, column.shape[0], step)
        return (np.asarray(column[start : start + step], np.float64).reshape(-1, width) for start in starts)

    counts = sum((~np.isnan(block)).sum(axis=0) for block in blocks())
    means = sum(np.nansum(block, axis=0) for block in blocks()) / np.maximum(counts, 1)
    with np.errstate(over="ignore"):  # `learn` refuses what is too large
        squares = sum(np.nansum(np.square(block - means), axis=0) for block in blocks())
    stds = np.sqrt(squares / np.maximum(counts, 1))
    some = np.asarray(column[evenly_spread(column.shape[0], rows)], np.float64).reshape(-1, width)
    is_unknown = np.isnan(some).all(axis=0)
    medians = np.where(is_unknown, means, np.nanmedian(np.where(is_unknown, 0.0, some), axis=0))
    stds = np.where(stds > 1e-12 * np.abs(means), stds, 1.0)
    of_each = zip(means, stds, medians, counts < column.shape[0], strict=True)
    return LearntVector([LearntNumber(float(a), float(b), float(c), bool(d)) for a, b, c, d in of_each])


def learn_category(column: Column) -> list[Any]:
    """Returns the values, the most frequent first, equal ones by name.

    Of more than ONE_HOT, values that occur once are left out: what is learnt of them serves for unknown ones.
    """
    counts: Counter[Any] = Counter()
    for start in range(0, column.shape[0], BLOCK):
        counts.update(column[start : start + BLOCK].tolist())  # twenty times as fast as to sort them
    ordered = sorted(counts, key=lambda value: (-counts[value], value))
    repeated = [value for value in ordered if counts[value] > 1]
    return ordered if len(ordered) <= ONE_HOT or not repeated else repeated


Learnt = LearntNumber | LearntVector | texts.LearntText | texts.LearntTokens | list[Any]
"""Knowledge of a column: statistics of a number or a vector, the vocabulary of a text or of a category."""


def learn(
    features: Mapping[str, Feature], columns: Mapping[str, Column], settings: NormalizeSettings
) -> dict[str, Learnt]:
    """Returns what is learnt of each feature from the columns of the training split."""

    def of(kind: str, column: Column, name: str) -> Learnt:
        if kind == "text" and settings.tokenizer is not None:
            return texts.learn_tokens(column, settings.tokenizer, settings.length, name)
        if kind == "text":
            return texts.learn_text(column, settings.max_tokens, settings.length, name)
        if kind == "category":
            return learn_category(column)
        learnt = learn_vector(column)
        if not all(math.isfinite(element.std) for element in learnt.elements):
            problem = f"the column {features[name].facts.get('column', name)} has numbers whose squares overflow"
            expected = "numbers with an absolute value below 1e150 in the training split"
            raise UserError(problem, expected, declaring({str(features[name].facts.get("column", name)): "leave_out"}))
        return learnt if kind == "vector" else learnt.elements[0]

    return {name: of(feature.kind, columns[name], name) for name, feature in features.items()}


def with_facts(features: Mapping[str, Feature], learnt: Mapping[str, Learnt]) -> dict[str, Feature]:
    """Returns the features with what is learnt of them among their facts."""
    facts = {
        name: {"values": values} if isinstance(values, list) else asdict(values) for name, values in learnt.items()
    }
    return {name: replace(feature, facts={**feature.facts, **facts[name]}) for name, feature in features.items()}


def sizes(features: Mapping[str, Feature]) -> dict[str, int]:
    """Returns how many indices there are of each text, and of each category that is one, the unknown one among them."""

    def indices(facts: Mapping[str, Any]) -> int:
        if "words" in facts:
            return len(facts["words"]) + texts.RESERVED
        values = len(facts.get("values", ()))
        return int(facts.get("tokens", values if values > ONE_HOT else -1)) + 1

    found = {name: indices(feature.facts) for name, feature in features.items()}
    return {name: count for name, count in found.items() if count}


def encoder_of(features: Mapping[str, Feature], learnt: Mapping[str, Learnt]) -> keras.Model:
    """Returns a functional model from raw columns, each [b], to tensors.

    NUMBERS, float32 [b, d]: each number, and each element of a vector, minus its mean, over its std, computed in
    float64, a missing one as the median;
    1 where one is missing, of those that were in training; a column for each value of a category, all 0 for an unknown
    one. A category of more than ONE_HOT values is a tensor of its name, int32 [b]: its place in the vocabulary, from 1;
    0 for an unknown value, for which NUMBERS has a 1, too. A missing value is the empty text, a value like any other.
    A text is a tensor of its name, int32 [b, length], see `numbers_of` and `tokens_of`.
    """
    inputs = {name: keras.Input(feature.shape, dtype=feature.dtype, name=name) for name, feature in features.items()}
    parts = []
    outputs: dict[str, Any] = {}
    statistics = {name: value for name, value in learnt.items() if isinstance(value, LearntNumber)}
    if statistics:
        parts += _standardized(ops.stack([inputs[name] for name in statistics], axis=-1), list(statistics.values()))
    for name, values in learnt.items():
        if isinstance(values, LearntVector):
            parts += _standardized(inputs[name], values.elements)
        if isinstance(values, texts.LearntText):
            outputs[name] = texts.numbers_of(inputs[name], values)
        if isinstance(values, texts.LearntTokens):
            outputs[name] = texts.tokens_of(inputs[name], values)
        if not isinstance(values, list):
            continue
        of_texts = features[name].dtype == "string"
        kind, unknown = (keras.layers.StringLookup, "\0") if of_texts else (keras.layers.IntegerLookup, NO_NUMBER)
        if len(values) <= ONE_HOT:
            lookup = kind(vocabulary=values, oov_token=unknown, output_mode="one_hot")
            parts.append(lookup(inputs[name])[:, 1:])
        else:
            outputs[name] = ops.cast(kind(vocabulary=values, oov_token=unknown)(inputs[name]), "int32")
            parts.append(ops.expand_dims(ops.equal(outputs[name], 0), axis=-1))
    floats = [ops.cast(part, "float32") for part in parts]
    if floats:
        outputs = {NUMBERS: floats[0] if len(floats) == 1 else ops.concatenate(floats, axis=-1), **outputs}
    return keras.Model(inputs, outputs, name="encoder")


def _standardized(values: Any, learnt: list[LearntNumber]) -> list[Any]:
    """Returns numbers scaled, float64 [b, k], and flags of those that are missing."""
    median, mean, scale = (
        np.array(values) for values in zip(*((part.median, part.mean, 1.0 / part.std) for part in learnt), strict=True)
    )
    is_missing = ops.isnan(values)
    scaled = (ops.where(is_missing, median, values) - mean) * scale
    flagged = [place for place, part in enumerate(learnt) if part.has_missing]
    return [scaled, ops.take(is_missing, flagged, axis=-1)] if flagged else [scaled]


Encode = Callable[[Mapping[str, Column], Any], dict[str, np.ndarray]]
"""From columns and some rows to their tensors."""


def encoding(encoder: keras.Model) -> Encode:
    """Returns a function from columns and some rows to their tensors as arrays, by a graph like that of the export."""
    given = {name: tf.TensorSpec(value.shape, value.dtype) for name, value in encoder.input.items()}
    graph = tf.function(partial(encoder, training=False), autograph=False, input_signature=[given])

    def encode(columns: Mapping[str, Column], rows: Any) -> dict[str, np.ndarray]:
        raw = {name: ops.convert_to_tensor(columns[name][rows], spec.dtype) for name, spec in given.items()}
        return {name: np.asarray(value) for name, value in graph(raw).items()}

    return encode


NAME = "encoder"


def learn_encoder(dataset: Dataset, settings: NormalizeSettings, cache: Path | None, reporter: Reporter) -> Dataset:
    """Returns the data set with an encoder, learnt from its training split alone, and its splits encoded by it.

    Args:
        cache: the folder that runs share; takes the tensors of columns that are read at each use.
    """
    others = {feature.kind for feature in dataset.features.values()} - {"number", "category", "text", "vector"}
    if others:
        problem = f"{dataset.name} has features of the kind {', '.join(sorted(others))}, which cannot be encoded"
        raise UserError(problem, "only numbers, vectors, categories and texts")
    texts_of = [name for name, feature in dataset.features.items() if feature.kind == "text"]
    if settings.tokenizer is not None and len(texts_of) != 1:
        listed = f" ({', '.join(texts_of)})" if texts_of else ""
        problem = f"{settings.tokenizer} requires one text column, but {dataset.name} has {len(texts_of)}{listed}"
        raise UserError(problem, "one text column", "model=auto")
    learnt = learn(dataset.features, dataset.train.features, settings)
    features = with_bins(with_facts(dataset.features, learnt), dataset.train.features)
    encoded = with_encoder(dataset, encoder_of(dataset.features, learnt), features, cache, reporter)
    width = sum(column.shape[1] if len(column.shape) > 1 else 1 for column in encoded.train.inputs.values())
    return replace(encoded, record=Record({"width": width}))


def with_encoder(
    dataset: Dataset, encoder: keras.Model, features: Mapping[str, Feature], cache: Path | None, reporter: Reporter
) -> Dataset:
    """Returns the data set with its splits encoded by `encoder`.

    Args:
        features: with the facts that the encoder was made of.
    """
    has_text = any(feature.kind == "text" for feature in features.values())
    tensors = partial(_tensors, encoding(encoder), texts.BLOCK if has_text else BLOCK)

    def encoded(split: Split) -> Split:
        place = None
        if cache is not None and not all(isinstance(column, np.ndarray) for column in split.features.values()):
            key = hashlib.sha256(split.described.digests.tobytes() + _described(features).encode()).hexdigest()[:32]
            place = cache / f"encoded-{key}"
        return replace(split, encoded=_encoded(partial(tensors, split), place, reporter))

    return dataset.with_each_split(encoded, encoder=encoder, features=features)


def _described(features: Mapping[str, Feature]) -> str:
    return json.dumps({name: asdict(feature) for name, feature in features.items()}, indent=1)


def _encoded(
    tensors: Callable[[Path | None], dict[str, np.ndarray]], place: Path | None, reporter: Reporter
) -> dict[str, Column]:
    """Returns the tensors of a split; place: of an entry of the cache, for a split that is larger than memory."""
    if place is None:
        return dict(tensors(None))
    entry, _ = cached(place, lambda folder: Contents({}, tensors(folder)), reporter)
    return {name: Streamed.of(array) for name, array in entry.arrays.items()}


def _tensors(encode: Encode, most: int, split: Split, folder: Path | None) -> dict[str, np.ndarray]:
    """Returns the tensors of a split, made of `most` rows at once; folder: takes them as files."""
    width = sum(column.shape[1] for column in split.features.values() if len(column.shape) > 1)
    step = min(most, max(1, VECTOR_VALUES // max(width, 1)))
    arrays: dict[str, np.ndarray] = {}
    for start in range(0, len(split), step):
        for name, part in encode(split.features, slice(start, start + step)).items():
            if name not in arrays:
                path = folder / f"{name}.npy" if folder is not None else None
                arrays[name] = new_array(path, part.dtype, (len(split), *part.shape[1:]))
            arrays[name][start : start + step] = part
        safe_place()
    return arrays


def save_encoder(dataset: Dataset, folder: Path) -> None:
    """Writes the encoder, and the facts of the features that it was made of."""
    assert dataset.encoder is not None
    dataset.encoder.save(folder / f"{NAME}.keras")
    (folder / f"{NAME}.json").write_text(_described(dataset.features))


def saved_features(saved: Path) -> dict[str, Feature]:
    """Returns the features of which `save_encoder` has written."""
    return {name: Feature(**facts) for name, facts in json.loads((saved / f"{NAME}.json").read_text()).items()}


def restore_encoder(saved: Path, dataset: Dataset, cache: Path | None, reporter: Reporter) -> Dataset:
    """Returns `dataset`, of whatever rows, encoded as the data set was of which `save_encoder` has written.

    Raises:
        UserError: where it lacks features that this one had, or has them of another kind.
    """
    features = saved_features(saved)
    names = {one.facts.get("column", name): name for name, one in dataset.features.items()}  # by columns
    own = {name: names.get(one.facts.get("column", name), "") for name, one in features.items()}
    kinds = {name: f"{one.kind} ({one.dtype})" for name, one in dataset.features.items()}
    others = {name: one for name, one in features.items() if kinds.get(own[name]) != f"{one.kind} ({one.dtype})"}
    if others:
        columns = {name: one.facts.get("column", name) for name, one in others.items()}
        found = ", ".join(f"{columns[name]} is {kinds.get(own[name], 'missing')}" for name in others)
        wanted = {columns[name]: one.kind for name, one in others.items() if own[name]}
        raise UserError(
            f"{dataset.name}: {found}, unlike in training",
            "the columns that the run was trained on, of the same kinds",
            declaring(wanted) if wanted else "",
        )

    def renamed(split: Split) -> Split:
        columns = {name: split.features[own[name]] for name in features}
        return replace(split, features=columns, made_of=None)  # the same examples

    encoder = keras.models.load_model(saved / f"{NAME}.keras", safe_mode=True)
    return with_encoder(dataset.with_each_split(renamed, features=features), encoder, features, cache, reporter)
