"""Data sets and models of the project by few words, for measurements of their parts in one process."""

import keras

from benchmarks.cases import engine_of
from stages.load.synthetic import synthetic
from stages.model import model
from stages.normalize import normalize
from stages.results import Dataset, Model, Strategy
from stages.settings.data import NormalizeSettings, SyntheticSettings
from stages.settings.model import ModelSettings, PrecisionSettings
from stages.settings.strategy import OneDeviceSettings
from stages.settings.train import AdamSettings, ScheduleSettings, TrainSettings
from stages.strategy import strategy
from stages.training.parameter_server import ParameterServer
from stages.training.synchronous import Synchronous


def device() -> Strategy:
    """Return the first device of this machine."""
    return strategy(OneDeviceSettings(deterministic=False))


def images(count: int, side: int, channels: int = 3, classes: int = 10) -> Dataset:
    """Return random images, normalized, `count` of them for training and validation."""
    settings = SyntheticSettings(
        examples=count, height=side, width=side, channels=channels, num_classes=classes, split_seed=1
    )
    return normalize(synthetic(settings), NormalizeSettings())


def built(
    dataset: Dataset,
    where: Strategy,
    network: object,
    policy: str = "float32",
    frozen: bool = False,
    tf32: bool = False,
) -> Model:
    """Return a model that is not trained. network: its settings. tf32: from then on, in this process."""
    precision = PrecisionSettings(policy=policy, tf32=tf32)
    settings = ModelSettings(network=network, precision=precision, frozen=frozen, seed=1)
    return model(dataset, where, settings)


def trained_by_adam(batch: int, steps_per_call: int = 1, epochs: int = 10_000) -> TrainSettings:
    """Return the settings of a training by Adam at a constant rate, which does not end soon."""
    return TrainSettings(
        epochs=epochs,
        batch_size=batch,
        steps_per_call=steps_per_call,
        optimizer=AdamSettings(),
        schedule=ScheduleSettings(),
        seed=1,
    )


def training_loop(
    dataset: Dataset, where: Strategy, model: Model, settings: TrainSettings
) -> Synchronous | ParameterServer:
    """Return the engine that trains `model` by Adam."""
    with where.distribution.scope():
        optimizer = keras.optimizers.Adam()
    model.network.compile(optimizer)
    return engine_of(where, model, dataset, optimizer, settings)
