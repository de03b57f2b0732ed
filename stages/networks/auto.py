"""The network that suits a data set: convolutions for images, texts and series, a U-Net for masks, or dense layers."""

from collections.abc import Mapping

import keras

from stages.networks.cnn import cnn
from stages.networks.joined import SeriesFacts, Shapes, TableFacts
from stages.networks.mlp import mlp
from stages.networks.series import by_step, causal_cnn
from stages.networks.tabular import tabular
from stages.networks.texts import text_cnn
from stages.networks.unet import unet
from stages.settings.model import (
    ByStepSettings,
    CausalCnnSettings,
    CnnSettings,
    MlpSettings,
    TabularSettings,
    TextCnnSettings,
    UnetSettings,
)
from stages.targets import arguments_of


def auto(  # noqa: PLR0913  # the facts of all networks
    input_shape: tuple[int, ...] | Shapes,
    outputs: int,
    categories: Mapping[str, int] | None = None,
    table: TableFacts | None = None,
    output_shape: tuple[int, ...] = (),
    series: SeriesFacts | None = None,
    columns: str = "mlp",
) -> keras.Model:
    """Return `cnn` for images, `unet` if their targets are masks, `text_cnn` for one text, `tabular` for columns.

    For windows of time series it is `by_step`, if next values or the next class are predicted, and `causal_cnn` for
    recordings and the class of the last step. Each has its default settings. For everything else the network is `mlp`.
    """
    if series is not None:
        if series.targets or series.has_past_class:
            return by_step(input_shape, outputs, **arguments_of(ByStepSettings()), series=series)
        return causal_cnn(input_shape, outputs, **arguments_of(CausalCnnSettings()), series=series)
    if not isinstance(input_shape, Mapping) and len(input_shape) == len(output_shape) == 3:
        return unet(input_shape, outputs, **arguments_of(UnetSettings()), output_shape=output_shape)
    if not isinstance(input_shape, Mapping) and len(input_shape) == 3:
        return cnn(input_shape, outputs, **arguments_of(CnnSettings()))
    if isinstance(input_shape, Mapping) and categories and len(input_shape) == 1:
        return text_cnn(input_shape, outputs, **arguments_of(TextCnnSettings()), categories=categories)
    if columns == "tabular" and table is not None and (table.edges or isinstance(input_shape, Mapping)):
        return tabular(input_shape, outputs, **arguments_of(TabularSettings()), table=table)
    return mlp(input_shape, outputs, **arguments_of(MlpSettings()), categories=categories)
