"""Dense layers, alone or beside a linear model."""

from collections.abc import Mapping, Sequence
from functools import reduce

import keras

from stages.networks.joined import Shapes, join
from stages.networks.precision import last_dtype


def mlp(
    input_shape: tuple[int, ...] | Shapes,
    num_classes: int,
    hidden: list[int],
    dropout: float,
    categories: Mapping[str, int] | None = None,
) -> keras.Model:
    """Return a network from float [b, *input_shape], or inputs by name, to float32 [b, num_classes], or wider.

    Args:
        categories: from inputs of indices to the number of different ones, each of which gets an embedding.
    """
    # Before the embeddings: a layer's first weights follow from how many were made before it.
    layers = [*_hidden(hidden, dropout), keras.layers.Dense(num_classes, dtype=last_dtype())]
    if not isinstance(input_shape, Mapping):
        return keras.Sequential([keras.layers.Input(input_shape), keras.layers.Flatten(), *layers], name="mlp")
    inputs, joined = join(input_shape, categories or {})
    return keras.Model(inputs, _through(layers, joined), name="mlp")


def wide_and_deep(
    input_shape: tuple[int, ...] | Shapes,
    outputs: int,
    hidden: list[int],
    dropout: float,
    categories: Mapping[str, int] | None = None,
) -> keras.Model:
    """Return a network from the inputs to float32 [b, outputs], or wider: the sum of a linear and a deep part.

    Source: Cheng et al. 2016 (arXiv:1606.07792); of categories, the wide part takes what their embeddings are.
    """
    inputs, joined = join(input_shape, categories or {})
    deep = _through(_hidden(hidden, dropout), joined)
    dtype = last_dtype()
    parts = [keras.layers.Dense(outputs, dtype=dtype, name=name)(x) for name, x in (("wide", joined), ("deep", deep))]
    return keras.Model(inputs, keras.layers.Add(dtype=dtype)(parts), name="wide_and_deep")


def _hidden(units: Sequence[int], dropout: float) -> list[keras.layers.Layer]:
    layers: list[keras.layers.Layer] = []
    for count in units:
        layers += [keras.layers.Dense(count, activation="relu")]
        layers += [keras.layers.Dropout(dropout)] if dropout else []
    return layers


def _through(layers: Sequence[keras.layers.Layer], value: keras.KerasTensor) -> keras.KerasTensor:
    return reduce(lambda given, layer: layer(given), layers, value)
