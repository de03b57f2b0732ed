"""Dense layers."""

import keras

from stages.networks.precision import last_dtype


def mlp(input_shape: tuple[int, int, int], num_classes: int, hidden: list[int], dropout: float) -> keras.Model:
    """Returns a network from float [b, *input_shape] to logits [b, num_classes], float32 or wider."""
    layers = [keras.layers.Input(input_shape), keras.layers.Flatten()]
    for units in hidden:
        layers += [keras.layers.Dense(units, activation="relu")]
        layers += [keras.layers.Dropout(dropout)] if dropout else []
    return keras.Sequential([*layers, keras.layers.Dense(num_classes, dtype=last_dtype())], name="mlp")
