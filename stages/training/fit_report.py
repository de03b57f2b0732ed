"""The callback by which training with Keras' `Model.fit` reports and writes checkpoints, as the training loop does."""

import math
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field

import keras

from stages.callbacks.callback_list import Callbacks
from stages.checkpoints.files import Checkpoint, Checkpoints
from stages.checkpoints.forks import is_fork, report_fork
from stages.checkpoints.progress import Progress
from stages.checkpoints.state import State, progress_of
from stages.data.batches import steps_per_epoch
from stages.errors import UserError
from stages.optimization.optimizers import Rate, last_rate
from stages.reporter import Reporter, Stop
from stages.results import Dataset
from stages.safe_places import safe_place
from stages.settings.train import FitSettings
from stages.training.epoch_metrics import epoch_line, epoch_metrics, report_completed
from stages.training.validation import FiniteWeights


@dataclass(eq=False)
class FitReport(keras.callbacks.Callback):
    """Reports each epoch as the training loop does, and writes checkpoints.

    validate: returns loss and accuracy on the validation split. callbacks: all of the training, this one as the last;
    set before training begins.
    """

    dataset: Dataset
    settings: FitSettings
    rate: Rate
    reporter: Reporter
    state: State
    checkpoints: Checkpoints
    stop: Stop
    validate: Callable[[], dict[str, float]]
    checkpoint: InitVar[Checkpoint | None]
    callbacks: Callbacks = field(init=False)

    def __post_init__(self, checkpoint: Checkpoint | None) -> None:
        super().__init__()
        self.progress = progress_of(checkpoint, same_order=False) if checkpoint is not None else Progress()
        self._start = checkpoint
        self._last = checkpoint
        self._per_epoch = steps_per_epoch(self.dataset.train, self.settings.batch_size)
        self._is_traced = False

    def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
        self.callbacks.timing.add("build", self.callbacks.between)
        self._finite = FiniteWeights(self.model.trainable_weights)
        self.state.begin()  # last of all callbacks, which reset themselves here
        facts = self._start.facts if self._start is not None and is_fork(self._start) else None
        if self._start is not None:
            self.progress = self.state.restore(self._start)
            self._start = None
            self.callbacks.outside = dict(self.progress.outside)
            if facts is None:
                self.reporter.resumed(self.progress.step)
            report_completed(self.progress, self.state.notes, self.settings.epochs, self.reporter)
        if facts is not None:
            report_fork(facts, self.progress, self.validate(), self.reporter)

    def on_test_begin(self, logs: Mapping[str, float] | None = None) -> None:
        self.reporter.doing(f"validating on {len(self.dataset.val):,} images")
        self.callbacks.timing.add("validation", self.callbacks.between)

    def on_test_batch_begin(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        self.callbacks.timing.add("validation", self.callbacks.between)

    def on_test_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        self.callbacks.timing.add("validation", self.callbacks.between)
        safe_place()
        self._end_if_asked()

    def on_test_end(self, logs: Mapping[str, float] | None = None) -> None:
        self.callbacks.timing.add("validation", self.callbacks.between)

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        seconds = self.callbacks.between
        size = self.settings.batch_size
        progress = self.progress
        self.callbacks.timing.add("steps" if self._is_traced else "build", seconds)
        before = progress.done
        progress.done = batch + 1
        steps = progress.done - before
        if self._is_traced:
            examples = min(progress.done * size, len(self.dataset.train)) - before * size
            progress.clock.add(seconds, steps, examples)
        self._is_traced = True
        progress.step += steps
        total = self._per_epoch * self.settings.epochs
        loss = (logs or {}).get("loss", float("nan"))
        note = f"epoch {progress.epoch + 1}/{self.settings.epochs}  loss {loss:.4f}"
        self.reporter.progress(progress.step, total, progress.clock.per_second, note)
        self._end_if_asked()

    def _end_if_asked(self) -> None:
        if self.stop.requested:
            if self._last is not None:  # Keras cannot begin within an epoch
                self.checkpoints.save(self._last)
            self.checkpoints.wait()
            self.stop.now()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        progress = self.progress
        loss = (logs or {}).get("loss", float("nan"))
        if not math.isfinite(loss):
            raise UserError(
                f"training diverged by epoch {epoch + 1}: the loss is {loss}", "finite losses", "train=loop"
            )
        if (invalid := self._finite.invalid()) is not None:
            raise UserError(
                f"training diverged by epoch {epoch + 1}: {invalid} has values that are not finite, though the loss is",
                "finite losses and weights",
                f"optimizer.learning_rate={self.settings.optimizer.learning_rate / 10:g}",
            )
        # A callback that lowers the rate for the next epoch logs that of this one.
        metrics = {"learning_rate": last_rate(self.model.optimizer, self.rate)} | self.callbacks.numbers(logs or {})
        progress.rows.append(epoch_metrics(metrics, progress.clock, self.callbacks.warn_once))
        self.reporter.metrics(progress.rows[-1], step=epoch + 1)
        self.reporter.log(epoch_line(epoch, self.settings.epochs, self._per_epoch, metrics, progress.clock))
        progress.epoch = epoch + 1
        progress.done = 0
        progress.finished = self.model.stop_training or progress.epoch >= self.settings.epochs
        progress.outside = dict(self.callbacks.outside)
        with self.callbacks.timing.of("checkpoints"):
            self._last = self.state.read(progress)
            if progress.finished or self.checkpoints.due(progress.step):
                self.checkpoints.save(self._last)

    def on_train_end(self, logs: Mapping[str, float] | None = None) -> None:
        self.reporter.doing("writing a checkpoint")
        with self.callbacks.timing.of("checkpoints"):
            self.checkpoints.wait()
