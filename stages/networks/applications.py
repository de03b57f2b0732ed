"""Networks of keras.applications, by name, with the project's head."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from stages.errors import UserError
from stages.networks.batch_norm import BatchNormalization
from stages.networks.keras_internals import all_layers, preprocess_input_of
from stages.networks.precision import last_dtype
from stages.results import Normalization

POOLING = {4: keras.layers.GlobalAveragePooling2D, 3: keras.layers.GlobalAveragePooling1D}
"""By the rank of what a backbone returns: a map of features, or one vector for each part of the image."""


def application(
    input_shape: tuple[int, int, int], num_classes: int, name: str, arguments: Mapping[str, Any], dropout: float
) -> keras.Model:
    """Returns a network from float [b, *input_shape] to logits [b, num_classes], float32 or wider.

    keras.applications' network without its top is the layer `backbone`; global average pooling, dropout and one dense
    layer follow. Weights start at random. Its BatchNorms take the statistics of the whole batch, however many replicas
    share it. Images of one channel are repeated to three, and the channels put into the order that the backbone was
    trained on, so that pretrained weights fit.

    Args:
        name: of the class in keras.applications, such as MobileNetV2.
        arguments: for the class, such as alpha; not those by which tops, weights and shapes are chosen.
        dropout: in front of the dense layer, in [0, 1).

    Raises:
        UserError: for a name that keras.applications does not have.
        ValueError: for an argument that it does not take, or images that are too small.
    """
    channels = 3 if input_shape[-1] == 1 else input_shape[-1]
    try:
        backbone = _find(name)(include_top=False, weights=None, input_shape=(*input_shape[:2], channels), **arguments)
    except TypeError as error:  # of an argument that it does not take
        raise ValueError(str(error)) from error
    is_reversed = input_shape[-1] == 3 and _affine(name)[2]
    return with_head(backbone, input_shape, num_classes, dropout, name.lower(), is_reversed)


def with_head(
    backbone: keras.Model,
    input_shape: tuple[int, int, int],
    num_classes: int,
    dropout: float,
    name: str,
    is_reversed: bool = False,
) -> keras.Model:
    """Returns `backbone` behind images, and before global average pooling, dropout and one dense layer.

    It becomes the layer `backbone`, its BatchNorms synchronized over replicas. Images of one channel are repeated to
    three.

    Args:
        is_reversed: whether it was trained on blue, green and red.
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
    pooling = POOLING.get(len(features.shape))
    features = pooling(name="pooling")(features) if pooling else features
    return keras.Model(inputs, head(features, num_classes, dropout), name=name)


def head(features: Any, num_classes: int, dropout: float) -> Any:
    """Returns the outputs [b, num_classes] of features [b, d]: dropout and one dense layer."""
    features = keras.layers.Dropout(dropout, name="dropout")(features) if dropout else features
    return keras.layers.Dense(num_classes, dtype=last_dtype(), name="head")(features)


def preprocessing(name: str, arguments: Mapping[str, Any], **_: Any) -> Normalization | None:
    """Returns the scaling of RGB pixels of 0 to 255 that the network `name` was trained with, one number a channel.

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
    """Returns scale [3], offset [3], of channels as they come in, and whether they go out in the opposite order."""
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
