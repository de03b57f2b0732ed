"""The epochs of a run: steps, validation, callbacks, checkpoints, what is reported."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from stages.data.batches import steps_per_epoch
from stages.distribution.collectives import any_worker, has_workers
from stages.errors import UserError
from stages.evaluation.eval_step import Scorer
from stages.optimization.ema import Averages
from stages.optimization.loss_scale import LEAST
from stages.optimization.optimizers import Rate, last_rate
from stages.optimization.train_step import Step
from stages.reporter import Reporter, Stop
from stages.results import Dataset, Model, Strategy
from stages.safe_places import safe_place
from stages.training.callbacks import Callbacks, enter_phase
from stages.training.checkpoints import Checkpoint, Checkpoints
from stages.training.forks import description, is_fork
from stages.training.loop import Loop
from stages.training.parameter_server import Coordinated
from stages.training.phases import Phase
from stages.training.progress import Progress, epoch_line, epoch_metrics
from stages.training.state import State


def go_on(progress: Progress, notes: Sequence[str], epochs: int, reporter: Reporter) -> None:
    """Tells `reporter` what a run that is continued has come to so far.

    Raises:
        UserError: where nothing is left to do of what another run has begun.
    """
    if progress.epoch >= epochs and not progress.finished:
        raise UserError(
            f"train.epochs={epochs}, and {progress.epoch} are over where this run starts from",
            f"more than {progress.epoch}",
            f"train.epochs={2 * progress.epoch}",
        )
    reporter.resumed(progress.step)
    for note in notes:
        reporter.warn(note)
    for epoch, row in enumerate(progress.rows, progress.first_epoch):
        reporter.metrics(row, step=epoch)


class _StoppedError(Exception):
    """The run is to stop before the validation is over."""


class Epochs:
    """The epochs of a phase. `progress` tells how far they are; `scored` is the model that is validated.

    Args:
        model: the whole one, which callbacks see and checkpoints keep.
        taught: what is trained and validated on `dataset`: `model`, or a part of it that takes features.
        phase: its settings say how many epochs it has at most.
    """

    def __init__(
        self,
        model: Model,
        taught: Model,
        dataset: Dataset,
        strategy: Strategy,
        phase: Phase,
        step: Step,
        rate: Rate,
        callbacks: Callbacks,
    ) -> None:
        self.progress = Progress()
        self._model, self._network, self._dataset, self._strategy = model, model.network, dataset, strategy
        self._phase, self._settings, self._last = phase, phase.settings, phase.settings.epochs
        self._training, self._rate, self._callbacks = step, rate, callbacks
        self._timing = callbacks.timing
        self._state = State(strategy, model, dataset, phase.settings, callbacks.callbacks, step)
        self._on_features = taught is not model
        self.scored = model.on_one_device() if strategy.coordinator else taught
        self._scorer = Scorer(strategy, self.scored, dataset.num_classes)
        self._per_epoch = steps_per_epoch(dataset.train, phase.settings.batch_size)

    @property
    def steps_per_call(self) -> int:
        return self._engine.steps_per_call

    @property
    def averages(self) -> Averages | None:
        """Moving averages of what this phase trains, or None."""
        return self._training.averages

    @property
    def _epochs(self) -> int:
        """The number of epochs of all phases, as far as it is known."""
        return self._last + self._phase.later

    def run(
        self, reporter: Reporter, checkpoints: Checkpoints, found: Checkpoint | None, before: "Epochs | None" = None
    ) -> None:
        """Goes on from the checkpoint `found`, or after the phase `before`, or begins.

        Ends with the weights that validation has seen last.
        """
        self._network.stop_training = False
        enter_phase(self._callbacks, self._settings, found is not None or before is not None)
        self._callbacks.on_train_begin()
        self._state.begin(before._state if before is not None else None)
        if before is not None:
            self.progress = before.progress
            self.progress.begin_phase(self._phase.index, self._per_epoch)
            if self._training.loss_scale is not None and before._training.loss_scale is not None:
                self._training.loss_scale.carry_on(before._training.loss_scale)
        forked_from: Mapping[str, Any] | None = None
        if found is not None:
            forked_from = found.facts if is_fork(found) else None
            self.progress = self._state.put_back(found)
            found = None  # it may be large
            self._callbacks.added = dict(self.progress.added)
            self._callbacks.outside = dict(self.progress.outside) | self._callbacks.outside
            self._network.stop_training = self.progress.stopping
            go_on(self.progress, self._state.notes, self.progress.began + self._settings.epochs, reporter)
        progress, averages = self.progress, self._training.averages
        if forked_from is not None:
            with self._timing.of("validation"), self._result_in_use():
                scores = self._score()
            progress.start = {f"val/start_{name}": value for name, value in scores.items()}
            told = {f"val_{name}": value for name, value in scores.items()}
            reporter.say(description(forked_from, progress.epoch, told))
        self._last = progress.began + self._settings.epochs
        given = (self._strategy, self._training, self._dataset, replace(self._settings, epochs=self._last))
        with self._timing.of("build"):
            self._engine = Coordinated(*given) if self._strategy.coordinator else Loop(*given, progress.step)
        self._is_traced = False
        progress.clock.unit = "features" if self._on_features else "images"
        with reporter.stopping() as stop:

            def keep() -> None:
                self._keep(checkpoints, stop)

            while not progress.finished:
                self._train_epoch(reporter, checkpoints, stop, keep)
                reporter.doing(f"validating on {len(self._dataset.val):,} images")
                with self._result_in_use():  # validation and callbacks see the weights that will be the result
                    with self._timing.of("validation"):
                        validated = self._validate(stop)
                    if validated is not None:
                        progress.logs |= validated
                        self._callbacks.on_epoch_end(progress.epoch, progress.logs)
                        progress.logs |= self._callbacks.logs
                if validated is None:
                    keep()  # ends the run; it resumes with this validation
                self._report(reporter)
                progress.epoch, progress.done = progress.epoch + 1, 0
                [self._network.stop_training] = any_worker(self._strategy, [bool(self._network.stop_training)])
                progress.finished = self._network.stop_training or progress.epoch >= self._last
                if not progress.finished:
                    keep()
            reporter.doing("writing a checkpoint")
            self._save(checkpoints)
            with self._timing.of("checkpoints"):
                checkpoints.wait()
            if any_worker(self._strategy, [stop.requested])[0]:
                stop.now()
        if not self._on_features and progress.clock.advice():  # features are in memory
            reporter.warn(progress.clock.advice())
        if averages is not None and self._settings.optimizer.ema_use:
            averages.use()
        self._callbacks.on_train_end(progress.logs)
        progress.outside = dict(self._callbacks.outside)

    def take_over(self) -> Model:
        """Returns the whole model with the present weights, where one process can score it."""
        if not self._strategy.coordinator:
            return self._model
        self.scored.network.set_weights(self._network.get_weights())
        return self.scored

    def _train_epoch(self, reporter: Reporter, checkpoints: Checkpoints, stop: Stop, keep: Callable[[], None]) -> None:
        """Trains for the rest of an epoch."""
        progress = self.progress
        if progress.done:
            logs = self._training.means()
        else:
            self._training.reset()
            self._callbacks.on_epoch_begin(progress.epoch)
            logs = {}
        while progress.done < self._per_epoch and not self._network.stop_training:
            steps = self._steps(checkpoints)
            self._callbacks.on_train_batch_begin(progress.done)
            began = time.perf_counter()
            at_once = nullcontext() if self._is_traced else stop.nothing_to_keep()  # tracing may take minutes
            with self._timing.of("steps" if self._is_traced else "build"), at_once:
                logs = self._engine.run(progress.step, steps)
            if self._is_traced:
                seconds, examples = time.perf_counter() - began, self._examples(progress.done, steps)
                progress.clock.add(seconds, steps, examples, self._engine.waited)
                if self._engine.waited is not None:
                    self._timing.move("steps", "input_wait", self._engine.waited)
            self._is_traced = True
            progress.step, progress.done = progress.step + steps, progress.done + steps
            self._check_finite(logs["loss"])
            self._callbacks.on_train_batch_end(progress.done - 1, logs)
            total = self._per_epoch * self._epochs
            note = f"epoch {progress.epoch + 1}/{self._epochs}  loss {logs['loss']:.4f}"
            rate = progress.clock.per_second
            if self._on_features and rate:
                note, rate = f"{note}  {rate:,.0f} features/s", None
            reporter.progress(progress.step, total, rate, note)
            keep()
        progress.logs = {**logs, "learning_rate": last_rate(self._network.optimizer, self._rate)}

    def _steps(self, checkpoints: Checkpoints) -> int:
        """Returns how many steps the next call takes: the first one only traces, and no rate counts it."""
        limits = (self._per_epoch - self.progress.done, checkpoints.steps_left(self.progress.step))
        wanted = self._engine.steps_per_call if self._is_traced else 1
        return min(wanted, *(limit for limit in limits if limit is not None))

    def _keep(self, checkpoints: Checkpoints, stop: Stop) -> None:
        """Writes a checkpoint where one is due, and where the run is to stop; in several workers, for all of them.

        What a callback of one worker wants is for all, too: the others would wait for its next step for ever.
        """
        wanted = [checkpoints.due(self.progress.step), stop.requested, bool(self._network.stop_training)]
        due, asked, self._network.stop_training = any_worker(self._strategy, wanted)
        if due or asked:
            self.progress.stopping = self._network.stop_training
            self._save(checkpoints)
        if asked:
            checkpoints.wait()
            any_worker(self._strategy, [True])  # nobody goes before the chief has written
            stop.now()

    def _save(self, checkpoints: Checkpoints) -> None:
        self.progress.added = dict(self._callbacks.added)
        self.progress.outside = dict(self._callbacks.outside)
        with self._timing.of("checkpoints"):
            checkpoints.save(self._state.read(self.progress))

    def _validate(self, stop: Stop) -> dict[str, float] | None:
        """Returns loss and accuracy on the validation split; for callbacks it is a validation of one batch.

        None where the run is to stop before they are known: it resumes with this validation. Not where that would call
        callbacks of the user's own a second time, nor with several workers, which agree on it at the epoch's end.
        """
        may_stop = not has_workers(self._strategy) and not self._settings.callbacks

        def look() -> None:
            safe_place()
            if may_stop and stop.requested:
                raise _StoppedError

        self._callbacks.on_test_begin()
        self._callbacks.on_test_batch_begin(0)
        try:
            logs = self._score(look)
        except _StoppedError:
            return None
        if not math.isfinite(logs["loss"]):
            raise self._diverged(f"the validation loss is {logs['loss']}")
        self._callbacks.on_test_batch_end(0, logs)
        self._callbacks.on_test_end(logs)
        return {f"val_{name}": value for name, value in logs.items()}

    def _score(self, between: Callable[[], None] = safe_place) -> dict[str, float]:
        """Returns loss and accuracy of the present weights on the validation split; calls `between` now and then."""
        self.take_over()
        scores = self._scorer.score(self._dataset.val, max(self._settings.batch_size, 256), between)
        return {"loss": scores.loss, "accuracy": scores.accuracy}

    def _result_in_use(self) -> AbstractContextManager[None]:
        """Has the network compute with the weights that are the result of training: averages, if so is wanted."""
        averages = self._training.averages
        return averages.used() if averages is not None and self._settings.optimizer.ema_use else nullcontext()

    def _report(self, reporter: Reporter) -> None:
        progress, epochs = self.progress, self._epochs
        several = self._phase.index or self._phase.later
        phase = {"train/phase": float(self._phase.index + 1)} if several else {}
        row = epoch_metrics(progress.logs, progress.clock, self._callbacks.warn_once)
        progress.rows.append(row | self._scale() | phase)
        reporter.metrics(progress.rows[-1], step=progress.epoch + 1)
        reporter.say(epoch_line(progress.epoch, epochs, self._per_epoch, progress.logs, progress.clock))

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
        rate, step = self._settings.optimizer.learning_rate, self.progress.step
        return UserError(
            f"training diverged by step {step} (epoch {self.progress.epoch + 1}): {why}",
            "finite losses",
            f"optimizer.learning_rate={rate / 10:g}, or schedule.warmup_epochs=1, or precision=float32",
        )
