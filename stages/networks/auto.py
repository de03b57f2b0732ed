"""The network that suits what a data set has: convolutions for images and for a text, else dense layers."""

from collections.abc import Mapping

import keras

from stages.networks.cnn import cnn
from stages.networks.joined import Shapes
from stages.networks.mlp import mlp
from stages.networks.texts import text_cnn
from stages.settings.model import CnnSettings, MlpSettings, TextCnnSettings
from stages.targets import arguments_of


def auto(
    input_shape: tuple[int, ...] | Shapes, outputs: int, categories: Mapping[str, int] | None = None
) -> keras.Model:
    """Returns `mlp`, or `cnn` for images, or `text_cnn` for one text, with the settings that these have by default."""
    if not isinstance(input_shape, Mapping) and len(input_shape) == 3:
        return cnn(input_shape, outputs, **arguments_of(CnnSettings()))
    if isinstance(input_shape, Mapping) and categories and len(input_shape) == 1:
        return text_cnn(input_shape, outputs, **arguments_of(TextCnnSettings()), categories=categories)
    return mlp(input_shape, outputs, **arguments_of(MlpSettings()), categories=categories)
