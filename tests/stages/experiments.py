"""Small experiments by hand, without the framework."""

from dataclasses import replace

import keras
import numpy as np
import tensorflow as tf

from stages.load.digits import digits
from stages.model import model
from stages.normalize import normalize
from stages.results import Dataset, Model, Split, Strategy
from stages.settings.data import DigitsSettings
from stages.settings.images import NormalizeSettings
from stages.settings.model import CnnSettings, ModelSettings, PrecisionSettings
from stages.settings.strategy import MirroredSettings, OneDeviceSettings
from stages.settings.train import AdamSettings, ScheduleSettings, SgdSettings, TrainSettings
from stages.strategy import strategy


def one_device() -> Strategy:
    return strategy(OneDeviceSettings(deterministic=False, device="/cpu:0"))


def mirrored(replicas: int = 2) -> Strategy:
    return strategy(MirroredSettings(deterministic=False, cpu_replicas=replicas))


def real_digits(train: int | None = None) -> Dataset:
    """Returns scaled digits, the training split cut to `train` examples."""
    dataset = normalize(digits(DigitsSettings(seed=1)), NormalizeSettings())
    if train is None:
        return dataset
    return replace(dataset, train=Split(dataset.train.images[:train], dataset.train.labels[:train]))


def small_cnn(dataset: Dataset, where: Strategy, policy: str = "float32", dropout: float = 0.0, seed: int = 1) -> Model:
    network = CnnSettings(filters=[8, 16], dropout=dropout)
    return model(dataset, where, ModelSettings(network=network, precision=PrecisionSettings(policy=policy), seed=seed))


def settings(**changes: object) -> TrainSettings:
    """Returns settings of a short training with momentum."""
    given = TrainSettings(epochs=2, optimizer=SgdSettings(), schedule=ScheduleSettings(), seed=1)
    return replace(given, **changes)  # type: ignore[arg-type]


def adam(**changes: float) -> AdamSettings:
    return AdamSettings(**changes)  # type: ignore[arg-type]


def flat(network: keras.Model) -> np.ndarray:
    """Returns all weights as one vector."""
    return np.concatenate([weight.ravel() for weight in network.get_weights()])


def elements(source: object, replicas: int = 1) -> list[tuple[np.ndarray, ...]]:
    """Returns what an input function yields, as arrays."""
    context = tf.distribute.InputContext(1, 0, replicas)
    return [tuple(part.numpy() for part in element) for element in source(context)]  # type: ignore[operator]
