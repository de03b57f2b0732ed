"""Networks behind named inputs, of which pixels are scaled, so that they take the data set's own."""

import inspect
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from stages.results import Normalization

SCALING = "scaling"
"""Name of the layer that scales pixels."""


class Scaled(keras.Model):
    """A network behind its inputs and the layer that scales its pixels; it has the network's own loss, if any."""

    @property
    def core(self) -> keras.Model:
        """The network, on scaled images."""
        return self.layers[-1]

    def scaled(self, inputs: Any) -> Any:
        """Returns what the network gets of `inputs`."""
        names = {layer.name for layer in self.layers[:-1]}
        return self.get_layer(SCALING)(inputs) if SCALING in names else inputs

    @property
    def has_own_loss(self) -> bool:
        return type(self.core).compute_loss is not keras.Model.compute_loss

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        if not self.has_own_loss:
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        arguments: dict[str, Any] = {
            "x": self.scaled(x),
            "y": y,
            "y_pred": y_pred,
            "sample_weight": sample_weight,
            "training": training,
        }
        parameters = inspect.signature(self.core.compute_loss).parameters  # `training` is Keras' own since 3.3
        return self.core.compute_loss(**{name: value for name, value in arguments.items() if name in parameters})


def with_scaling(
    scaling: Normalization | None, inputs: Mapping[str, keras.KerasTensor], network: keras.Model, policy: str
) -> Scaled:
    """Returns `network`, under the Keras policy `policy`, behind `inputs`, whose pixels a layer scales for it."""
    given = dict(inputs) if len(inputs) > 1 else next(iter(inputs.values()))
    if scaling is None:
        return Scaled(given, network(given), name=network.name)
    # float32 whatever the policy: a mantissa of 8 bits, as in bfloat16, is too short for pixels of mixed images.
    dtype = "float64" if policy == "float64" else "float32"
    rescaling = keras.layers.Rescaling(
        _numbers(scaling.scale, dtype), _numbers(scaling.offset, dtype), dtype=dtype, name=SCALING
    )
    return Scaled(given, network(rescaling(given)), name=network.name)


def _numbers(values: tuple[float, ...], dtype: str) -> float | list[float]:
    kind = np.float64 if dtype == "float64" else float  # Keras converts Python's own to float32 first
    return kind(values[0]) if len(values) == 1 else [kind(value) for value in values]
