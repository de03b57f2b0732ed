"""`train=fit`: Keras takes the steps, also by a network's own `train_step`; a stopped run is resumed exactly."""

from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from stages.errors import UserError
from stages.settings.model import MlpSettings
from stages.settings.train import CosineSettings, CustomOptimizerSettings, SgdSettings
from stages.train import train
from tests.stages.experiments import built_of, flat, mirrored, one_device, real_digits, settings, with_bright_images
from tests.stages.training import stopped
from tests.stages.training.stopped import Stopper

pytestmark = pytest.mark.slow
DATASET = real_digits(128)


class Doubled(keras.Model):
    """A network whose own step takes twice the loss, and logs what it has done, or as little as Keras' guide does."""

    is_terse = False

    def train_step(self, data: Any) -> dict[str, Any]:
        images, labels = data
        with tf.GradientTape() as tape:
            loss = 2 * self.compute_loss(images, labels, self(images, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        if self.is_terse:
            return {"loss": loss}
        for metric in self.metrics:
            metric.update_state(*((loss,) if metric.name == "loss" else (labels, self(images))))
        return {**self.get_metrics_result(), "doubled": loss}


class Terse(Doubled):
    is_terse = True


class Asking(keras.Model):
    """A network with a loss of its own: that of the configuration where `asks`, without its weights."""

    asks = True

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *weights: Any) -> Any:
        return super().compute_loss(x, y, y_pred) if self.asks else keras.ops.mean(y_pred**2)


class Deaf(Asking):
    asks = False


class Drawing(keras.Model):
    """One that adds noise without a seed."""

    def call(self, inputs: Any, training: bool = False, mask: Any = None) -> Any:
        outputs = super().call(inputs, training, mask)
        return outputs + keras.random.normal(keras.ops.shape(outputs)) if training else outputs


class Passing(keras.Model):
    """One that passes on all that it is given."""

    def compute_loss(self, *arguments: Any, **others: Any) -> Any:
        return super().compute_loss(*arguments, **others)


KINDS = {kind.__name__: kind for kind in (Doubled, Terse, Asking, Deaf, Drawing, Passing)} | {"plain": keras.Model}


def network(input_shape: tuple[int, ...], num_classes: int, kind: str = "Doubled") -> keras.Model:
    inputs = keras.Input(input_shape)
    return KINDS[kind](inputs, keras.layers.Dense(num_classes)(keras.layers.Flatten()(inputs)))


def given(kind: str | None = None, replicas: int = 1, **changes: Any) -> dict[str, Any]:
    """Return what `stopped.run` takes for Keras to train a network of `kind`, or a small one with dropout."""
    own = partial(built_of, {"_target_": f"{__name__}.network", "kind": kind})
    usual = {"by": "fit", "epochs": 3, "batch_size": 16, "steps_per_call": None, "early_stopping_patience": 0}
    where = one_device() if replicas == 1 else mirrored(replicas)
    return {"where": where, "dataset": DATASET, "build": own if kind else None, **usual, **changes}


def run(folder: Path | None = None, **changes: Any) -> tuple[np.ndarray, Stopper]:
    trained, told = stopped.run(folder=folder, **given(**changes))
    return flat(trained.model.network), told


CLIPPED = CustomOptimizerSettings(_target_="keras.optimizers.SGD", arguments={"clipvalue": 1.0})


def test_clipping_before_the_sum_is_refused() -> None:
    with pytest.raises(UserError, match=r"optimizer's clipvalue .*Keras clips the gradients.*Try: train=loop"):
        run(replicas=2, optimizer=CLIPPED)


class Noting(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["noted"] = epoch


def test_a_step_of_the_network_s_own_is_taken_in_every_replica() -> None:
    """Without momentum, twice the loss is twice the rate."""
    own, told = run(kind="Doubled", replicas=2, optimizer=SgdSettings(learning_rate=0.05, momentum=0.0))
    plain, _ = run(kind="plain", optimizer=SgdSettings(learning_rate=0.1, momentum=0.0))
    np.testing.assert_allclose(own, plain, atol=1e-6)
    terse, said = run(kind="Terse", optimizer=SgdSettings(learning_rate=0.05, momentum=0.0))
    np.testing.assert_allclose(terse, plain, atol=1e-6)
    assert all(row["train/loss"] > 0 for row in said.rows.values())
    assert all("train/doubled" in row and "val/accuracy" in row for row in told.rows.values())
    where = one_device()
    built = built_of({"_target_": f"{__name__}.network"}, DATASET, where)
    with pytest.raises(UserError, match=r"Doubled defines its own train_step.*Try: train=fit"):
        train(built, DATASET, where, settings())


@pytest.mark.parametrize("changes", [
    {"kind": "Doubled", "callbacks": [Noting()]},
    {"kind": "Drawing", "optimizer": SgdSettings(ema_momentum=0.9, ema_use=True), "restore_best": False},
    {"replicas": 2, "schedule": CosineSettings()},
], ids=["own step", "EMA, noise without a seed", "replicas"])  # fmt: skip
def test_a_resumed_run_equals_an_uninterrupted_one(changes: dict[str, Any], tmp_path: Path) -> None:
    """Within an epoch, and after its last step, where what `train_step` returns beside metrics is known no more."""
    whole, told = run(**changes)
    for at in (13, 16):
        stopped.stop(folder=tmp_path, at=at, **given(**changes))
    resumed, again = run(tmp_path, **changes)
    assert (again.resumed_from, again.rows) == (16, told.rows)
    np.testing.assert_array_equal(whole, resumed)
    assert (tmp_path / "checkpoints" / "best.weights.h5").exists()
    if "callbacks" in changes:
        assert [row["train/noted"] for row in told.rows.values()] == [0, 1, 2]


@pytest.mark.parametrize("by", ["loop", "fit"])
def test_what_a_loss_of_the_network_s_own_passes_over_is_refused(by: str) -> None:
    assert (run(kind="Asking", by=by, label_smoothing=0.1)[0] != run(kind="Asking", by=by)[0]).any()
    passing, plain = (run(kind=kind, by=by, class_weights="balanced")[0] for kind in ("Passing", "plain"))
    np.testing.assert_allclose(passing, plain, atol=1e-6)
    with pytest.raises(UserError, match=r"train.label_smoothing has no effect, as Deaf computes its own loss"):
        run(kind="Deaf", by=by, label_smoothing=0.1)
    with pytest.raises(UserError, match=r"train\.class_weights has no effect, .*Try: train\.class_weights=null"):
        run(kind="Asking", by=by, class_weights="balanced")


def test_an_ema_that_is_not_used_is_not_the_result() -> None:
    kept, _ = run(optimizer=SgdSettings(ema_momentum=0.999), restore_best=False)
    plain, _ = run(restore_best=False)
    np.testing.assert_array_equal(kept, plain)


def with_a_bright_image() -> Any:
    """Return the digits with one image whose gradient overflows in float16; it is in the part of one replica."""
    images = np.array(DATASET.train.images[:], np.float32)
    images[5] *= 1e6
    return with_bright_images(DATASET, images)


def test_in_mixed_float16_replicas_equal_one_device_and_skip_the_same_steps() -> None:
    """An overflow in one replica must be seen by both: else their weights would differ from then on."""
    policy = partial(built_of, MlpSettings(hidden=[16]), policy="mixed_float16")
    plain: dict[str, Any] = {"build": policy, "optimizer": SgdSettings(learning_rate=0.05, momentum=0.0), "epochs": 2}
    for data in (DATASET, with_a_bright_image()):
        found = [run(replicas=replicas, dataset=data, **plain) for replicas in (1, 2)]
        (one, told), (two, again) = found
        assert np.abs(one - two).max() <= 4 * 2.0**-11 * max(1, np.abs(one).max())
        skipped = [row["train/skipped_steps"] for row in told.rows.values()]
        assert [row["train/skipped_steps"] for row in again.rows.values()] == skipped
        assert (skipped[-1] > 0) == (data is not DATASET)
