"""The epochs of a phase: steps by its engine, validation, callbacks, checkpoints, reports."""

import math
import time
from contextlib import nullcontext
from typing import Protocol

from stages.data.batches import steps_per_epoch
from stages.distribution.collectives import any_worker, has_workers
from stages.errors import UserError
from stages.optimization.exact_apply import LEAST_SCALE
from stages.optimization.optimizers import last_rate
from stages.optimization.train_step import Step
from stages.reporter import Stop
from stages.results import Dataset, Strategy
from stages.safe_places import safe_place
from stages.settings.train import TrainSettings
from stages.training.choices import note_steps
from stages.training.epoch_metrics import epoch_line, epoch_metrics
from stages.training.loop import Loop
from stages.training.memory import memory_for_batch
from stages.training.parameter_server import Coordinated
from stages.training.phase_setup import BuiltPhase, Training


class Engine(Protocol):
    """Takes steps, several in a call.

    steps_per_call: steps that the next call should take.
    waited: seconds that the last call waited for its batches; None where that cannot be measured.
    """

    @property
    def steps_per_call(self) -> int: ...

    @property
    def waited(self) -> float | None: ...

    def run(self, first_step: int, steps: int) -> dict[str, float]:
        """Takes `steps` steps, the first of which is the run's `first_step`; returns the epoch's means so far."""


def build_engine(strategy: Strategy, step: Step, dataset: Dataset, settings: TrainSettings, first_step: int) -> Engine:
    """Returns the engine for `strategy`, whose next step is the run's `first_step`."""
    if strategy.coordinator is not None:
        return Coordinated(strategy, step, dataset, settings)
    return Loop(strategy, step, dataset, settings, first_step)


class _StoppedError(Exception):
    """The run should stop before the validation is complete."""


class Epochs:
    """The epochs of a phase that has been started, by the steps of `engine`."""

    def __init__(self, training: Training, built: BuiltPhase, engine: Engine) -> None:
        self._training = training
        self._built = built
        self._engine = engine
        self._callbacks = training.callbacks
        self._reporter = training.reporter
        self._timing = training.callbacks.timing
        self._network = training.model.network
        self._strategy = training.strategy
        self._settings = built.phase.settings
        self._progress = built.progress
        self._last_epoch = built.last_epoch
        self._all_epochs = built.last_epoch + built.phase.later
        """Epochs of all phases, as far as they are known."""
        self._per_epoch = steps_per_epoch(built.dataset.train, self._settings.batch_size)
        self._is_traced = False
        # A coordinator adapts the number as it goes; it decides only how often workers wait for each other.
        self._chooses_steps = self._settings.steps_per_call is None and self._strategy.coordinator is None

    def run(self) -> None:
        """Trains until the end of the phase; leaves the network with the weights of the last validation."""
        progress = self._progress
        with self._reporter.stopping() as stop:
            while not progress.finished:
                self._train_epoch(stop)
                self._reporter.doing(f"validating on {len(self._built.validation):,} images")
                with self._built.validation.result_weights():  # callbacks see them, too
                    with self._timing.of("validation"):
                        validated = self._validate(stop)
                    if validated is not None:
                        progress.logs |= validated
                        self._callbacks.on_epoch_end(progress.epoch, progress.logs)
                        progress.logs |= self._callbacks.logs
                if validated is None:
                    self._keep(stop)  # ends the run; it resumes with this validation
                self._report()
                progress.epoch = progress.epoch + 1
                progress.done = 0
                [self._network.stop_training] = any_worker(self._strategy, [bool(self._network.stop_training)])
                progress.finished = self._network.stop_training or progress.epoch >= self._last_epoch
                if not progress.finished:
                    self._keep(stop)
            self._reporter.doing("writing a checkpoint")
            self._save()
            with self._timing.of("checkpoints"):
                self._training.checkpoints.wait()
            if any_worker(self._strategy, [stop.requested])[0]:
                stop.now()
        if not self._built.on_features and progress.clock.advice():  # features are in memory
            self._reporter.warn(progress.clock.advice())
        self._built.validation.use_result_weights()
        self._callbacks.on_train_end(progress.logs)
        progress.outside = dict(self._callbacks.outside)

    def _train_epoch(self, stop: Stop) -> None:
        """Trains for the rest of an epoch."""
        progress = self._progress
        if progress.done:
            logs = self._built.step.means()
        else:
            self._built.step.reset()
            self._callbacks.on_epoch_begin(progress.epoch)
            logs = {}
        # Without a step there would be no loss to report: a callback that stops before the first one stops after it.
        while progress.done < self._per_epoch and not (logs and self._network.stop_training):
            steps = self._steps()
            self._callbacks.on_train_batch_begin(progress.done)
            began = time.perf_counter()
            interruptible = nullcontext() if self._is_traced else stop.nothing_to_keep()  # tracing may take minutes
            fitting = memory_for_batch("train.batch_size", self._settings.batch_size)
            with self._timing.of("steps" if self._is_traced else "build"), interruptible, fitting:
                logs = self._engine.run(progress.step, steps)
            if self._is_traced:
                seconds = time.perf_counter() - began
                examples = self._examples(progress.done, steps)
                progress.clock.add(seconds, steps, examples, self._engine.waited)
                if self._engine.waited is not None:
                    self._timing.move("steps", "input_wait", self._engine.waited)
            if self._is_traced and self._chooses_steps:
                note_steps(progress, self._engine.steps_per_call, self._reporter)
            self._is_traced = True
            progress.step = progress.step + steps
            progress.done = progress.done + steps
            self._check_finite(logs["loss"])
            self._callbacks.on_train_batch_end(progress.done - 1, logs)
            total = self._per_epoch * self._all_epochs
            note = f"epoch {progress.epoch + 1}/{self._all_epochs}  loss {logs['loss']:.4f}"
            rate = progress.clock.per_second
            if self._built.on_features and rate:
                note = f"{note}  {rate:,.0f} features/s"
                rate = None
            self._reporter.progress(progress.step, total, rate, note)
            self._keep(stop)
        progress.logs = {**logs, "learning_rate": last_rate(self._network.optimizer, self._built.rate)}

    def _steps(self) -> int:
        """Returns the number of steps of the next call; the first call is a single step, for tracing, and not timed."""
        limits = (self._per_epoch - self._progress.done, self._training.checkpoints.steps_left(self._progress.step))
        steps = self._engine.steps_per_call if self._is_traced else 1
        return min(steps, *(limit for limit in limits if limit is not None))

    def _keep(self, stop: Stop) -> None:
        """Writes a checkpoint where one is due or the run should stop; several workers decide together.

        A callback that stops one worker stops all: the others would wait for its next step forever.
        """
        flags = [
            self._training.checkpoints.due(self._progress.step),
            stop.requested,
            bool(self._network.stop_training),
        ]
        due, stops, self._network.stop_training = any_worker(self._strategy, flags)
        if due or stops:
            self._progress.stopping = self._network.stop_training
            self._save()
        if stops:
            self._training.checkpoints.wait()
            any_worker(self._strategy, [True])  # no worker leaves before the chief has written
            stop.now()

    def _save(self) -> None:
        self._progress.added = dict(self._callbacks.added)
        self._progress.outside = dict(self._callbacks.outside)
        with self._timing.of("checkpoints"):
            self._training.checkpoints.save(self._built.state.read(self._progress))

    def _validate(self, stop: Stop) -> dict[str, float] | None:
        """Returns loss and accuracy on the validation split; for callbacks it is a validation of one batch.

        None where the run stops before they are known; it resumes with this validation. It does not stop here where the
        user's callbacks would be called twice, nor with several workers, which agree on it at the epoch's end.
        """
        may_stop = not has_workers(self._strategy) and not self._settings.callbacks

        def check_stop() -> None:
            safe_place()
            if may_stop and stop.requested:
                raise _StoppedError

        self._callbacks.on_test_begin()
        self._callbacks.on_test_batch_begin(0)
        try:
            logs = self._built.validation.score(check_stop)
        except _StoppedError:
            return None
        if not math.isfinite(logs["loss"]):
            raise self._diverged(f"the validation loss is {logs['loss']}")
        if (invalid := self._built.validation.finite.invalid()) is not None:
            raise self._diverged(f"{invalid} has values that are not finite, though the loss is")
        self._callbacks.on_test_batch_end(0, logs)
        self._callbacks.on_test_end(logs)
        return {f"val_{name}": value for name, value in logs.items()}

    def _report(self) -> None:
        progress = self._progress
        phase = self._built.phase
        several = phase.index or phase.later
        number = {"train/phase": float(phase.index + 1)} if several else {}
        row = epoch_metrics(progress.logs, progress.clock, self._callbacks.warn_once)
        progress.rows.append(row | self._scale() | number)
        self._reporter.metrics(progress.rows[-1], step=progress.epoch + 1)
        self._reporter.log(epoch_line(progress.epoch, self._all_epochs, self._per_epoch, progress.logs, progress.clock))

    def _examples(self, done: int, steps: int) -> int:
        size = self._settings.batch_size
        return min((done + steps) * size, len(self._built.dataset.train)) - done * size

    def _scale(self) -> dict[str, float]:
        scale = self._built.step.loss_scale
        if scale is None:
            return {}
        skipped = float(scale.skipped_steps.numpy())
        return {"train/loss_scale": float(scale.dynamic_scale.numpy()), "train/skipped_steps": skipped}

    def _check_finite(self, loss: float) -> None:
        scale = self._built.step.loss_scale
        if scale is not None and float(scale.dynamic_scale.numpy()) < LEAST_SCALE:
            raise self._diverged("float16 overflows however small the loss is scaled")
        if scale is None and not math.isfinite(loss):  # with a scale, steps that overflow are skipped and not counted
            raise self._diverged(f"the loss is {loss}")

    def _diverged(self, why: str) -> UserError:
        rate = self._settings.optimizer.learning_rate
        step = self._progress.step
        return UserError(
            f"training diverged by step {step} (epoch {self._progress.epoch + 1}): {why}",
            "finite losses and weights",
            f"optimizer.learning_rate={rate / 10:g}, or schedule.warmup_epochs=1, or precision=float32",
        )
