"""Networks that return a map: a small U-Net, and the decoder of a backbone."""

from collections.abc import Sequence
from typing import Any

import keras

from stages.networks.batch_norm import BatchNormalization
from stages.networks.precision import last_dtype


def unet(
    input_shape: tuple[int, int, int],
    num_classes: int,
    filters: list[int],
    dropout: float,
    output_shape: tuple[int, int, int],
) -> keras.Model:
    """Return a network from float [b, *input_shape] to logits [b, *output_shape], float32 or wider.

    Each of `filters` is a level of two 3×3 convolutions, and has half the resolution of the level before. The way up
    doubles the resolution of the features, and joins them with the features of the same level on the way down. Images
    may have any size: sides that are not even are rounded up on the way down, and cropped on the way up.
    With the default settings, 128×128×3 images and 3 classes it has 489,443 parameters.
    Its BatchNorms use the statistics of the whole batch, however many replicas share it.
    Source: Ronneberger, Fischer and Brox 2015, arXiv:1505.04597; with padded convolutions and BatchNorm.

    Args:
        input_shape: Height, width and channels.
        num_classes: Number of classes.
        filters: Filters in the convolutions of each level.
        dropout: Part of the features of the deepest level that is dropped in training, in [0, 1).
        output_shape: Height and width of the masks, and the number of classes.
    """
    inputs = keras.Input(input_shape)
    features, levels = inputs, []
    for level, count in enumerate(filters):
        features = keras.layers.MaxPooling2D(2, padding="same")(features) if level else features
        features = _convolutions(features, count)
        levels.append(features)
    features = keras.layers.Dropout(dropout)(features) if dropout else features
    features = decoded(features, levels[-2::-1], filters[-2::-1])
    return keras.Model(inputs, map_head(features, output_shape), name="unet")


def decoded(features: Any, levels: Sequence[Any], filters: Sequence[int]) -> Any:
    """Return features [b, h, w, f] of the resolution of the last of `levels`.

    Args:
        features: The features of the lowest resolution.
        levels: Features to join, each of a higher resolution than those before it.
        filters: Filters in the convolutions of each level.
    """
    for level, count in zip(levels, filters, strict=True):
        larger = _resized(features, level.shape[1:3])
        features = _convolutions(keras.layers.Concatenate()([larger, level]), count)
    return features


def map_head(features: Any, output_shape: Sequence[int]) -> Any:
    """Return logits [b, *output_shape] of features of any resolution: those of a 1×1 convolution, enlarged."""
    *size, num_classes = output_shape
    outputs = keras.layers.Conv2D(num_classes, 1, dtype=last_dtype(), name="head")(features)
    return _resized(outputs, size, last_dtype())


def _resized(features: Any, size: Sequence[int], dtype: str | None = None) -> Any:
    """Return features repeated in both directions and cropped to a size that is not smaller."""
    factors = [-(-wanted // own) for wanted, own in zip(size, features.shape[1:3], strict=True)]
    if max(factors) > 1:
        features = keras.layers.UpSampling2D(factors, dtype=dtype)(features)
    beyond = [own - wanted for wanted, own in zip(size, features.shape[1:3], strict=True)]
    if max(beyond):
        features = keras.layers.Cropping2D([(0, count) for count in beyond], dtype=dtype)(features)
    return features


def _convolutions(features: Any, filters: int) -> Any:
    for _ in range(2):
        convolution = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False, kernel_initializer="he_normal")
        # Keras' 0.99 needs thousands of steps before the moving statistics are useful.
        features = keras.layers.ReLU()(BatchNormalization(momentum=0.9)(convolution(features)))
    return features
