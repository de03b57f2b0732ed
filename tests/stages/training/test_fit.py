"""`train=fit`: Keras takes the steps, also by a network's own `train_step`; a stopped run is resumed exactly."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from stages.errors import UserError
from stages.fit import fit
from stages.results import Trained
from stages.settings.optimizer import CosineSettings, ScheduleSettings, SgdSettings
from stages.settings.train import FitSettings
from stages.train import train
from tests.stages.experiments import built_of, flat, mirrored, one_device, real_digits, settings, small_cnn
from tests.stages.training.stopped import Stopper

pytestmark = pytest.mark.slow
DATASET = real_digits(128)


class Doubled(keras.Model):
    """A network whose own step takes twice the loss, and logs what it has done."""

    def train_step(self, data: Any) -> dict[str, Any]:
        images, labels = data
        with tf.GradientTape() as tape:
            loss = 2 * self.compute_loss(images, labels, self(images, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        for metric in self.metrics:
            metric.update_state(*((loss,) if metric.name == "loss" else (labels, self(images))))
        return {**self.get_metrics_result(), "doubled": loss}


def network(input_shape: tuple[int, ...], num_classes: int, kind: str = "Doubled") -> keras.Model:
    inputs = keras.Input(input_shape)
    made = {"Doubled": Doubled, "plain": keras.Model}[kind]
    return made(inputs, keras.layers.Dense(num_classes)(keras.layers.Flatten()(inputs)))


class Noting(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["noted"] = epoch


def run(
    folder: Path | None = None, at: int | None = None, kind: str | None = None, replicas: int = 1, **changes: Any
) -> tuple[Trained | None, Stopper]:
    given: dict[str, Any] = {"epochs": 3, "batch_size": 16, "seed": 1, "schedule": ScheduleSettings(), **changes}
    where, reporter = one_device() if replicas == 1 else mirrored(replicas), Stopper(at)
    if kind is None:
        built = small_cnn(DATASET, where, dropout=0.3)
    else:
        own = {"_target_": f"{__name__}.network", "kind": kind}
        built = built_of(own, DATASET, where)
    try:
        return fit(
            built, DATASET, where, FitSettings(**{"optimizer": SgdSettings(), **given}), reporter, folder
        ), reporter
    except KeyboardInterrupt:
        return None, reporter


def weights(trained: Trained | None) -> np.ndarray:
    assert trained is not None
    return flat(trained.model.network)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_step_of_the_network_s_own_is_taken(replicas: int) -> None:
    """Without momentum, twice the loss is twice the rate."""
    own, told = run(kind="Doubled", replicas=replicas, optimizer=SgdSettings(learning_rate=0.05, momentum=0.0))
    plain, _ = run(kind="plain", optimizer=SgdSettings(learning_rate=0.1, momentum=0.0))
    np.testing.assert_allclose(weights(own), weights(plain), atol=1e-6)
    assert all("train/doubled" in row and "val/accuracy" in row for row in told.rows.values())
    where = one_device()
    built = built_of({"_target_": f"{__name__}.network"}, DATASET, where)
    with pytest.raises(UserError, match=r"Doubled has a train_step of its own.*Try: train=fit"):
        train(built, DATASET, where, settings())


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "Doubled", "callbacks": [Noting()]},
        {"optimizer": SgdSettings(ema_momentum=0.9, ema_use=True), "restore_best": False},
        {"replicas": 2, "schedule": CosineSettings()},
    ],
    ids=["own step", "EMA", "replicas"],
)
def test_a_resumed_run_equals_an_uninterrupted_one(changes: dict[str, Any], tmp_path: Path) -> None:
    """Within an epoch, and after its last step, where what `train_step` returns beside metrics is known no more."""
    whole, told = run(**changes)
    assert run(tmp_path, 13, **changes)[0] is None
    assert run(tmp_path, 16, **changes)[0] is None
    resumed, again = run(tmp_path, **changes)
    assert again.resumed_from == 16
    assert again.rows == told.rows
    np.testing.assert_array_equal(weights(whole), weights(resumed))
    assert (tmp_path / "checkpoints" / "best.weights.h5").exists()
    if "callbacks" in changes:
        assert [row["train/noted"] for row in told.rows.values()] == [0, 1, 2]


def test_an_ema_that_is_not_used_is_not_the_result() -> None:
    kept, _ = run(optimizer=SgdSettings(ema_momentum=0.999), restore_best=False)
    plain, _ = run(restore_best=False)
    np.testing.assert_array_equal(weights(kept), weights(plain))
