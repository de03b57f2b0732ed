"""A convolutional network for photographs, small enough to train from scratch on a CPU."""

import keras

from stages.networks.batch_norm import BatchNormalization
from stages.networks.precision import last_dtype


def cnn_photo(
    input_shape: tuple[int, int, int], num_classes: int, filters: list[int], convolutions: int, dropout: float
) -> keras.Model:
    """Returns a network from float [b, *input_shape] to logits [b, num_classes], float32 or wider.

    A stem that quarters the pixels, then blocks of `convolutions` times Conv-BatchNorm-ReLU, each block but the last
    followed by 2×2 max pooling; global average pooling, dropout and one dense layer. With the default settings,
    160×160×3 images and 5 classes it has 1,183,029 parameters and 106 million multiply-adds an image.
    Its BatchNorms take the statistics of the whole batch, however many replicas share it.
    Sources: VGG's blocks (arXiv:1409.1556), BatchNorm (arXiv:1502.03167), global average pooling (arXiv:1312.4400).

    Raises:
        ValueError: where the images are too small for so many blocks.
    """
    inputs = keras.Input(input_shape)
    outputs = _convolution(inputs, filters[0], kernel_size=3, strides=2)
    for block, count in enumerate(filters):
        if block:
            outputs = keras.layers.MaxPooling2D(2)(outputs)
        for _ in range(convolutions if block else convolutions - 1):
            outputs = _convolution(outputs, count)
    outputs = keras.layers.GlobalAveragePooling2D()(outputs)
    outputs = keras.layers.Dropout(dropout)(outputs) if dropout else outputs
    outputs = keras.layers.Dense(num_classes, dtype=last_dtype())(outputs)
    return keras.Model(inputs, outputs, name="cnn_photo")


def _convolution(inputs: keras.KerasTensor, filters: int, kernel_size: int = 3, strides: int = 1) -> keras.KerasTensor:
    outputs = keras.layers.Conv2D(
        filters, kernel_size, strides, padding="same", use_bias=False, kernel_initializer="he_normal"
    )(inputs)
    # Keras' 0.99 needs thousands of steps before the moving statistics are useful.
    outputs = BatchNormalization(momentum=0.9)(outputs)
    return keras.layers.ReLU()(outputs)
