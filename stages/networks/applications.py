"""Networks of keras.applications, by name, with the project's head."""

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np

from stages.errors import UserError
from stages.networks.batch_norm import BatchNormalization
from stages.networks.keras_internals import all_layers, preprocess_input_of
from stages.networks.precision import last_dtype
from stages.networks.unet import decoded, map_head
from stages.results import Normalization

POOLING = {4: keras.layers.GlobalAveragePooling2D, 3: keras.layers.GlobalAveragePooling1D}
"""By the rank of what a backbone returns: a map of features, or one vector for each part of the image."""


def application(  # noqa: PLR0913  # its settings, and the shapes at both ends
    input_shape: tuple[int, int, int],
    num_classes: int,
    name: str,
    arguments: Mapping[str, Any],
    dropout: float,
    decoder: Sequence[int] = (),
    output_shape: tuple[int, ...] = (),
) -> keras.Model:
    """Return a network from float [b, *input_shape] to logits, float32 or wider.

    keras.applications' network without its top is the layer `backbone`. For logits [b, num_classes], global average
    pooling, dropout and one dense layer follow. For logits of each pixel, [b, H, W, num_classes], a decoder follows:
    like the way up of a U-Net, it joins the features with those of the backbone at higher resolutions, and at last with
    the images themselves.

    Weights start at random. The BatchNorms use the statistics of the whole batch, however many replicas share it.
    Images of one channel are repeated to three, and the channels put into the order that the backbone was trained on,
    so that pretrained weights fit.

    Args:
        input_shape: Height, width and channels.
        num_classes: Number of classes.
        name: Name of the class in keras.applications, such as MobileNetV2.
        arguments: Arguments of the class, such as alpha; not those by which tops, weights and shapes are chosen.
        dropout: Part of the features that is dropped in front of the last layer, in [0, 1).
        decoder: Filters of each level of the decoder, the lowest resolution first.
        output_shape: Shape of an example's logits.

    Raises:
        UserError: If keras.applications has no class of this name.
        ValueError: If the class does not accept an argument, or the images are too small.
    """
    channels = 3 if input_shape[-1] == 1 else input_shape[-1]
    try:
        backbone = _find(name)(include_top=False, weights=None, input_shape=(*input_shape[:2], channels), **arguments)
    except TypeError as error:  # of an argument that it does not take
        raise ValueError(str(error)) from error
    is_reversed = input_shape[-1] == 3 and _affine(name)[2]
    behind = partial(pooled_head, num_classes=num_classes, dropout=dropout)
    if len(output_shape) == 3:
        levels = [*_levels(backbone), keras.layers.Identity(name="images")(backbone.input)][: len(decoder)]
        backbone = keras.Model(backbone.input, [backbone.output, *levels])
        behind = partial(_decoded, filters=decoder[: len(levels)], dropout=dropout, output_shape=output_shape)
    return with_head(backbone, input_shape, behind, name.lower(), is_reversed)


def with_head(
    backbone: keras.Model,
    input_shape: tuple[int, int, int],
    behind: Callable[[Any], Any],
    name: str,
    is_reversed: bool = False,
) -> keras.Model:
    """Return a network of images with `backbone` as the layer of this name.

    Its BatchNorms are synchronized over replicas. Images of one channel are repeated to three.

    Args:
        backbone: Network from images to features.
        input_shape: Height, width and channels of the images.
        behind: Returns the outputs of the network from those of the backbone.
        name: Name of the network.
        is_reversed: Whether the backbone was trained on blue, green and red.
    """
    backbone.name = "backbone"  # EfficientNetV2 takes its `name` for the key of its blocks
    for layer in all_layers(backbone):
        if isinstance(layer, keras.layers.BatchNormalization):
            # The functions take no argument for it, and a clone would cost as much as the backbone.
            layer.__class__ = BatchNormalization
            layer.synchronized = True
    inputs = keras.Input(input_shape)
    images = keras.layers.Concatenate(name="to_rgb")([inputs] * 3) if input_shape[-1] == 1 else inputs
    features = backbone(keras.ops.flip(images, axis=-1) if is_reversed else images)
    return keras.Model(inputs, behind(features), name=name)


def pooled_head(features: Any, num_classes: int, dropout: float) -> Any:
    """Return the outputs [b, num_classes] of features: global average pooling, dropout and one dense layer."""
    pooling = POOLING.get(len(features.shape))
    return head(pooling(name="pooling")(features) if pooling else features, num_classes, dropout)


def _levels(backbone: keras.Model) -> list[Any]:
    """Return the last features that a backbone has at each resolution between those of its output and its input.

    The lowest resolution comes first. Features of nearly the same size, such as padded ones, count as one resolution.
    """
    least, most = backbone.output.shape[1], backbone.input.shape[1]
    levels: list[Any] = []
    for operation in backbone.operations:  # layers and sums, such as those of ConvNeXt, in their order
        features, moves = operation.output, (keras.layers.ZeroPadding2D, keras.layers.Cropping2D)
        if isinstance(operation, moves) or isinstance(features, list) or len(features.shape) != 4:
            continue
        height = features.shape[1]
        if least < height < most and height <= 0.75 * most:
            same = [place for place, level in enumerate(levels) if 0.75 < height / level.shape[1] < 1 / 0.75]
            levels = [level for place, level in enumerate(levels) if place not in same] + [features]
    return sorted((level for level in levels if level.shape[1] > least / 0.75), key=lambda level: level.shape[1])


def _decoded(outputs: Sequence[Any], filters: Sequence[int], dropout: float, output_shape: Sequence[int]) -> Any:
    """Return logits [b, *output_shape] of a backbone's features, and of those at higher resolutions."""
    features = decoded(outputs[0], outputs[1:], filters)
    features = keras.layers.Dropout(dropout, name="dropout")(features) if dropout else features
    return map_head(features, output_shape)


def head(features: Any, num_classes: int, dropout: float) -> Any:
    """Return the outputs [b, num_classes] of features [b, d]: dropout and one dense layer."""
    features = keras.layers.Dropout(dropout, name="dropout")(features) if dropout else features
    return keras.layers.Dense(num_classes, dtype=last_dtype(), name="head")(features)


def preprocessing(name: str, arguments: Mapping[str, Any], **_: Any) -> Normalization | None:
    """Return the scaling of RGB pixels of 0 to 255 that the network `name` was trained with, one number a channel.

    Found by calling the `preprocess_input` of its module, as a table would age. None where `arguments` take the
    scaling out of the network (`include_preprocessing=false`), as its module then does not have it either.
    """
    if not arguments.get("include_preprocessing", True):
        return None
    scale, offset, _reversed = _affine(name)
    return Normalization(tuple(scale.tolist()), tuple(offset.tolist()))


application.preprocessing = preprocessing  # type: ignore[attr-defined]


def _find(name: str) -> Callable[..., keras.Model]:
    functions = {key: value for key, value in vars(keras.applications).items() if inspect.isfunction(value)}
    if name not in functions:
        similar = difflib.get_close_matches(name, functions, cutoff=0.0)
        problem = f"model.network.name={name} was not found in keras.applications"
        raise UserError(problem, sorted(functions), f"model.network.name={similar[0]}")
    return functions[name]


def _affine(name: str) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return scale [3], offset [3], of channels as they come in, and whether they go out in the opposite order."""
    preprocess = preprocess_input_of(_find(name))

    def outputs(red: float, green: float, blue: float) -> np.ndarray:
        image = np.array([red, green, blue], np.float32).reshape(1, 1, 1, 3)
        return np.asarray(preprocess(image, data_format="channels_last"), np.float64).ravel()

    offset = outputs(0, 0, 0)
    single = np.stack([outputs(*color) - offset for color in 255.0 * np.eye(3)]) / 255.0
    is_reversed = bool(single[0, 0] == 0)
    if is_reversed:
        single = single[:, ::-1]
        offset = offset[::-1]
    return np.diag(single), offset, is_reversed
