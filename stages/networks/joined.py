"""Inputs of several kinds, joined: categories and words get embeddings, everything else is flattened."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
from keras import ops

from stages.features.kinds import HISTORY, Schema
from stages.features.windows import TIME, CalendarFeature, StepFeature, WindowFeature
from stages.networks.precision import last_dtype

Shapes = Mapping[str, tuple[int, ...]]
"""The shape of each input, by name."""


@dataclass(frozen=True)
class TableFacts:
    """Facts about the training rows that a network for tables may use. A function gets them as its argument `table`."""

    categories: Mapping[str, int]
    """From inputs of indices to the number of different ones."""
    edges: Sequence[Sequence[float]]
    """The edges of the bins of the first columns of NUMBERS, increasing; empty for a number without bins."""
    examples: int
    """The number of training examples."""


@dataclass(frozen=True)
class SeriesFacts:
    """Facts about windows of time series. A function gets them as its argument `series`."""

    window: int
    """Number of past steps."""
    horizon: int
    """Number of next steps."""
    targets: int
    """Number of targets of a step, which are the first channels of the past; 0 for one answer to the whole window."""
    season: int = 1
    """Number of steps after which values tend to repeat, at most `window`."""
    categories: Mapping[str, int] = field(default_factory=dict)
    """From inputs of indices to the number of different ones."""
    has_past_class: bool = False
    """Whether the past of the class that is predicted is among the channels of the past."""
    has_days: bool = False
    """Whether the last channels of the times of steps are the places of their days; see `CalendarFeature`."""


def series_facts(
    schema: Schema, targets: int, categories: Mapping[str, int], season: int = 1, has_past_class: bool = False
) -> SeriesFacts | None:
    """Return facts about windows of time series; None for other features.

    Args:
        schema: The features.
        targets: The number of names of the targets.
        categories: From inputs of indices to the number of different ones.
        season: The number of steps after which values tend to repeat.
        has_past_class: Whether the past of the class that is predicted is known.
    """
    history = schema.get(HISTORY)
    if not isinstance(history, WindowFeature):
        return None
    window = history.shape[0]
    steps = max(feature.shape[0] for feature in schema.values() if isinstance(feature, StepFeature))
    horizon = targets // history.targets if history.targets else steps - window
    times = schema.get(TIME)
    has_days = isinstance(times, CalendarFeature) and times.has_days
    return SeriesFacts(window, horizon, history.targets, season, categories, has_past_class, has_days)


WORD_WIDTH = 64
"""Numbers that stand for a word, where a network has no setting for it."""


def mean_of_words(indices: Any, words: int, name: str) -> Any:
    """Return the mean of a text's embeddings, float [b, WORD_WIDTH]; 0 for an empty text."""
    values, is_word = embed_words(indices, words, WORD_WIDTH, name)
    return mean_where(values, is_word)


def join(
    shapes: tuple[int, ...] | Shapes,
    categories: Mapping[str, int],
    text: Callable[[Any, int, str], Any] = mean_of_words,
) -> tuple[Any, Any]:
    """Return the inputs of a network, one of a shape or several by name, and all of them as one tensor, float [b, d].

    Args:
        categories: from inputs of indices, of categories [b] and of texts [b, length], to the number of different ones;
            all other inputs are floats.
        text: from indices of words, how many there are and the input's name to float [b, d].
    """
    if not isinstance(shapes, Mapping):
        given = keras.Input(shapes)
        return given, keras.layers.Flatten()(given)
    inputs = {
        name: keras.Input(shape, dtype="int32" if name in categories else "float32", name=name)
        for name, shape in shapes.items()
    }

    def flat(name: str, value: Any) -> Any:
        if name not in categories:
            return keras.layers.Flatten()(value)
        count = categories[name]
        if shapes[name]:
            return text(value, count, name)
        return keras.layers.Embedding(count, embedding_width(count), name=f"embed_{name}")(value)

    parts = [flat(name, value) for name, value in inputs.items()]
    joined = parts[0] if len(parts) == 1 else keras.layers.Concatenate()(parts)
    return (inputs if len(inputs) > 1 else next(iter(inputs.values()))), joined


def embed_words(indices: Any, words: int, width: int, name: str) -> tuple[Any, Any]:
    """Return embeddings, float [b, length, width], 0 behind the last word, and where words are, float [b, length, 1].

    With these, what is behind a text changes nothing, however long the row is.
    """
    is_word = ops.expand_dims(ops.cast(ops.not_equal(indices, 0), "float32"), axis=-1)
    values = keras.layers.Embedding(words, width, name=f"embed_{name}")(indices)
    return ops.multiply(values, is_word), is_word


def mean_where(values: Any, is_word: Any) -> Any:
    """Return the mean over words, float [b, d]; 0 where there is none."""
    total = ops.sum(ops.multiply(values, is_word), axis=1)
    return ops.divide(total, ops.maximum(ops.sum(is_word, axis=1), 1.0))


def embedding_width(values: int) -> int:
    """Return how many numbers stand for one of `values` categories (J. Howard and S. Gugger, fastai, 2020)."""
    return min(600, round(1.6 * values**0.56))


def member_outputs(values: Any, outputs: int, initializer: Any = "glorot_uniform") -> Any:
    """Return a linear output of each member, [b, members, outputs], from [b, members, d], of the last layer's dtype.

    The axis of 1 keeps Keras from computing a bias [members, 1] by `tf.nn.bias_add` with the channels first, which
    LiteRT lacks (`keras/src/backend/tensorflow/numpy.py`, `add`).
    """
    _, members, width = values.shape
    heads = keras.layers.EinsumDense(
        "bzkh,kho->bzko",
        (1, members, outputs),
        bias_axes="ko",
        kernel_initializer=initializer,
        dtype=last_dtype(),
        name="heads",
    )
    return ops.reshape(heads(ops.reshape(values, (-1, 1, members, width))), (-1, members, outputs))
