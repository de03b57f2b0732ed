"""Training on one batch until the network has memorized it, as a debug run does."""

from collections.abc import Mapping

import keras

from stages.networks.keras_internals import all_layers

_NOISE = {
    keras.layers.Dropout: "rate",
    keras.layers.AlphaDropout: "rate",
    keras.layers.GaussianDropout: "rate",
    keras.layers.GaussianNoise: "stddev",
}
"""Layers that are random in training, and the setting that is 0 where they are not."""


class OneBatch(keras.callbacks.Callback):
    """Switches dropout and noise off before the first step is traced, and stops once the loss is `enough`."""

    def __init__(self, enough: float) -> None:
        super().__init__()
        self.enough = enough

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        switch_noise_off(model)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        if (logs or {})["loss"] <= self.enough:
            self.model.stop_training = True


def switch_noise_off(network: keras.Model) -> None:
    """Sets the rates of all dropout layers in `network`, and of those that add noise, to 0."""
    for layer in all_layers(network):
        for kind, setting in _NOISE.items():
            if isinstance(layer, kind):
                setattr(layer, setting, 0.0)
