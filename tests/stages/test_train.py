"""Epochs: callbacks, best weights, early stopping, rates."""

from collections.abc import Mapping
from pathlib import Path

import keras
import numpy as np
import pytest

from stages.errors import UserError
from stages.evaluation.eval_step import Scorer
from stages.results import Trained
from stages.settings.optimizer import CosineSettings, SgdSettings
from stages.train import train
from tests.stages.experiments import adam, flat, mirrored, one_device, real_digits, settings, small_cnn
from tests.stages.images import Telling

pytestmark = pytest.mark.slow


class Heard(keras.callbacks.Callback):
    """A callback that notes what it is told, and stops after some batches if asked to."""

    def __init__(self, stop_after_batches: int = 10**9) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.logs: list[dict[str, float]] = []
        self.batches = 0
        self.stop_after = stop_after_batches

    def on_train_begin(self, logs: object = None) -> None:
        self.calls.append("begin")

    def on_train_end(self, logs: object = None) -> None:
        self.calls.append("end")

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self.calls.append(f"epoch {epoch}")

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        assert logs is not None
        assert {"loss", "accuracy"} <= logs.keys()
        self.batches = batch + 1
        if self.batches >= self.stop_after:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        self.logs.append(dict(logs or {}))
        self.calls.append(f"epoch {epoch} over")


def run(where: object = None, **changes: object) -> Trained:
    dataset = real_digits(200)
    strategy = where or one_device()
    return train(small_cnn(dataset, strategy), dataset, strategy, settings(**changes))  # type: ignore[arg-type]


def test_callbacks_are_called_as_keras_calls_them() -> None:
    heard = Heard()
    run(epochs=2, callbacks=[heard])
    assert heard.calls == ["begin", "epoch 0", "epoch 0 over", "epoch 1", "epoch 1 over", "end"]
    assert heard.batches == 4
    assert {"loss", "accuracy", "val_loss", "val_accuracy", "learning_rate"} == heard.logs[0].keys()


def test_a_batch_larger_than_the_data_is_told() -> None:
    """And trains as a batch of all examples does."""
    dataset, strategy = real_digits(200), one_device()
    count = len(dataset.train)
    losses = {}
    for batch_size in (count, count + 1, 4096):
        told = Telling()
        model = small_cnn(dataset, strategy)
        trained = train(model, dataset, strategy, settings(batch_size=batch_size), told)
        losses[batch_size] = trained.history[-1]["train/loss"]
        said = " ".join(told.lines)
        line = f"batch_size={batch_size} is more than the {count} training examples"
        assert (line in said) == (batch_size > count)
    assert len(set(losses.values())) == 1


def test_a_callback_stops_training_within_an_epoch() -> None:
    heard = Heard(stop_after_batches=1)
    trained = run(epochs=5, callbacks=[heard])
    assert trained.steps == 1
    assert len(trained.history) == 1


def test_callbacks_set_the_learning_rate() -> None:
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.1, patience=1, min_delta=100.0)
    trained = run(epochs=4, callbacks=[plateau], optimizer=SgdSettings(learning_rate=0.01))
    rates = [row["train/learning_rate"] for row in trained.history]
    assert rates[0] == pytest.approx(0.01)
    assert rates[-1] < 0.002


def test_callbacks_come_from_the_configuration() -> None:
    given = {"_target_": "keras.callbacks.LambdaCallback"}
    assert len(run(epochs=1, callbacks=[given]).history) == 1
    with pytest.raises(UserError, match=r"train\.callbacks\[0\].*Nope"):
        run(callbacks=[{"_target_": "keras.callbacks.Nope"}])
    with pytest.raises(UserError, match="is no Keras callback"):
        run(callbacks=[{"_target_": "keras.layers.ReLU"}])


def test_the_best_weights_are_the_result(tmp_path: Path) -> None:
    """A rate that grows a hundredfold after two epochs spoils the model; the result is that of the best epoch."""
    dataset, where = real_digits(400), mirrored(2)
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.001 if epoch < 3 else 0.3)
    model = small_cnn(dataset, where)
    trained = train(model, dataset, where, settings(epochs=5, optimizer=adam(), callbacks=[schedule]), folder=tmp_path)
    losses = [row["val/loss"] for row in trained.history]
    assert trained.best_epoch == int(np.argmin(losses)) + 1 < 5
    assert trained.record.metrics["val/best_loss"] == min(losses)
    assert Scorer(where, model).score(dataset.val, 64).loss == pytest.approx(min(losses), rel=1e-6)
    kept = small_cnn(dataset, one_device(), seed=9).network
    kept.load_weights(tmp_path / "checkpoints" / "best.weights.h5")
    np.testing.assert_array_equal(flat(kept), flat(model.network))
    assert (tmp_path / "plots" / "history.png").stat().st_size > 5000


def test_the_last_weights_are_the_result_where_that_is_asked(tmp_path: Path) -> None:
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.001 if epoch < 2 else 0.3)
    dataset, where = real_digits(400), one_device()
    model = small_cnn(dataset, where)
    trained = train(
        model,
        dataset,
        where,
        settings(epochs=4, optimizer=adam(), callbacks=[schedule], restore_best=False),
        folder=tmp_path,
    )
    assert Scorer(where, model).score(dataset.val, 64).loss == pytest.approx(trained.history[-1]["val/loss"])
    model.network.load_weights(tmp_path / "checkpoints" / "best.weights.h5")
    best = min(row["val/loss"] for row in trained.history)
    assert Scorer(where, model).score(dataset.val, 64).loss == pytest.approx(best)


def test_weights_that_only_validation_finds_broken_stop_the_run() -> None:
    with pytest.raises(UserError, match="the validation loss is nan"):
        run(epochs=1, batch_size=200, optimizer=SgdSettings(learning_rate=1e38))


def test_the_rate_that_is_recorded_is_the_one_that_was_used() -> None:
    cosine = CosineSettings()
    trained = run(epochs=2, schedule=cosine, batch_size=100, optimizer=SgdSettings(learning_rate=0.1))
    expected = [0.1 * 0.5 * (1 + np.cos(np.pi * step / 4)) for step in (1, 3)]
    assert [row["train/learning_rate"] for row in trained.history] == pytest.approx(expected)


@pytest.mark.smoke
def test_training_stops_early() -> None:
    rate = SgdSettings(learning_rate=1e-12)  # nothing gets better
    trained = run(epochs=20, early_stopping_patience=2, optimizer=rate, monitor="val_accuracy")
    assert len(trained.history) == 3
    assert trained.best_epoch == 1


def test_every_epoch_is_reported_once_with_rates_of_training_alone() -> None:
    told = Telling()
    dataset, where = real_digits(200), one_device()
    train(small_cnn(dataset, where), dataset, where, settings(epochs=3, steps_per_call=2), reporter=told)
    assert list(told.rows) == [1, 2, 3]
    assert all({"train/loss", "val/accuracy", "train/images_per_second"} <= row.keys() for row in told.rows.values())
    assert [one for one in told.shown if "/" in one] == [f"{step}/12" for step in (1, 3, 4, 6, 8, 10, 12)]
    assert told.lines[0].startswith("train.jit=off: ")
    assert all(line.startswith("epoch ") for line in told.lines[1:])
    assert len(told.lines) == 4
    assert "images/s" in told.lines[-1]
    row = told.rows[3]
    assert row["train/images_per_second"] * row["train/step_milliseconds"] / 1000 == pytest.approx((200 * 3 - 64) / 11)


def test_a_run_is_bit_identical_to_its_repetition() -> None:
    def weights() -> np.ndarray:
        dataset, where = real_digits(300), mirrored(2)
        model = small_cnn(dataset, where, dropout=0.5)
        train(model, dataset, where, settings(epochs=3, optimizer=adam()))
        return flat(model.network)

    np.testing.assert_array_equal(weights(), weights())


def test_the_replicas_must_have_a_share_of_the_batch() -> None:
    with pytest.raises(UserError, match=r"train.batch_size=3 cannot be shared by 4 replicas\. Expected 4 or more"):
        run(mirrored(4), batch_size=3)
