"""Backbones of KerasHub, from a preset in a folder, with the project's head."""

from pathlib import Path
from typing import Any

import keras

from stages.errors import UserError
from stages.networks.applications import with_head
from stages.results import Normalization


def keras_hub(input_shape: tuple[int, int, int], num_classes: int, preset: str, dropout: float) -> keras.Model:
    """Returns a network from float [b, *input_shape] to logits [b, num_classes], float32 or wider.

    The preset's backbone, with its weights, is the layer `backbone`; global average pooling, dropout and one dense
    layer follow. Its BatchNorms take the statistics of the whole batch, however many replicas share it. Images of one
    channel are repeated to three.

    Args:
        preset: a folder that `save_to_preset` of KerasHub has written.
        dropout: in front of the dense layer, in [0, 1).

    Raises:
        UserError: where the preset has no backbone of images.
    """
    from keras_hub import models  # seconds

    loaded = models.Backbone.from_preset(str(Path(preset).expanduser()), dtype=keras.config.dtype_policy().name)
    if isinstance(loaded.input, dict) or len(loaded.input.shape) != 4:
        raise UserError(
            f"model.network.preset={preset} holds a {type(loaded).__name__}, which does not take images alone",
            "a backbone of images",
            "model=transformer, for texts",
        )
    return with_head(loaded, input_shape, num_classes, dropout, "keras_hub")


def preprocessing(preset: str, **_: Any) -> Normalization | None:
    """Returns the scaling of RGB pixels of 0 to 255 that the preset's preprocessor has; None where it has none."""
    from keras_hub import layers

    try:
        converter = layers.ImageConverter.from_preset(str(Path(preset).expanduser()))
    except ValueError:  # KerasHub's own, for a preset without one
        return None
    scale, offset = (
        tuple(value) if isinstance(value, (list, tuple)) else (default if value is None else float(value),) * 3
        for value, default in ((converter.scale, 1.0), (converter.offset, 0.0))
    )
    return Normalization(scale, offset)


keras_hub.preprocessing = preprocessing  # type: ignore[attr-defined]
