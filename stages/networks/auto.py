"""The network that suits what a data set has: convolutions for images and for a text, else dense layers."""

from collections.abc import Mapping

import keras

from stages.networks.cnn import cnn
from stages.networks.joined import Shapes
from stages.networks.mlp import mlp
from stages.networks.text_cnn import text_cnn
from stages.settings.model import CnnSettings, MlpSettings, TextCnnSettings


def auto(
    input_shape: tuple[int, ...] | Shapes, outputs: int, categories: Mapping[str, int] | None = None
) -> keras.Model:
    """Returns `mlp`, or `cnn` for images, or `text_cnn` for one text, with the settings that these have by default."""
    if not isinstance(input_shape, Mapping) and len(input_shape) == 3:
        convolutions = CnnSettings()
        height, width, channels = input_shape
        shape = (height, width, channels)
        return cnn(shape, outputs, convolutions.filters, convolutions.kernel_size, convolutions.dropout)
    if isinstance(input_shape, Mapping) and categories and len(input_shape) == 1:
        words = TextCnnSettings()
        return text_cnn(input_shape, outputs, words.filters, words.widths, words.dropout, categories)
    dense = MlpSettings()
    return mlp(input_shape, outputs, dense.hidden, dense.dropout, categories)
