"""Dense layers, alone or beside a linear model."""

from collections.abc import Mapping

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
    """Returns a network from float [b, *input_shape], or inputs by name, to float32 [b, num_classes], or wider.

    Args:
        categories: from inputs of indices to the number of different ones, each of which gets an embedding.
    """
    layers = []
    for units in hidden:
        layers += [keras.layers.Dense(units, activation="relu")]
        layers += [keras.layers.Dropout(dropout)] if dropout else []
    layers += [keras.layers.Dense(num_classes, dtype=last_dtype())]
    if not isinstance(input_shape, Mapping):
        return keras.Sequential([keras.layers.Input(input_shape), keras.layers.Flatten(), *layers], name="mlp")
    inputs, last = join(input_shape, categories or {})
    for layer in layers:
        last = layer(last)
    return keras.Model(inputs, last, name="mlp")


def wide_and_deep(
    input_shape: tuple[int, ...] | Shapes,
    outputs: int,
    hidden: list[int],
    dropout: float,
    categories: Mapping[str, int] | None = None,
) -> keras.Model:
    """Returns a network from the inputs to float32 [b, outputs], or wider: the sum of a linear and a deep part.

    Source: Cheng et al. 2016 (arXiv:1606.07792); of categories, the wide part takes what their embeddings are.
    """
    if isinstance(input_shape, Mapping):
        inputs, joined = join(input_shape, categories or {})
    else:
        inputs = keras.Input(input_shape)
        joined = keras.layers.Flatten()(inputs)
    deep = joined
    for units in hidden:
        deep = keras.layers.Dense(units, activation="relu")(deep)
        deep = keras.layers.Dropout(dropout)(deep) if dropout else deep
    wide, last = (
        keras.layers.Dense(outputs, dtype=last_dtype(), name=name)(part)
        for name, part in (("wide", joined), ("deep", deep))
    )
    return keras.Model(inputs, keras.layers.Add(dtype=last_dtype())([wide, last]), name="wide_and_deep")
