"""The epochs of a run: steps, validation, callbacks, what is reported."""

import math
import time
from collections.abc import Mapping

import keras

from stages import history
from stages.batches import steps_per_epoch
from stages.coordinated import Coordinated
from stages.errors import UserError
from stages.history import Clock
from stages.loop import Loop
from stages.loss_scale import LEAST
from stages.optimizers import Rate, last_rate
from stages.reporter import Reporter
from stages.results import Dataset, Model, Strategy
from stages.scoring import Scorer
from stages.settings.train import TrainSettings
from stages.step import Step


class Epochs:
    """`step` counts the steps that are over; `scored` is the model that is validated."""

    def __init__(
        self,
        model: Model,
        dataset: Dataset,
        strategy: Strategy,
        settings: TrainSettings,
        step: Step,
        rate: Rate,
        callbacks: keras.callbacks.CallbackList,
    ) -> None:
        self.step = 0
        self._network, self._dataset, self._settings = model.network, dataset, settings
        self._training, self._rate, self._callbacks = step, rate, callbacks
        self._engine = (Coordinated if strategy.coordinator else Loop)(strategy, step, dataset, settings)
        self.scored = model.on_one_device() if strategy.coordinator else model
        self._scorer = Scorer(strategy, self.scored, dataset.num_classes)
        self._per_epoch = steps_per_epoch(dataset.train, settings.batch_size)
        self._clock = Clock()

    @property
    def steps_per_call(self) -> int:
        return self._engine.steps_per_call

    def run(self, reporter: Reporter) -> list[Mapping[str, float]]:
        """Returns the metrics of each epoch, by the names under which they are tracked."""
        rows: list[Mapping[str, float]] = []
        self._network.stop_training = False
        self._callbacks.on_train_begin()
        logs: dict[str, float] = {}
        averages = self._training.averages if self._settings.optimizer.ema_use else None
        for epoch in range(self._settings.epochs):
            self._callbacks.on_epoch_begin(epoch)
            logs = self._train_epoch(epoch, reporter)
            if averages is not None:  # validation and callbacks see the weights that will be the result
                averages.swap()
            logs |= self._validate()
            self._callbacks.on_epoch_end(epoch, logs)
            rows.append(history.row(logs, self._clock) | self._scale())
            reporter.metrics(rows[-1], step=epoch + 1)
            reporter.say(history.line(epoch, self._settings.epochs, self._per_epoch, logs, self._clock))
            is_last = self._network.stop_training or epoch == self._settings.epochs - 1
            if averages is not None and not is_last:
                averages.swap()
            if is_last:
                break
        self._callbacks.on_train_end(logs)
        return rows

    def take_over(self) -> Model:
        """Returns the scored model with the present weights."""
        if self.scored.network is not self._network:
            self.scored.network.set_weights(self._network.get_weights())
        return self.scored

    def _train_epoch(self, epoch: int, reporter: Reporter) -> dict[str, float]:
        self._training.reset()
        done, logs = 0, {}
        while done < self._per_epoch and not self._network.stop_training:
            # The very first step is called alone: it is the one that traces, and no rate counts it.
            steps = 1 if self.step == 0 else min(self._engine.steps_per_call, self._per_epoch - done)
            self._callbacks.on_train_batch_begin(done)
            began = time.perf_counter()
            logs = self._engine.run(self.step, steps)
            if self.step:
                self._clock.add(time.perf_counter() - began, steps, self._examples(done, steps))
            self.step, done = self.step + steps, done + steps
            self._check_finite(logs["loss"])
            self._callbacks.on_train_batch_end(done - 1, logs)
            total = self._per_epoch * self._settings.epochs
            note = f"epoch {epoch + 1}/{self._settings.epochs}  loss {logs['loss']:.4f}"
            reporter.progress(self.step, total, self._clock.images_per_second, note)
        return {**logs, "learning_rate": last_rate(self._network.optimizer, self._rate)}

    def _validate(self) -> dict[str, float]:
        self.take_over()
        scores = self._scorer.score(self._dataset.val, max(self._settings.batch_size, 256))
        if not math.isfinite(scores.loss):
            raise self._diverged(f"the validation loss is {scores.loss}")
        return {"val_loss": scores.loss, "val_accuracy": scores.accuracy}

    def _examples(self, done: int, steps: int) -> int:
        size = self._settings.batch_size
        return min((done + steps) * size, len(self._dataset.train)) - done * size

    def _scale(self) -> dict[str, float]:
        scale = self._training.loss_scale
        if scale is None:
            return {}
        skipped = float(scale.skipped_steps.numpy())
        return {"train/loss_scale": float(scale.value.numpy()), "train/skipped_steps": skipped}

    def _check_finite(self, loss: float) -> None:
        scale = self._training.loss_scale
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
