"""Epochs: callbacks, best weights, early stopping, rates."""

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from stages.errors import UserError
from stages.evaluation.eval_step import Scorer
from stages.results import Strategy, Trained
from stages.settings.train import SgdSettings
from stages.train import train
from tests.stages.experiments import adam, flat, mirrored, one_device, real_digits, settings, small_cnn
from tests.stages.images import Telling

pytestmark = pytest.mark.slow


def run(where: object = None, reporter: Telling | None = None, **changes: object) -> Trained:
    dataset = real_digits(200)
    strategy = where or one_device()
    model = small_cnn(dataset, strategy)  # type: ignore[arg-type]
    return train(model, dataset, strategy, settings(**changes), reporter)  # type: ignore[arg-type]


def test_weights_that_only_validation_finds_broken_stop_the_run() -> None:
    with pytest.raises(UserError, match="the validation loss is nan"):
        run(epochs=1, batch_size=200, optimizer=SgdSettings(learning_rate=1e38))


class Ending(keras.callbacks.Callback):
    """A callback that ends the training after its first epoch."""

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        self.model.stop_training = True


@pytest.mark.smoke
def test_training_stops_early_and_reports_why() -> None:
    rate, told = SgdSettings(learning_rate=1e-12), Telling()  # nothing gets better
    trained = run(None, told, epochs=20, early_stopping_patience=2, optimizer=rate, monitor="val_accuracy")
    assert (len(trained.history), trained.best_epoch) == (3, 1)
    assert told.lines[-1] == "stopped early after epoch 3 of 20: no better val_accuracy for 2 epochs"
    run(None, told := Telling(), epochs=2, callbacks=[Ending()])
    assert told.lines[-1] == "stopped early after epoch 1 of 2, by a callback"
    run(None, told := Telling(), epochs=1, callbacks=[Ending()])
    assert told.lines[-1].startswith("epoch 1/1")


def test_the_replicas_must_have_a_share_of_the_batch() -> None:
    with pytest.raises(UserError, match=r"train.batch_size=3 is too small for 4 replicas\. Expected at least 4"):
        run(mirrored(4), batch_size=3)


class Heard(keras.callbacks.Callback):
    """A callback that notes what it is told: where it is called, and the last step of each call, within its epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def on_train_begin(self, logs: object = None) -> None:
        self.calls.append("begin")

    def on_train_end(self, logs: object = None) -> None:
        self.calls.append("end")

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self.calls.append(f"epoch {epoch}")

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        assert {"loss", "accuracy"} <= (logs or {}).keys()
        self.calls.append(batch)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        assert {"loss", "accuracy", "val_loss", "val_accuracy", "learning_rate"} == (logs or {}).keys()
        self.calls.append(f"epoch {epoch} over")


def test_every_epoch_is_told_once_to_callbacks_and_reports_with_rates_of_training_alone(tmp_path: Path) -> None:
    """And whatever follows its last step is named while it lasts."""
    told, heard, dataset, where = Telling(), Heard(), real_digits(200), one_device()
    given = settings(epochs=3, steps_per_call=2, callbacks=[heard])
    train(small_cnn(dataset, where), dataset, where, given, told, tmp_path)
    epochs = [["epoch 0", 0, 2, 3, "epoch 0 over"], *([f"epoch {n}", 1, 3, f"epoch {n} over"] for n in (1, 2))]
    assert (heard.calls, list(told.rows)) == (["begin", *itertools.chain(*epochs), "end"], [1, 2, 3])
    assert all({"train/loss", "val/accuracy", "train/images_per_second"} <= row.keys() for row in told.rows.values())
    assert [one for one in told.shown if "/" in one] == [f"{step}/12" for step in (1, 3, 4, 6, 8, 10, 12)]
    ends = ["validating on 144 images", "writing a checkpoint", "writing the best weights"]
    assert (told.shown[3], told.shown[-3:]) == (ends[0], ends)
    assert [line.split()[0] for line in told.lines] == ["epoch"] * 3
    assert "images/s" in told.lines[-1]
    row = told.rows[3]
    assert row["train/images_per_second"] * row["train/step_milliseconds"] / 1000 == pytest.approx((200 * 3 - 64) / 11)


def test_a_batch_larger_than_the_data_is_told() -> None:
    """And trains as a batch of all examples does."""
    dataset, strategy = real_digits(200), one_device()
    losses = set()
    for batch_size in (200, 4096):
        told = Telling()
        trained = train(small_cnn(dataset, strategy), dataset, strategy, settings(batch_size=batch_size), told)
        losses.add(trained.history[-1]["train/loss"])
        assert ("batch_size=4096 is larger than the training split (200 images)" in " ".join(told.lines)) == (
            batch_size > 200
        )
    assert len(losses) == 1


@pytest.mark.parametrize(("make", "restore_best"), [(mirrored, True), (one_device, False)], ids=["best", "last"])
def test_the_best_weights_are_the_result_or_the_last_where_that_is_asked(
    make: Callable[[], Strategy], restore_best: bool, tmp_path: Path
) -> None:
    """A rate that grows a hundredfold after three epochs spoils the model; the file has the best weights."""
    dataset, where = real_digits(400), make()
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.001 if epoch < 3 else 0.3)
    given = settings(epochs=5, optimizer=adam(), callbacks=[schedule], restore_best=restore_best)
    model = small_cnn(dataset, where)
    trained = train(model, dataset, where, given, folder=tmp_path)
    losses = [row["val/loss"] for row in trained.history]
    assert trained.best_epoch == int(np.argmin(losses)) + 1 < 5
    assert [row["train/learning_rate"] for row in trained.history] == pytest.approx([0.001] * 3 + [0.3] * 2)
    result = min(losses) if restore_best else losses[-1]
    assert Scorer(where, model).score(dataset.val, 64).loss == pytest.approx(result, rel=1e-6)
    kept = small_cnn(dataset, one_device(), seed=9)
    kept.network.load_weights(tmp_path / "checkpoints" / "best.weights.h5")
    assert Scorer(one_device(), kept).score(dataset.val, 64).loss == pytest.approx(min(losses), rel=1e-6)
    if restore_best:
        assert trained.record.metrics["val/best_loss"] == min(losses)
        np.testing.assert_array_equal(flat(kept.network), flat(model.network))
    assert (tmp_path / "plots" / "history.png").stat().st_size > 5000
