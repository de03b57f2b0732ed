"""The `train` stage: epochs of the training loop, with validation, callbacks and the best weights."""

import math
import time
from collections.abc import Mapping
from pathlib import Path

import keras

from stages.batches import steps_per_epoch, training_input
from stages.callbacks import build_callbacks
from stages.errors import UserError
from stages.loop import Loop
from stages.loss_scale import LEAST
from stages.optimizers import Rate, build_optimizer, last_rate, learning_rate
from stages.plots import plot_history
from stages.reporter import Reporter, Silent
from stages.results import Dataset, Model, Record, Strategy, Trained
from stages.scoring import Scorer
from stages.settings.train import TrainSettings


def train(
    model: Model,
    dataset: Dataset,
    strategy: Strategy,
    settings: TrainSettings,
    reporter: Reporter | None = None,
    folder: Path | None = None,
) -> Trained:
    """Trains `model` in place and returns it with the best epoch's weights (or the last's, by `restore_best`).

    Args:
        reporter: is told every epoch's metrics, and the progress within.
        folder: the run's; takes `checkpoints/best.weights.h5` and `plots/history.png`. None: no files.

    Raises:
        UserError: where the replicas cannot share the batch, or the loss is no longer finite.
    """
    settings.check_share(strategy.replicas)
    per_epoch = steps_per_epoch(dataset.train, settings.batch_size)
    with strategy.distribution.scope():
        rate = learning_rate(settings.optimizer.learning_rate, settings.schedule, per_epoch, settings.epochs)
        optimizer = build_optimizer(settings.optimizer, rate)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=model.outputs == "logits")
        # For callbacks, which look for `model.optimizer`; the loss scale is the loop's own.
        model.network.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False, auto_scale_loss=False)
    best, callbacks = build_callbacks(settings)
    callbacks.set_model(model.network)
    loop = Loop(strategy, model, optimizer, settings.batch_size, settings.seed)
    epochs = _Epochs(model, dataset, strategy, settings, loop, rate, callbacks)
    history = epochs.run(reporter or Silent())
    if settings.restore_best:
        best.restore()
    files = {}
    if folder is not None:
        best.save(folder / "checkpoints" / "best.weights.h5")
        files["plots"] = plot_history(history, best.best_epoch, folder / "plots" / "history.png")
    monitored = _tracked(settings.monitor).replace("/", "/best_")  # such as val/best_loss
    metrics = {"train/best_epoch": best.best_epoch, monitored: best.best_value}
    return Trained(model, tuple(history), best.best_epoch, epochs.step, Record(metrics=metrics, files=files))


class _Epochs:
    """The epochs of one run. `step` counts the steps that are over."""

    def __init__(
        self,
        model: Model,
        dataset: Dataset,
        strategy: Strategy,
        settings: TrainSettings,
        loop: Loop,
        rate: Rate,
        callbacks: keras.callbacks.CallbackList,
    ) -> None:
        self.step = 0
        self._network, self._dataset, self._settings = model.network, dataset, settings
        self._loop, self._rate, self._callbacks = loop, rate, callbacks
        self._scorer = Scorer(strategy, model, dataset.num_classes)
        self._per_epoch = steps_per_epoch(dataset.train, settings.batch_size)
        source = training_input(dataset, settings.batch_size, settings.seed, settings.epochs)
        self._batches = iter(strategy.distribution.distribute_datasets_from_function(source))
        self._clock = Clock()

    def run(self, reporter: Reporter) -> list[Mapping[str, float]]:
        """Returns the metrics of each epoch, by the names under which they are tracked."""
        history: list[Mapping[str, float]] = []
        self._network.stop_training = False
        self._callbacks.on_train_begin()
        logs: dict[str, float] = {}
        for epoch in range(self._settings.epochs):
            self._callbacks.on_epoch_begin(epoch)
            logs = self._train_epoch(epoch, reporter)
            scores = self._scorer.score(self._dataset.val, max(self._settings.batch_size, 256))
            if not math.isfinite(scores.loss):
                raise self._diverged(f"the validation loss is {scores.loss}")
            logs |= {"val_loss": scores.loss, "val_accuracy": scores.accuracy}
            self._callbacks.on_epoch_end(epoch, logs)
            history.append({_tracked(name): float(value) for name, value in logs.items()} | self._clock.rates())
            reporter.metrics(history[-1], step=epoch + 1)
            reporter.say(self._line(epoch, logs))
            if self._network.stop_training:
                break
        self._callbacks.on_train_end(logs)
        return history

    def _train_epoch(self, epoch: int, reporter: Reporter) -> dict[str, float]:
        self._loop.totals.reset()
        done, logs = 0, {}
        while done < self._per_epoch and not self._network.stop_training:
            # The very first step is called alone: it is the one that traces, and no rate counts it.
            steps = 1 if self.step == 0 else min(self._settings.steps_per_call, self._per_epoch - done)
            self._callbacks.on_train_batch_begin(done)
            began = time.perf_counter()
            logs = self._loop.run(self._batches, self.step, steps)
            if self.step:
                self._clock.add(time.perf_counter() - began, steps, self._examples(done, steps))
            self.step, done = self.step + steps, done + steps
            self._check_finite(logs["loss"])
            self._callbacks.on_train_batch_end(done - 1, logs)
            total = self._per_epoch * self._settings.epochs
            note = f"epoch {epoch + 1}/{self._settings.epochs}  loss {logs['loss']:.4f}"
            reporter.progress(self.step, total, self._clock.images_per_second, note)
        return {**logs, "learning_rate": last_rate(self._network.optimizer, self._rate)}

    def _examples(self, done: int, steps: int) -> int:
        size = self._settings.batch_size
        return min((done + steps) * size, len(self._dataset.train)) - done * size

    def _check_finite(self, loss: float) -> None:
        scale = self._loop.loss_scale
        if scale is not None and float(scale.value.numpy()) < LEAST:
            raise self._diverged("float16 overflows however small the loss is scaled")
        if scale is None and not math.isfinite(loss):  # with a scale, steps that overflow are skipped and not counted
            raise self._diverged(f"the loss is {loss}")

    def _diverged(self, why: str) -> UserError:
        rate = self._settings.optimizer.learning_rate
        return UserError(
            f"training diverged by step {self.step} (epoch {(self.step - 1) // self._per_epoch + 1}): {why}",
            "finite losses",
            f"optimizer.learning_rate={rate / 10:g}, or schedule.warmup_epochs=1, or precision=float32",
        )

    def _line(self, epoch: int, logs: Mapping[str, float]) -> str:
        rate = self._clock.images_per_second
        speed = f"{rate:,.0f} images/s" if rate else "-"
        left = self._per_epoch * (self._settings.epochs - epoch - 1) * self._clock.step_seconds
        width = len(str(self._settings.epochs))
        names = ("loss", "accuracy", "val_loss", "val_accuracy")
        means = "  ".join(f"{name} {logs[name]:.4f}" for name in names)
        return f"epoch {epoch + 1:{width}}/{self._settings.epochs}  {means}  {speed}  {left:.0f} s left"


class Clock:
    """Seconds and examples of training steps alone: no tracing, validation, callback or checkpoint."""

    def __init__(self) -> None:
        self.seconds, self.steps, self.examples = 0.0, 0, 0

    def add(self, seconds: float, steps: int, examples: int) -> None:
        self.seconds, self.steps, self.examples = self.seconds + seconds, self.steps + steps, self.examples + examples

    @property
    def images_per_second(self) -> float | None:
        return self.examples / self.seconds if self.steps else None

    @property
    def step_seconds(self) -> float:
        return self.seconds / self.steps if self.steps else 0.0

    def rates(self) -> dict[str, float]:
        """Returns the rates of the run so far; nothing after a single step."""
        if not self.steps:
            return {}
        rate = self.examples / self.seconds
        return {"train/images_per_second": rate, "train/step_milliseconds": 1000 * self.step_seconds}


def _tracked(name: str) -> str:
    """Returns the tracked name of a Keras log: `val_loss` is `val/loss`, `loss` is `train/loss`."""
    return f"val/{name[4:]}" if name.startswith("val_") else f"train/{name}"
