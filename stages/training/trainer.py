"""The trainer: phases, epochs and steps, validation, callbacks, checkpoints, and the weights it ends with."""

import math
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import tensorflow as tf

from stages.callbacks import build_callbacks, prepare_callbacks, save_weights
from stages.checkpoints.files import Checkpoint, Checkpoints
from stages.checkpoints.forks import report_fork
from stages.checkpoints.progress import Progress, progress_of
from stages.collectives import any_worker, is_chief
from stages.data.batches import steps_per_epoch
from stages.errors import UserError
from stages.evaluation.eval_step import BATCH, Scorer
from stages.evaluation.predictions import check_finite
from stages.evaluation.test_set import validation_facts
from stages.networks.precision import keras_floats
from stages.optimization.ema import EMA
from stages.optimization.optimizers import build_optimizer, last_rate, learning_rate
from stages.optimization.xla import reason_of_xla
from stages.reporter import Reporter, Stop
from stages.results import Dataset, Model, Record, Strategy, Trained
from stages.settings.train import TrainSettings
from stages.training.engine import Engine, Setup
from stages.training.engines import engine_for
from stages.training.outcome import (
    diverged,
    gpu_peak,
    own_metrics,
    refuse_divergence,
    refuse_invalid_weights,
    report_completed,
    report_epoch,
    result_of,
    too_large,
    why_stopped,
    write_files,
)
from stages.training.phases import Phase, plan_phases, starting_point
from stages.training.resume import Resumable
from stages.training.task_loss import TaskLoss
from stages.transfer.feature_cache import on_features
from stages.transfer.pretrained import is_frozen, unfreeze


class Trainer:
    """Trains a model. Read `train` first: the other methods follow in the order in which they are called."""

    def __init__(  # noqa: PLR0913  # the inputs of a training
        self,
        model: Model,
        dataset: Dataset,
        strategy: Strategy,
        settings: TrainSettings,
        reporter: Reporter,
        folder: Path | None,
        cache: Path | None,
    ) -> None:
        self.model = model
        self.dataset = dataset
        self.strategy = strategy
        self.settings = settings
        self.reporter = reporter
        self.folder = folder
        self.cache = cache
        self.engine_class = engine_for(settings, strategy)
        self.network = self.engine_class.seen_by_callbacks(model.network)
        self.per_epoch = steps_per_epoch(dataset.train, settings.batch_size)
        trained = [*self.engine_class.logged(model.task), *(metric.name for metric in model.metrics)]
        self.best, self.callbacks = build_callbacks(settings, model.task, reporter, folder, trained)
        self.callbacks.set_params({"verbose": 0, "epochs": settings.all_epochs, "steps": self.per_epoch})
        self.place = None if folder is None else folder / "checkpoints"
        self.checkpoints = Checkpoints(self.place if is_chief(strategy) else None, settings)
        self.progress = Progress()
        self.last_epoch = 0
        """The number of epochs at the end of the current phase, together with earlier phases."""
        self.params: dict[str, object] = {}
        self.engine: Engine
        """Takes the steps of the current phase."""
        self.resumable: Resumable
        """Makes the checkpoints of the current phase."""
        self.result: EMA
        """The EMA, if validation and the result use it; otherwise one that changes nothing."""

    def train(self) -> Trained:
        """Train to the end, from the last checkpoint on if there is one."""
        phases = plan_phases(self.model.network, self.settings)
        checkpoint, start = starting_point(self.model, self.dataset, self.strategy, phases, self.place, self.reporter)
        for phase in phases[start:]:
            self._begin(phase, checkpoint, is_first=phase is phases[start])
            checkpoint = None  # it may be large
            with self.reporter.stopping() as stop:
                while not self.progress.finished:
                    self._train_epoch(stop)
                    with self.result.as_weights():  # callbacks see them, too
                        self._validate()
                        self.callbacks.on_epoch_end(self.progress.epoch, self.progress.logs)
                    self._end_epoch(stop)
                self._end(stop)
        return self._trained()

    def _begin(self, phase: Phase, checkpoint: Checkpoint | None, is_first: bool) -> None:
        """Build the engine of a phase, restore the checkpoint, and prepare the callbacks."""
        if not is_first and self.settings.restore_best:
            self.best.restore()
        self.phase = phase
        resumed = Progress() if checkpoint is None else progress_of(checkpoint)
        setup = self._setup(phase, resumed)
        self.engine = engine = self.engine_class(setup)
        self.params["jit"] = "on" if engine.is_compiled else "off"
        self.examples = setup.dataset
        self.scorer = Scorer(self.strategy, engine.scored)
        self.result = engine.state.ema if phase.settings.optimizer.ema_use else EMA()
        self.resumable = Resumable(
            engine.state, self.callbacks.with_initial, self.examples, phase.settings, setup.optimizer
        )
        self.network.stop_training = False
        prepare_callbacks(self.callbacks, phase.settings, continues=checkpoint is not None or not is_first)
        self.callbacks.on_train_begin()
        if checkpoint is not None:
            self._restore(checkpoint)
        elif not is_first:
            self.progress = self.progress.of_next_phase(self.per_epoch, self.last_epoch)
        self.last_epoch = self.progress.began + phase.settings.epochs
        self.all_epochs = self.last_epoch + phase.later
        self.progress.clock.unit = self.dataset.unit if self.examples is self.dataset else "features"
        self.is_traced = False
        engine.begin(self.progress.step, self.last_epoch)

    def _setup(self, phase: Phase, resumed: Progress) -> Setup:
        """Return what the engine is built from: the optimizer, the loss, and what is trained with which examples."""
        model, settings, reporter = self.model, phase.settings, self.reporter
        if phase.index:
            unfreeze(model.network, settings.fine_tune_layers)
            trained = sum(math.prod(weight.shape) for weight in model.network.trainable_weights)
            reporter.log(f"phase {phase.index + 1} (fine-tuning): {trained:,} weights are trained")
        task = model.task.for_training(settings, self.dataset.train.targets)
        with self.strategy.distribution.scope(), keras_floats(model.policy):
            peak = settings.optimizer.learning_rate
            self.rate = learning_rate(peak, settings.schedule, self.per_epoch, settings.epochs, resumed.shift)
            optimizer = build_optimizer(settings.optimizer, self.rate)
            loss = TaskLoss(task)
            # For callbacks, which use `model.optimizer`, and for the network's own `compute_loss`.
            for network in (model.network, model.network.core) if model.has_own_loss else (model.network,):
                network.compile(optimizer, loss, jit_compile=False, auto_scale_loss=False)
        self.callbacks.set_model(self.network)
        setup = Setup(self.strategy, model, model, self.dataset, task, settings, optimizer, loss, reporter)
        if not is_frozen(model.network):
            return setup
        if resumed.finished:
            self.params["features"] = "off: the training is finished"
            return setup
        head, features, self.params["features"] = on_features(
            model, self.dataset, self.strategy, settings, reporter, self.cache, self.engine_class.no_features
        )
        return replace(setup, model=head, dataset=features)

    def _restore(self, checkpoint: Checkpoint) -> None:
        self.progress = progress = self.resumable.restore(checkpoint)
        self.network.stop_training = progress.stopping
        if not checkpoint.is_fork:
            self.reporter.resumed(progress.step)
        report_completed(progress, self.phase.settings.epochs, self.reporter)
        if checkpoint.is_fork:
            report_fork(checkpoint.facts, self.resumable.optimizer, progress, self.reporter)

    def _train_epoch(self, stop: Stop) -> None:
        """Train for the rest of an epoch."""
        progress, callbacks = self.progress, self.callbacks
        logs = progress.logs if progress.done else {}
        if not progress.done:
            self.engine.reset()
            callbacks.on_epoch_begin(progress.epoch)
        # Without a step there would be no loss to report: a callback that stops before the first one stops after it.
        while progress.done < self.per_epoch and not (logs and self.network.stop_training):
            callbacks.on_train_batch_begin(progress.done)
            logs = progress.logs = self._take_steps(stop)
            loss = logs.get("loss", 0.0)  # missing only if the network's own `train_step` does not return it
            refuse_divergence(progress, self.phase.settings, loss, self.engine.state.loss_scale)
            callbacks.on_train_batch_end(progress.done - 1, logs)
            note = f"epoch {progress.epoch + 1}/{self.all_epochs}  loss {loss:.4f}  {progress.clock.speed}"
            self.reporter.progress(progress.step, self.per_epoch * self.all_epochs, note)
            self._keep(stop)
        progress.logs = {**logs, "learning_rate": last_rate(self.network.optimizer, self.rate)}

    def _take_steps(self, stop: Stop) -> dict[str, float]:
        """Take the steps of one call, and return the means of the epoch so far.

        The first call is a single step, which is traced and not timed.
        """
        progress, engine, size = self.progress, self.engine, self.settings.batch_size
        limits = (self.per_epoch - progress.done, self.checkpoints.steps_left(progress.step))
        steps = min(engine.steps_per_call if self.is_traced else 1, *(limit for limit in limits if limit is not None))
        began = time.perf_counter()
        interruptible = nullcontext() if self.is_traced else stop.nothing_to_keep()  # tracing may take minutes
        try:
            with interruptible:
                logs = engine.run(progress.step, steps)
        except tf.errors.ResourceExhaustedError as error:
            raise too_large(size, error) from error
        except (tf.errors.UnimplementedError, tf.errors.InvalidArgumentError) as error:
            if not (engine.is_compiled and engine.is_of_xla(error)):
                raise
            problem = f"train.jit: XLA cannot compile this network ({reason_of_xla(error)})"
            raise UserError(problem, ("auto", "off"), "train.jit=off") from error
        if self.is_traced:
            examples = min((progress.done + steps) * size, len(self.dataset.train)) - progress.done * size
            seconds = time.perf_counter() - began
            engine.adapt(seconds / steps)
            progress.clock.add(seconds, steps, examples, engine.waited)
        self.is_traced = True
        progress.step = progress.step + steps
        progress.done = progress.done + steps
        return logs

    def _validate(self) -> None:
        """Add loss and metrics of the validation split to the logs. For callbacks it is a validation of one batch."""
        progress, callbacks, val = self.progress, self.callbacks, self.examples.val
        self.reporter.doing(f"validating on {len(val):,} {self.examples.unit}")
        callbacks.on_test_begin()
        callbacks.on_test_batch_begin(0)
        self.engine.refresh()
        scores = self.scorer.score(val, self._batch_of_scores)
        if not math.isfinite(scores.loss):
            why = f"the validation loss is {scores.loss}{self._not_finite()}"
            raise diverged(progress, self.phase.settings, why)
        refuse_invalid_weights(progress, self.phase.settings, self.engine.scored.network)
        logs = {"loss": scores.loss, **scores.metrics}
        callbacks.on_test_batch_end(0, logs)
        callbacks.on_test_end(logs)
        progress.logs |= {f"val_{name}": value for name, value in logs.items()}

    def _end_epoch(self, stop: Stop) -> None:
        """Report the epoch, and decide whether the phase is finished."""
        progress = self.progress
        own = own_metrics(self.phase, self.engine.state.loss_scale)
        report_epoch(progress, own, self.all_epochs, self.model.task, self.reporter)
        progress.epoch = progress.epoch + 1
        progress.done = 0
        [self.network.stop_training] = any_worker(self.strategy, [bool(self.network.stop_training)])
        progress.finished = self.network.stop_training or progress.epoch >= self.last_epoch
        if not progress.finished:
            self._keep(stop)
        elif progress.epoch < self.last_epoch:
            why = why_stopped(self.callbacks.callbacks)
            self.reporter.log(f"stopped early after epoch {progress.epoch} of {self.all_epochs}{why}")

    def _keep(self, stop: Stop) -> None:
        """Write a checkpoint if one is due or the run should stop; several workers decide together.

        A callback that stops one worker stops all: the others would wait for its next step forever.
        """
        flags = [self.checkpoints.due(self.progress.step), stop.requested, bool(self.network.stop_training)]
        due, stops, self.network.stop_training = any_worker(self.strategy, flags)
        if due or stops:
            self.progress.stopping = self.network.stop_training
            self.checkpoints.save(self.resumable.checkpoint(self.progress))
        if stops:
            self.checkpoints.wait()
            any_worker(self.strategy, [True])  # no worker leaves before the chief has written
            stop.now()

    def _end(self, stop: Stop) -> None:
        """Write the checkpoint of a finished phase, and set the weights to its result."""
        self.reporter.doing("writing a checkpoint")
        self.checkpoints.save(self.resumable.checkpoint(self.progress))
        self.checkpoints.wait()
        if any_worker(self.strategy, [stop.requested])[0]:
            stop.now()
        is_cheap = self.examples.train.is_in_memory and not self.examples.transforms
        if not is_cheap and self.progress.clock.advice():
            self.reporter.warn(self.progress.clock.advice())
        self.params["steps_per_call"] = self.engine.steps_per_call
        self.result.assign_to_weights()
        self.callbacks.on_train_end(self.progress.logs)

    def _trained(self) -> Trained:
        """Return the result with the weights of the best epoch or of the last one; write its files."""
        best, settings, engine = self.best, self.settings, self.engine
        if not math.isfinite(best.best_value):
            what = f"train.monitor={settings.monitor} is {best.best_value} in every epoch"
            self.reporter.warn(f"{what}, so there is no best epoch, and the weights of the last epoch are used")
        self.reporter.doing("writing the best weights")
        if engine.state.ema.values and not settings.optimizer.ema_use and self.place is not None:
            with engine.state.ema.as_weights():
                engine.refresh()
                save_weights(engine.whole.network, self.place / "ema.weights.h5")
        if settings.restore_best:
            best.restore()
        engine.refresh()
        files = write_files(engine.whole, self.progress, best, self.folder)
        facts = validation_facts(self.dataset, engine.whole.network)
        record = Record(self.params, gpu_peak(self.strategy), files, summary=facts)
        return result_of(engine.whole, self.progress, best, settings, record)

    def _not_finite(self) -> str:
        """Name a validation example whose answer is not finite, as one of its numbers may be the cause."""
        val, model = self.examples.val, self.engine.scored
        answers = self.scorer.score(val, self._batch_of_scores, predicts=True).predictions
        assert answers is not None
        try:
            check_finite(answers, val, model.task, self.dataset.name, model.policy)
        except UserError as error:
            return f" ({error.problem})"
        return ""

    @property
    def _batch_of_scores(self) -> int:
        return min(max(self.settings.batch_size, BATCH), self.scorer.most)
