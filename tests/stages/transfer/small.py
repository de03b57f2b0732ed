"""A small network with a backbone, and trainings of it."""

from pathlib import Path
from typing import Any

import keras
import numpy as np

from stages.networks.precision import last_dtype
from stages.results import Dataset, Model, Strategy, Trained
from stages.settings.train import TrainSettings
from stages.transfer.pretrained import backbone_of
from tests.stages.experiments import adam, built_of, flat, real_digits, settings
from tests.stages.training import stopped
from tests.stages.training.stopped import Stopper

DATASET = real_digits(150)
"""Three steps an epoch, the last of 22 examples."""


def with_backbone(
    input_shape: tuple[int, int, int], num_classes: int, filters: int = 8, pooled: bool = True, dropout: float = 0.3
) -> keras.Model:
    """A small network such as those of keras.applications: BatchNorm and dropout inside, a head behind."""
    images = keras.Input(input_shape)
    inner = keras.layers.Conv2D(filters, 3, name="conv_1")(images)
    inner = keras.layers.BatchNormalization(synchronized=True)(inner)
    inner = keras.layers.Dropout(0.5)(keras.layers.ReLU()(inner))
    inner = keras.layers.Conv2D(filters, 3, name="conv_2")(inner)
    inner = keras.layers.ReLU()(keras.layers.BatchNormalization(synchronized=True)(inner))
    backbone = keras.Model(images, inner, name="backbone")
    inputs = keras.Input(input_shape)
    features = backbone(inputs[..., ::-1])
    pool = keras.layers.GlobalAveragePooling2D() if pooled else keras.layers.Flatten()
    outputs = keras.layers.Dense(num_classes, dtype=last_dtype())(keras.layers.Dropout(dropout)(pool(features)))
    return keras.Model(inputs, outputs, name="small")


def build(
    where: Strategy, dataset: Dataset = DATASET, frozen: bool = True, policy: str = "float32", **given: Any
) -> Model:
    weights = given.pop("weights", "none")
    network = {"_target_": f"{__name__}.with_backbone", **given}
    return built_of(network, dataset, where, policy, frozen=frozen, weights=str(weights))


USUAL: dict[str, Any] = {
    "epochs": 2, "steps_per_call": 2, "fine_tune_epochs": 2, "fine_tune_layers": 4, "optimizer": adam(),
}  # fmt: skip


def given(**changes: Any) -> TrainSettings:
    return settings(**{**USUAL, **changes})


def two_phases(**changes: Any) -> dict[str, Any]:
    """Return what `stopped.run` takes to train the network with a backbone."""
    of_network = {name: changes.pop(name) for name in ("policy", "pooled", "dropout") if name in changes}
    return {
        "dataset": DATASET, "build": lambda dataset, where: build(where, dataset, **of_network),
        "early_stopping_patience": 0, **USUAL, **changes,
    }  # fmt: skip


def run(where: Strategy, folder: Path | None = None, **changes: Any) -> tuple[Trained, Stopper]:
    return stopped.run(where, folder, **two_phases(**changes))


def inside(network: keras.Model) -> keras.Model:
    """Return the backbone in a network."""
    backbone = backbone_of(network)
    assert backbone is not None
    return backbone


def weights_inside(network: keras.Model) -> np.ndarray:
    return flat(inside(network))
