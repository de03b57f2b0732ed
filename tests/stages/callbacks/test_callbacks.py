"""What Keras callbacks add to logs is part of the run; what they keep begins again, or not, with a phase."""

import csv
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from stages.callbacks import Callbacks, build_callbacks, prepare_callbacks
from stages.errors import UserError
from stages.export import export
from stages.results import Model, Trained
from stages.settings.results import ExportSettings
from stages.settings.train import CosineSettings, PlateauSettings, ScheduleSettings, SgdSettings
from stages.training.outcome import first_invalid
from tests.stages.experiments import built_of, mirrored, one_device, real_digits, settings, small_cnn
from tests.stages.training import stopped
from tests.stages.training.stopped import Stopper

pytestmark = pytest.mark.slow

DATASET = real_digits(512)
TASK = DATASET.task


class Adding(keras.callbacks.Callback):
    """Adds to the logs of an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.calls += 1
        own = keras.ops.convert_to_tensor(epoch + 0.5)
        logs |= {"calls": self.calls, "val_own": own, "a[0]": 1.0, "images_per_second": 7.0, "note": "good"}
        logs["val_accuracy"] += 10.0


USUAL: dict[str, Any] = {"dataset": DATASET, "epochs": 2, "steps_per_call": None, "early_stopping_patience": 0}


def run(by: str = "loop", folder: Path | None = None, **changes: Any) -> tuple[Trained, Stopper]:
    return stopped.run(one_device(), folder, by=by, **{**USUAL, "callbacks": [Adding()], **changes})


def test_what_callbacks_add_to_an_epoch_is_in_history_and_files_and_survives_resume(tmp_path: Path) -> None:
    plain, _ = run(callbacks=[])
    whole, told = run()
    for epoch, (row, before) in enumerate(zip(whole.history, plain.history, strict=True)):
        assert (row["val/own"], row["train/a[0]"], row["train/calls"]) == (epoch + 0.5, 1.0, epoch + 1)
        assert row["val/accuracy"] == before["val/accuracy"] + 10.0
        assert row["train/images_per_second"] != 7.0  # training's own
        assert "train/note" not in row
        assert row["train/loss"] == before["train/loss"]
    assert whole.record.metrics["val/best_own"] == whole.best_epoch - 0.5

    def with_a_file() -> list[keras.callbacks.Callback]:
        return [Adding(), keras.callbacks.CSVLogger(str(tmp_path / "logs.csv"))]

    stopped.stop(one_device(), tmp_path, 13, **USUAL, callbacks=with_a_file())
    resumed, again = run("loop", tmp_path, callbacks=with_a_file())
    rows = list(csv.DictReader((tmp_path / "logs.csv").open()))
    assert [row["epoch"] for row in rows] == ["0", "1"]
    assert [row["val_own"] for row in rows] == ["0.5", "1.5"]
    assert again.rows == told.rows
    assert [row["val/own"] for row in resumed.history] == [0.5, 1.5]
    over, third = run("loop", tmp_path, callbacks=with_a_file())
    assert (third.rows, times_aside(over)) == (told.rows, times_aside(whole))


def times_aside(trained: Trained) -> dict[str, float]:
    return {name: value for name, value in trained.record.metrics.items() if "second" not in name}


def test_plateau_and_early_stopping_begin_again_with_a_phase() -> None:
    """By hand: an epoch is a value of the monitor, and none of them is better than the first."""
    plateau: Any = PlateauSettings(patience=1, decay_factor=0.5, final_share=0.2)
    first = settings(schedule=plateau, optimizer=SgdSettings(learning_rate=0.1), early_stopping_patience=3)
    second = replace(first, optimizer=SgdSettings(learning_rate=0.01))
    best, callbacks = build_callbacks(first, TASK, Stopper())
    network = keras.Sequential([keras.layers.Dense(1)])
    network.build((None, 2))
    rates: list[list[float]] = []
    epoch, stopped = 0, []
    for given, losses in ((first, [0.1, 0.2, 0.2, 0.2]), (second, [0.5, 0.6, 0.6, 0.6])):
        network.compile(keras.optimizers.SGD(given.optimizer.learning_rate))
        network.stop_training = False
        callbacks.set_model(network)
        prepare_callbacks(callbacks, given, epoch > 0)
        callbacks.on_train_begin()
        rates.append([])
        for loss in losses:
            callbacks.on_epoch_end(epoch, {"loss": 1.0, "val_loss": loss})
            rates[-1].append(float(network.optimizer.learning_rate))
            stopped.append(network.stop_training)
            epoch += 1
        callbacks.on_train_end()
    assert rates[0] == pytest.approx([0.1, 0.05, 0.025, 0.02])
    assert rates[1] == pytest.approx([0.01, 0.005, 0.0025, 0.002])  # a share of the phase's own rate
    assert stopped == [False, False, False, True] * 2  # each phase has its own patience
    assert (best.best_epoch, best.best_value) == (1, 0.1)  # the best weights are those of both
    [plateau] = [one for one in callbacks.callbacks if isinstance(one, keras.callbacks.ReduceLROnPlateau)]
    assert plateau.min_lr == pytest.approx(0.002)


@pytest.mark.smoke
def test_all_callbacks_of_a_hook_share_one_mapping() -> None:
    class Reading(keras.callbacks.Callback):
        found: Any = None

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            Reading.found = logs["added"]

    class Writing(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["added"] = 3

    logs = {"loss": 1.0}
    Callbacks([Writing(), Reading()]).on_epoch_end(0, logs)
    assert (Reading.found, logs) == (3, {"loss": 1.0, "added": 3.0})


class Poisoning(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        kernel = self.model.trainable_weights[0]
        kernel.assign(np.full(kernel.shape, np.nan, np.float32))


def forgiving(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    """Return a network whose loss is finite over weights that are not, as a ReLU's is that makes 0 of a nan."""
    inputs = keras.Input(input_shape)
    hidden = keras.layers.Dense(8)(keras.layers.Flatten()(inputs))
    hidden = keras.layers.Lambda(lambda x: keras.ops.where(keras.ops.isfinite(x), x, 0.0))(hidden)
    return keras.Model(inputs, keras.layers.Dense(num_classes)(hidden))


class Stopping(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_training = (self.params["epochs"], self.params["steps"]) == (2, 8)


@pytest.mark.parametrize("by", ["loop", "fit"])
def test_weights_that_are_not_finite_end_a_training_though_its_loss_is(by: str) -> None:
    build = partial(built_of, {"_target_": f"{__name__}.forgiving"})
    with pytest.raises(UserError, match=r"diverged by .*kernel is not finite"):
        run(by, build=build, callbacks=[Poisoning()], epochs=1)


def test_any_trained_weight_that_is_not_finite_is_found(tmp_path: Path) -> None:
    network = small_cnn(DATASET, mirrored(2)).network
    assert first_invalid(network.trainable_weights) is None
    for weight in network.trainable_weights[::-1]:
        value = weight.numpy()
        value.flat[-1] = np.inf
        weight.assign(value)
        assert first_invalid(network.trainable_weights) == weight.path
    with pytest.raises(UserError, match="by up to nan"):
        export(Trained(Model(network, TASK, "float32"), (), 1, 0), DATASET, ExportSettings(), tmp_path)


@pytest.mark.parametrize("by", ["loop", "fit"])
def test_a_callback_stops_training_within_an_epoch(by: str) -> None:
    trained, _ = run(by, callbacks=[Stopping()])
    assert (trained.steps, len(trained.history)) == (1, 1)


@pytest.mark.parametrize(("callback", "changes", "said"), [
    (keras.callbacks.ReduceLROnPlateau(), {"schedule": CosineSettings()}, "and schedule=cosine, including"),
    (keras.callbacks.LearningRateScheduler(abs), {"schedule": ScheduleSettings(warmup_epochs=1)}, "warmup_epochs"),
    (keras.callbacks.EarlyStopping("val_acc"), {}, "EarlyStopping monitors val_acc, which is not logged"),
    (keras.callbacks.ModelCheckpoint("x.keras", "val/loss"), {}, "ModelCheckpoint monitors val/loss"),
    (keras.callbacks.SwapEMAWeights(), {}, r"statistics of BatchNorm.*ema_momentum=0\.99 optimizer\.ema_use=true"),
])  # fmt: skip
def test_a_callback_that_cannot_work_is_refused(callback: Any, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=rf"train\.callbacks\[0\] .*{said}"):
        build_callbacks(settings(callbacks=[callback], **changes), TASK, Stopper())


def test_a_callback_may_monitor_what_training_or_another_callback_logs() -> None:
    for monitor in ("loss", "val_accuracy", "learning_rate", "f1"):
        mode = "min" if monitor == "learning_rate" else "max" if monitor == "f1" else "auto"
        own = keras.callbacks.EarlyStopping(monitor, mode=mode)
        build_callbacks(settings(callbacks=[own]), TASK, Stopper(), trained=[*TASK.measured, "f1"])
        assert own.mode == ("min" if monitor in ("loss", "learning_rate") else "max")
    own = keras.callbacks.EarlyStopping("calls", mode="max")
    build_callbacks(settings(callbacks=[Adding(), own]), TASK, Stopper())
    build_callbacks(settings(callbacks=[keras.callbacks.ReduceLROnPlateau()]), TASK, Stopper())
