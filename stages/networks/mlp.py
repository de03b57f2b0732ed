"""Dense layers."""

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
