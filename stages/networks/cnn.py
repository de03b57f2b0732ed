"""The convolutional network of Keras' MNIST example."""

import keras

from stages.networks.precision import last_dtype


def cnn(
    input_shape: tuple[int, int, int], num_classes: int, filters: list[int], kernel_size: int, dropout: float
) -> keras.Model:
    """Returns a network from float [b, *input_shape] to logits [b, num_classes], float32 or wider.

    With the default settings and 28×28×1 images it has 34,826 parameters. Padding is `same` for images under
    16 pixels, of which `valid` would leave nothing.
    Source: keras.io, Simple MNIST convnet (F. Chollet, 2015).
    """
    padding = "same" if min(input_shape[:2]) < 16 else "valid"
    layers = [keras.layers.Input(input_shape)]
    for count in filters:
        layers += [keras.layers.Conv2D(count, kernel_size, padding=padding, activation="relu")]
        layers += [keras.layers.MaxPooling2D(2)]
    layers += [keras.layers.Flatten()]
    layers += [keras.layers.Dropout(dropout)] if dropout else []
    return keras.Sequential([*layers, keras.layers.Dense(num_classes, dtype=last_dtype())], name="cnn")
