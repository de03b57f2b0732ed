"""The network that suits what a data set has: convolutions for images, dense layers for everything else."""

from collections.abc import Mapping

import keras

from stages.networks.cnn import cnn
from stages.networks.joined import Shapes
from stages.networks.mlp import mlp
from stages.settings.model import CnnSettings, MlpSettings


def auto(
    input_shape: tuple[int, ...] | Shapes, outputs: int, categories: Mapping[str, int] | None = None
) -> keras.Model:
    """Returns `mlp`, or `cnn` for images, with the settings that these have by default."""
    if not isinstance(input_shape, Mapping) and len(input_shape) == 3:
        convolutions = CnnSettings()
        height, width, channels = input_shape
        shape = (height, width, channels)
        return cnn(shape, outputs, convolutions.filters, convolutions.kernel_size, convolutions.dropout)
    dense = MlpSettings()
    return mlp(input_shape, outputs, dense.hidden, dense.dropout, categories)
