"""The epochs of a phase: steps, validation, callbacks, checkpoints, reports."""

import math
import time
from contextlib import nullcontext
from typing import Any

from stages.data.batches import steps_per_epoch
from stages.distribution.collectives import any_worker, has_workers
from stages.errors import UserError
from stages.optimization.exact_apply import LEAST_SCALE
from stages.optimization.optimizers import last_rate
from stages.reporter import Stop
from stages.safe_places import safe_place
from stages.training.memory import memory_for_batch
from stages.training.outcome import report_epoch
from stages.training.phase import Phase


class _StoppedError(Exception):
    """The run should stop before the validation is complete."""


class Epochs:
    """Trains a phase that has been started."""

    def __init__(self, phase: Phase) -> None:
        self._phase = phase
        self._session = phase.session
        self._settings = phase.settings
        self._progress = phase.progress
        self._network = phase.session.model.network
        self._per_epoch = steps_per_epoch(phase.dataset.train, phase.settings.batch_size)
        self._is_traced = False
        # A coordinator adapts the number as it goes; it decides only how often workers wait for each other.
        self._chooses_steps = phase.settings.steps_per_call is None and phase.session.strategy.coordinator is None

    def run(self) -> None:
        """Train until the end of the phase; leave the network with the weights of the last validation."""
        progress, session, phase = self._progress, self._session, self._phase
        with session.reporter.stopping() as stop:
            while not progress.finished:
                self._train_epoch(stop)
                session.reporter.doing(f"validating on {len(phase.validation):,} images")
                with phase.validation.result_weights():  # callbacks see them, too
                    with session.timing.of("validation"):
                        validated = self._validate(stop)
                    if validated is not None:
                        progress.logs |= validated
                        self._call("on_epoch_end", progress.epoch, progress.logs)
                if validated is None:
                    self._keep(stop)  # ends the run; it resumes with this validation
                report_epoch(progress, self._own_metrics(), phase.all_epochs, self._per_epoch, session.reporter)
                progress.epoch = progress.epoch + 1
                progress.done = 0
                [self._network.stop_training] = any_worker(session.strategy, [bool(self._network.stop_training)])
                progress.finished = self._network.stop_training or progress.epoch >= phase.last_epoch
                if not progress.finished:
                    self._keep(stop)
            session.reporter.doing("writing a checkpoint")
            self._save()
            with session.timing.of("checkpoints"):
                session.checkpoints.wait()
            if any_worker(session.strategy, [stop.requested])[0]:
                stop.now()
        if not phase.is_on_features and progress.clock.advice():  # features are in memory
            session.reporter.warn(progress.clock.advice())
        phase.validation.use_result_weights()
        self._call("on_train_end", progress.logs)

    def _call(self, hook: str, *arguments: Any) -> None:
        with self._session.timing.of("callbacks"):
            getattr(self._session.callbacks, hook)(*arguments)

    def _train_epoch(self, stop: Stop) -> None:
        """Train for the rest of an epoch."""
        progress, phase = self._progress, self._phase
        if progress.done:
            logs = phase.step.means()
        else:
            phase.step.reset()
            self._call("on_epoch_begin", progress.epoch)
            logs = {}
        # Without a step there would be no loss to report: a callback that stops before the first one stops after it.
        while progress.done < self._per_epoch and not (logs and self._network.stop_training):
            self._call("on_train_batch_begin", progress.done)
            logs = self._take_steps(stop)
            self._check_finite(logs["loss"])
            self._call("on_train_batch_end", progress.done - 1, logs)
            note = f"epoch {progress.epoch + 1}/{phase.all_epochs}  loss {logs['loss']:.4f}"
            rate = progress.clock.per_second
            if phase.is_on_features and rate:
                note, rate = f"{note}  {rate:,.0f} features/s", None
            self._session.reporter.progress(progress.step, self._per_epoch * phase.all_epochs, rate, note)
            self._keep(stop)
        progress.logs = {**logs, "learning_rate": last_rate(self._network.optimizer, phase.rate)}

    def _take_steps(self, stop: Stop) -> dict[str, float]:
        """Take the steps of one call; return the epoch's means so far.

        The first call is a single step, which is traced, and not timed.
        """
        progress, session, loop = self._progress, self._session, self._phase.loop
        limits = (self._per_epoch - progress.done, session.checkpoints.steps_left(progress.step))
        steps = min(loop.steps_per_call if self._is_traced else 1, *(limit for limit in limits if limit is not None))
        began = time.perf_counter()
        interruptible = nullcontext() if self._is_traced else stop.nothing_to_keep()  # tracing may take minutes
        fitting = memory_for_batch("train.batch_size", self._settings.batch_size)
        with session.timing.of("steps" if self._is_traced else "build"), interruptible, fitting:
            logs = loop.run(progress.step, steps)
        if self._is_traced:
            size = self._settings.batch_size
            examples = min((progress.done + steps) * size, len(self._phase.dataset.train)) - progress.done * size
            progress.clock.add(time.perf_counter() - began, steps, examples, loop.waited)
            session.timing.move("steps", "input_wait", loop.waited or 0.0)
            if self._chooses_steps:
                self._chooses_steps = False
                chosen = f"train.steps_per_call={loop.steps_per_call}"
                session.reporter.log(f"{chosen}: as many as keep Python's share of the time under 2 %")
        self._is_traced = True
        progress.step = progress.step + steps
        progress.done = progress.done + steps
        return logs

    def _keep(self, stop: Stop) -> None:
        """Write a checkpoint where one is due or the run should stop; several workers decide together.

        A callback that stops one worker stops all: the others would wait for its next step forever.
        """
        session = self._session
        flags = [session.checkpoints.due(self._progress.step), stop.requested, bool(self._network.stop_training)]
        due, stops, self._network.stop_training = any_worker(session.strategy, flags)
        if due or stops:
            self._progress.stopping = self._network.stop_training
            self._save()
        if stops:
            session.checkpoints.wait()
            any_worker(session.strategy, [True])  # no worker leaves before the chief has written
            stop.now()

    def _save(self) -> None:
        session = self._session
        with session.timing.of("checkpoints"):
            session.checkpoints.save(self._phase.state.read(self._progress, session.reporter.is_secret))

    def _validate(self, stop: Stop) -> dict[str, float] | None:
        """Return loss and accuracy on the validation split; for callbacks it is a validation of one batch.

        None where the run stops before they are known; it resumes with this validation. It does not stop here where the
        user's callbacks would be called twice, nor with several workers, which agree on it at the epoch's end.
        """
        may_stop = not has_workers(self._session.strategy) and not self._settings.callbacks

        def check_stop() -> None:
            safe_place()
            if may_stop and stop.requested:
                raise _StoppedError

        self._call("on_test_begin")
        self._call("on_test_batch_begin", 0)
        try:
            logs = self._phase.validation.score(check_stop)
        except _StoppedError:
            return None
        if not math.isfinite(logs["loss"]):
            raise self._diverged(f"the validation loss is {logs['loss']}")
        if (invalid := self._phase.validation.invalid_weight()) is not None:
            raise self._diverged(f"{invalid} has values that are not finite, though the loss is")
        self._call("on_test_batch_end", 0, logs)
        self._call("on_test_end", logs)
        return {f"val_{name}": value for name, value in logs.items()}

    def _own_metrics(self) -> dict[str, float]:
        """Metrics of the epoch that no callback sees."""
        plan, scale = self._phase.plan, self._phase.step.loss_scale
        metrics = {"train/phase": plan.index + 1.0} if plan.is_one_of_several else {}
        if scale is not None:
            metrics["train/loss_scale"] = float(scale.dynamic_scale.numpy())
            metrics["train/skipped_steps"] = float(scale.skipped_steps.numpy())
        return metrics

    def _check_finite(self, loss: float) -> None:
        scale = self._phase.step.loss_scale
        if scale is not None and float(scale.dynamic_scale.numpy()) < LEAST_SCALE:
            raise self._diverged("float16 overflows however small the loss is scaled")
        if scale is None and not math.isfinite(loss):  # with a scale, steps that overflow are skipped and not counted
            raise self._diverged(f"the loss is {loss}")

    def _diverged(self, why: str) -> UserError:
        rate = self._settings.optimizer.learning_rate
        return UserError(
            f"training diverged by step {self._progress.step} (epoch {self._progress.epoch + 1}): {why}",
            "finite losses and weights",
            f"optimizer.learning_rate={rate / 10:g}, or schedule.warmup_epochs=1, or precision=float32",
        )
