"""Convolutional networks: Keras' MNIST example, one for photographs, and residual ones for small images."""

import keras

from stages.networks.batch_norm import BatchNormalization
from stages.networks.precision import last_dtype


def cnn(
    input_shape: tuple[int, int, int], num_classes: int, filters: list[int], kernel_size: int, dropout: float
) -> keras.Model:
    """Return a network from float [b, *input_shape] to logits [b, num_classes], float32 or wider.

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


def cnn_photo(
    input_shape: tuple[int, int, int], num_classes: int, filters: list[int], convolutions: int, dropout: float
) -> keras.Model:
    """Return a network from float [b, *input_shape] to logits [b, num_classes], small enough for training on a CPU.

    A stem that quarters the pixels, then blocks of `convolutions` times Conv-BatchNorm-ReLU, each block but the last
    followed by 2×2 max pooling; global average pooling, dropout and one dense layer. With the default settings,
    160×160×3 images and 5 classes it has 1,183,029 parameters and 106 million multiply-adds an image.
    Its BatchNorms take the statistics of the whole batch, however many replicas share it.
    Sources: VGG's blocks (arXiv:1409.1556), BatchNorm (arXiv:1502.03167), global average pooling (arXiv:1312.4400).

    Raises:
        ValueError: where the images are too small for so many blocks.
    """
    inputs = keras.Input(input_shape)
    outputs = keras.layers.ReLU()(_convolution(inputs, filters[0], strides=2))
    for block, count in enumerate(filters):
        if block:
            outputs = keras.layers.MaxPooling2D(2)(outputs)
        for _ in range(convolutions if block else convolutions - 1):
            outputs = keras.layers.ReLU()(_convolution(outputs, count))
    outputs = keras.layers.GlobalAveragePooling2D()(outputs)
    outputs = keras.layers.Dropout(dropout)(outputs) if dropout else outputs
    outputs = keras.layers.Dense(num_classes, dtype=last_dtype())(outputs)
    return keras.Model(inputs, outputs, name="cnn_photo")


def resnet(input_shape: tuple[int, int, int], num_classes: int, blocks: int, filters: list[int]) -> keras.Model:
    """Return a network from float [b, *input_shape] to logits [b, num_classes], float32 or wider.

    A convolution, then for each of `filters` a group of `blocks` residual blocks of two 3×3 convolutions, each group
    but the first at half the resolution; global average pooling and one dense layer. Three groups of 3 blocks make
    ResNet-20, whose 269,722 trained parameters (32×32×3 images, 10 classes) are the 0.27 million of the paper.
    Shortcuts are the paper's option A, without weights: images are subsampled, missing channels are zeros.
    Its BatchNorms take the statistics of the whole batch, however many replicas share it.
    Source: He, Zhang, Ren and Sun 2016, arXiv:1512.03385, section 4.2.
    """
    inputs = keras.Input(input_shape)
    outputs = keras.layers.ReLU()(_convolution(inputs, filters[0]))
    for group, count in enumerate(filters):
        for block in range(blocks):
            outputs = _residual(outputs, count, strides=2 if group and not block else 1)
    outputs = keras.layers.GlobalAveragePooling2D()(outputs)
    outputs = keras.layers.Dense(num_classes, kernel_initializer="he_normal", dtype=last_dtype())(outputs)
    return keras.Model(inputs, outputs, name=f"resnet{2 * blocks * len(filters) + 2}")


def _residual(inputs: keras.KerasTensor, filters: int, strides: int) -> keras.KerasTensor:
    outputs = keras.layers.ReLU()(_convolution(inputs, filters, strides))
    outputs = _convolution(outputs, filters)
    shortcut = inputs if strides == 1 else keras.layers.AveragePooling2D(1, strides)(inputs)
    missing = filters - inputs.shape[-1]
    if missing > 0:
        shortcut = keras.ops.pad(shortcut, [[0, 0], [0, 0], [0, 0], [missing // 2, missing - missing // 2]])
    return keras.layers.ReLU()(keras.layers.Add()([outputs, shortcut]))


def _convolution(inputs: keras.KerasTensor, filters: int, strides: int = 1) -> keras.KerasTensor:
    convolution = keras.layers.Conv2D(
        filters, 3, strides, padding="same", use_bias=False, kernel_initializer="he_normal"
    )
    # Keras' 0.99 needs thousands of steps before the moving statistics are useful.
    return BatchNormalization(momentum=0.9)(convolution(inputs))
