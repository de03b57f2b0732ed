"""Residual networks for small images."""

import keras

from stages.networks.batch_norm import BatchNormalization
from stages.networks.precision import last_dtype


def resnet(input_shape: tuple[int, int, int], num_classes: int, blocks: int, filters: list[int]) -> keras.Model:
    """Returns a network from float [b, *input_shape] to logits [b, num_classes], float32 or wider.

    A convolution, then for each of `filters` a group of `blocks` residual blocks of two 3×3 convolutions, each group
    but the first at half the resolution; global average pooling and one dense layer. Three groups of 3 blocks make
    ResNet-20, whose 269,722 trained parameters (32×32×3 images, 10 classes) are the 0.27 million of the paper.
    Shortcuts are the paper's option A, without weights: images are subsampled, missing channels are zeros.
    Its BatchNorms take the statistics of the whole batch, however many replicas share it.
    Source: He, Zhang, Ren and Sun 2016, arXiv:1512.03385, section 4.2.
    """
    inputs = keras.Input(input_shape)
    outputs = keras.layers.ReLU()(_convolution(inputs, filters[0], 1))
    for group, count in enumerate(filters):
        for block in range(blocks):
            outputs = _residual(outputs, count, strides=2 if group and not block else 1)
    outputs = keras.layers.GlobalAveragePooling2D()(outputs)
    outputs = keras.layers.Dense(num_classes, kernel_initializer="he_normal", dtype=last_dtype())(outputs)
    return keras.Model(inputs, outputs, name=f"resnet{2 * blocks * len(filters) + 2}")


def _residual(inputs: keras.KerasTensor, filters: int, strides: int) -> keras.KerasTensor:
    outputs = keras.layers.ReLU()(_convolution(inputs, filters, strides))
    outputs = _convolution(outputs, filters, 1)
    shortcut = inputs if strides == 1 else keras.layers.AveragePooling2D(1, strides)(inputs)
    missing = filters - inputs.shape[-1]
    if missing > 0:
        shortcut = keras.ops.pad(shortcut, [[0, 0], [0, 0], [0, 0], [missing // 2, missing - missing // 2]])
    return keras.layers.ReLU()(keras.layers.Add()([outputs, shortcut]))


def _convolution(inputs: keras.KerasTensor, filters: int, strides: int) -> keras.KerasTensor:
    outputs = keras.layers.Conv2D(filters, 3, strides, padding="same", use_bias=False, kernel_initializer="he_normal")(
        inputs
    )
    return BatchNormalization(momentum=0.9)(outputs)
