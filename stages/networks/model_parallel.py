"""Model parallelism: the layers of one model on several devices.

`keras.distribution.ModelParallel` does this on other backends; on TensorFlow it silently places nothing.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import keras
import tensorflow as tf

from stages.errors import UserError
from stages.networks.keras_internals import is_graph_of_layers


class OnDevice(keras.layers.Wrapper):
    """Builds and calls `layer` on `device`, which holds its weights and computes its outputs."""

    def __init__(self, layer: keras.layers.Layer, device: str, **kwargs: Any) -> None:
        super().__init__(layer, name=layer.name, dtype=layer.dtype_policy, **kwargs)
        self.device = device

    def build(self, input_shape: Any = None) -> None:
        self.built = True  # the layer is built by its first call, as some take more than one input

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with tf.device(self.device):
            return super().__call__(*args, **kwargs)

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return self.layer(inputs, *args, **kwargs)


def place(network: keras.Model, devices: Sequence[str], layers: Mapping[str, str]) -> keras.Model:
    """Return a copy of `network`, weights included, whose layers are on the devices that `assign` returns.

    Raises:
        UserError: where the network is not a graph of layers, or a pattern matches none of them.
    """
    if not is_graph_of_layers(network):
        raise UserError(
            f"strategy=model_parallel cannot distribute the layers of {type(network).__name__}",
            "a keras.Sequential or a functional keras.Model",
            "strategy=mirrored",
        )
    assigned = assign(network, devices, layers)

    def on_device(layer: keras.layers.Layer) -> keras.layers.Layer:
        copy = type(layer).from_config(layer.get_config())
        return copy if layer.name not in assigned else OnDevice(copy, assigned[layer.name])

    placed = keras.models.clone_model(network, clone_function=on_device)
    placed.set_weights(network.get_weights())
    return placed


def assign(network: keras.Model, devices: Sequence[str], layers: Mapping[str, str]) -> dict[str, str]:
    """Return a device for each layer: that of the first pattern in `layers` that matches its name.

    Layers that no pattern matches go to `devices` in order, so that each gets about the same bytes of weights.
    """
    candidates = [layer for layer in network.layers if not isinstance(layer, keras.layers.InputLayer)]
    for pattern in layers:
        if not any(fnmatchcase(layer.name, pattern) for layer in candidates):
            names = [layer.name for layer in candidates]
            fix = f"'strategy.layers={{{names[0]}: {next(iter(devices), '<device>')}}}'"
            raise UserError(f"strategy.layers: {pattern} does not match any layer", names, fix)
    total = max(sum(map(_bytes, candidates)), 1)
    before = 0
    assigned = {}
    for layer in candidates:
        middle = (before + _bytes(layer) / 2) / total
        in_turn = devices[min(int(middle * len(devices)), len(devices) - 1)]
        assigned[layer.name] = next((layers[key] for key in layers if fnmatchcase(layer.name, key)), in_turn)
        before += _bytes(layer)
    return assigned


def _bytes(layer: keras.layers.Layer) -> int:
    return sum(weight.value.dtype.size * weight.value.shape.num_elements() for weight in layer.weights)
