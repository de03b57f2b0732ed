"""Backbones of KerasHub, from a preset in a folder, with the project's head."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import keras
from keras import ops

from stages.errors import UserError
from stages.networks.applications import head, pooled_head, with_head
from stages.networks.joined import Shapes, join, mean_where
from stages.networks.precision import last_dtype
from stages.results import Normalization

OF_TEXTS = {"token_ids", "padding_mask", "segment_ids"}
"""Inputs of backbones that take texts, of which only some have the last."""


def keras_hub(
    input_shape: tuple[int, int, int] | Shapes,
    num_classes: int,
    preset: str,
    dropout: float,
    categories: Mapping[str, int] | None = None,
) -> keras.Model:
    """Return a network from images, or from a text and other columns, to [b, num_classes], float32 or wider.

    The preset's backbone, with its weights, is the layer `backbone`; global average pooling of images, or what the
    backbone pools of a text, else the mean over its tokens; dropout and one dense layer follow. BatchNorms take the
    statistics of the whole batch, however many replicas share it. Images of one channel are repeated to three.

    Args:
        preset: a folder that `save_to_preset` of KerasHub has written.
        dropout: in front of the dense layer, in [0, 1).
        categories: from inputs of indices to the number of different ones; a text's are its tokens.

    Raises:
        UserError: where the preset has no backbone of texts for a text, or that is not of its tokenizer.
    """
    from keras_hub import models, tokenizers  # seconds

    folder = str(Path(preset).expanduser())
    loaded = models.Backbone.from_preset(folder, dtype=keras.config.dtype_policy().name)
    if not isinstance(input_shape, Mapping):
        behind = partial(pooled_head, num_classes=num_classes, dropout=dropout)
        return with_head(loaded, input_shape, behind, "keras_hub")
    if not isinstance(loaded.input, dict) or not {"token_ids", "padding_mask"} <= {*loaded.input} <= OF_TEXTS:
        raise UserError(
            f"model.network.preset={preset} is a {type(loaded).__name__}, which requires inputs other than texts",
            "a backbone for texts",
            "model=auto",
        )
    known = tokenizers.Tokenizer.from_preset(folder).vocabulary_size()

    def pooled(numbers: Any, count: int, name: str) -> Any:
        if count != known + 1:
            raise UserError(
                f"model.network.preset={preset} does not fit {name}, whose tokens come from a different tokenizer",
                "the tokenizer of the preset",
                f"normalize.tokenizer={preset}",
            )
        return _pooled(loaded, numbers)

    inputs, joined = join(input_shape, categories or {}, pooled)
    return keras.Model(inputs, head(joined, num_classes, dropout), name="keras_hub")


def _pooled(loaded: keras.Model, numbers: Any) -> Any:
    """Return what the backbone makes of a text, [b, d], by the numbers of its tokens; see `stages.features.texts`."""
    values = loaded.output
    if isinstance(values, dict):
        values = values.get("pooled_output", values.get("sequence_output"))
    if len(values.shape) == 3:
        dtype = last_dtype()
        is_token = ops.expand_dims(ops.cast(loaded.input["padding_mask"], dtype), axis=-1)
        values = mean_where(ops.cast(values, dtype), is_token)
    given = {
        "token_ids": ops.maximum(numbers - 1, 0),
        "padding_mask": ops.cast(ops.not_equal(numbers, 0), "int32"),
        "segment_ids": ops.zeros_like(numbers),
    }
    backbone = keras.Model(loaded.input, values, name="backbone")
    return backbone({name: given[name] for name in loaded.input})


def preprocessing(preset: str, **_: Any) -> Normalization | None:
    """Return the scaling of RGB pixels of 0 to 255 that the preset's preprocessor has; None where it has none."""
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
