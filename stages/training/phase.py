"""A phase of a training: epochs with the same trained weights and one optimizer, each with a validation."""

import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from stages.callbacks import prepare_callbacks
from stages.checkpoints.files import Checkpoint
from stages.checkpoints.forks import report_fork
from stages.checkpoints.state import Progress, State, progress_of
from stages.collectives import any_worker
from stages.data.batches import steps_per_epoch
from stages.data.examples import spec_of
from stages.errors import UserError
from stages.evaluation.eval_step import BATCH, Scorer
from stages.evaluation.predictions import check_finite
from stages.networks.precision import keras_floats
from stages.optimization.exact_apply import EMA, LEAST_SCALE
from stages.optimization.gradients import Gradients, choose_jit, reason_of_xla, rows_for_xla
from stages.optimization.optimizers import build_optimizer, last_rate, learning_rate
from stages.optimization.train_step import Step
from stages.reporter import Stop
from stages.results import Model
from stages.settings.train import FitSettings
from stages.training.keras_steps import KerasStep, TaskLoss
from stages.training.loop import Loop
from stages.training.outcome import diverged, report_completed, report_epoch, too_large, warn_of_memory
from stages.training.parameter_server import Coordinated
from stages.training.session import Plan, Session
from stages.transfer.feature_cache import on_features
from stages.transfer.pretrained import is_frozen, unfreeze


class Phase:
    """A phase, built and started from `checkpoint`, else after `previous`, else from the model's own weights.

    dataset: of its steps: the training's own, or features of a frozen backbone.
    loop: takes the steps, several in a call.
    result: the EMA, where it becomes the result of the training; else one that changes nothing.
    params: parameters to record, once it is trained.
    last_epoch: epochs completed at its end, with those of earlier phases; all_epochs: those of later ones, too.
    """

    def __init__(
        self, session: Session, plan: Plan, checkpoint: Checkpoint | None, previous: "Phase | None" = None
    ) -> None:
        self.session = session
        self.plan = plan
        network, is_by_keras = session.model.network, isinstance(plan.settings, FitSettings)
        self._network = network.core if is_by_keras else network  # callbacks see the user's own, as in Keras
        self._is_traced = False
        self._build(progress_of(checkpoint) if checkpoint is not None else Progress())
        self.progress = Progress()
        self._start(checkpoint, previous)
        self.last_epoch = self.progress.began + plan.settings.epochs
        self.all_epochs = self.last_epoch + plan.later
        settings = replace(self.settings, epochs=self.last_epoch)
        self.loop: Any
        if is_by_keras:
            self.loop = self.step.begin(self.dataset, settings, self.progress.step)
        elif session.strategy.coordinator is not None:
            self.loop = Coordinated(session.strategy, self.step, self.dataset, settings)
        else:
            self.loop = Loop(session.strategy, self.step, self.dataset, settings, self.progress.step)

    def _build(self, resumed: Progress) -> None:
        """Build the step with an optimizer of its own. resumed: the progress of the phase so far."""
        session = self.session
        model, dataset, strategy, reporter = session.model, session.dataset, session.strategy, session.reporter
        self.settings = settings = self.plan.settings
        if self.plan.index:
            unfreeze(model.network, settings.fine_tune_layers)
            trained = sum(math.prod(weight.shape) for weight in model.network.trainable_weights)
            reporter.log(f"phase {self.plan.index + 1} (fine-tuning): {trained:,} weights are trained")
        task = model.task.for_training(settings, dataset.train.target_values)
        peak = settings.optimizer.learning_rate
        self._per_epoch = per_epoch = steps_per_epoch(dataset.train, settings.batch_size)
        with strategy.distribution.scope(), keras_floats(model.policy):
            self.rate = learning_rate(peak, settings.schedule, per_epoch, settings.epochs, resumed.shift)
            optimizer = build_optimizer(settings.optimizer, self.rate)
            loss = TaskLoss(task)
            # For callbacks, which use `model.optimizer`, and for the network's own `compute_loss`.
            for network in (model.network, model.network.core) if model.has_own_loss else (model.network,):
                network.compile(optimizer, loss, jit_compile=False, auto_scale_loss=False)
        session.callbacks.set_model(self._network)
        self.params: dict[str, object] = {}
        trainable, self.dataset = model, dataset
        if is_frozen(model.network):
            self.params["features"] = "off: the training is finished"
            if not resumed.finished:
                reporter.wait_for_turn()
                trainable, self.dataset, self.params["features"] = on_features(
                    model, dataset, strategy, settings, reporter, session.cache
                )
        warn_of_memory(trainable, strategy, settings, reporter)
        is_compiled = choose_jit(settings, strategy, trainable)
        self.params["jit"] = "on" if is_compiled else "off"
        self.step: Any
        if isinstance(settings, FitSettings):
            self.step = KerasStep(strategy, model, task, optimizer, settings)
        else:
            rows = rows_for_xla(settings, len(self.dataset.train), strategy.in_sync) if is_compiled else None
            gradients = Gradients(trainable, task, settings, spec_of(self.dataset), strategy.in_sync, rows)
            loss.check_use(model, settings)
            gradients.warn_of_draws(reporter)
            self.step = Step(strategy, gradients, optimizer, settings, dataset.train)
        self.state = State(strategy, model, self.dataset, settings, session.callbacks.with_initial, self.step)
        self._scored = model.on_one_device() if strategy.coordinator is not None else trainable
        self._scorer = Scorer(strategy, self._scored)
        self.result = self.step.ema if settings.optimizer.ema_use else EMA()

    def _start(self, checkpoint: Checkpoint | None, previous: "Phase | None") -> None:
        session, callbacks = self.session, self.session.callbacks
        self._network.stop_training = False
        prepare_callbacks(callbacks, self.settings, checkpoint is not None or previous is not None)
        callbacks.on_train_begin()
        if previous is not None:
            self.progress = previous.progress.of_next_phase(self._per_epoch, previous.last_epoch)
        if checkpoint is not None:
            self.progress = progress = self.state.restore(checkpoint)
            self._network.stop_training = progress.stopping
            if not checkpoint.is_fork:
                session.reporter.resumed(progress.step)
            report_completed(progress, self.settings.epochs, session.reporter)
            if checkpoint.is_fork:
                report_fork(checkpoint.facts, self.state.optimizer, progress, session.reporter)
        self.progress.clock.unit = self.dataset.unit if self.dataset is session.dataset else "features"

    def run(self) -> None:
        """Train until the end of the phase; leave the network with the weights of the last validation."""
        progress, session = self.progress, self.session
        with session.reporter.stopping() as stop:
            while not progress.finished:
                self._train_epoch(stop)
                session.reporter.doing(f"validating on {len(self.dataset.val):,} {self.dataset.unit}")
                with self.result.as_weights():  # callbacks see them, too
                    progress.logs |= self._validate()
                    session.callbacks.on_epoch_end(progress.epoch, progress.logs)
                own, task = self._own_metrics(), session.model.task
                report_epoch(progress, own, self.all_epochs, task, session.reporter)
                progress.epoch = progress.epoch + 1
                progress.done = 0
                [self._network.stop_training] = any_worker(session.strategy, [bool(self._network.stop_training)])
                progress.finished = self._network.stop_training or progress.epoch >= self.last_epoch
                if not progress.finished:
                    self._keep(stop)
                elif progress.epoch < self.last_epoch:
                    session.reporter.log(
                        f"stopped early after epoch {progress.epoch} of {self.all_epochs}{self._why()}"
                    )
            session.reporter.doing("writing a checkpoint")
            self._save()
            session.checkpoints.wait()
            if any_worker(session.strategy, [stop.requested])[0]:
                stop.now()
        is_cheap = self.dataset.train.is_in_memory and not self.dataset.transforms
        if not is_cheap and progress.clock.advice():
            session.reporter.warn(progress.clock.advice())
        self.params["steps_per_call"] = self.loop.steps_per_call
        self.result.assign_to_weights()
        session.callbacks.on_train_end(progress.logs)

    def _why(self) -> str:
        """Return what stopped the training before its last epoch."""
        for callback in self.session.callbacks.callbacks:
            if isinstance(callback, keras.callbacks.EarlyStopping) and callback.stopped_epoch:
                return f": no better {callback.monitor} for {callback.patience} epochs"
        return ", by a callback"

    def _train_epoch(self, stop: Stop) -> None:
        """Train for the rest of an epoch."""
        progress, callbacks = self.progress, self.session.callbacks
        logs = progress.logs if progress.done else {}
        if not progress.done:
            self.step.reset()
            callbacks.on_epoch_begin(progress.epoch)
        # Without a step there would be no loss to report: a callback that stops before the first one stops after it.
        while progress.done < self._per_epoch and not (logs and self._network.stop_training):
            callbacks.on_train_batch_begin(progress.done)
            logs = progress.logs = self._take_steps(stop)
            loss = logs.get("loss", 0.0)  # of Keras' steps, unless the network's own returns none
            self._check_finite(loss)
            callbacks.on_train_batch_end(progress.done - 1, logs)
            note = f"epoch {progress.epoch + 1}/{self.all_epochs}  loss {loss:.4f}  {progress.clock.speed}"
            self.session.reporter.progress(progress.step, self._per_epoch * self.all_epochs, note)
            self._keep(stop)
        progress.logs = {**logs, "learning_rate": last_rate(self._network.optimizer, self.rate)}

    def _take_steps(self, stop: Stop) -> dict[str, float]:
        """Take the steps of one call; return the epoch's means so far.

        The first call is a single step, which is traced, and not timed. A job of a sweep waits for its turn behind it;
        where it computes features, before that.
        """
        progress, session, loop = self.progress, self.session, self.loop
        limits = (self._per_epoch - progress.done, session.checkpoints.steps_left(progress.step))
        steps = min(loop.steps_per_call if self._is_traced else 1, *(limit for limit in limits if limit is not None))
        began = time.perf_counter()
        interruptible = nullcontext() if self._is_traced else stop.nothing_to_keep()  # tracing may take minutes
        try:
            with interruptible:
                logs = loop.run(progress.step, steps)
        except tf.errors.ResourceExhaustedError as error:
            raise too_large(self.settings.batch_size, error) from error
        except (tf.errors.UnimplementedError, tf.errors.InvalidArgumentError) as error:
            if self.params["jit"] == "off" or not self.step.is_of_xla(error):
                raise
            problem = f"train.jit: XLA cannot compile this network ({reason_of_xla(error)})"
            raise UserError(problem, ("auto", "off"), "train.jit=off") from error
        if self._is_traced:
            size = self.settings.batch_size
            examples = min((progress.done + steps) * size, len(self.dataset.train)) - progress.done * size
            seconds = time.perf_counter() - began
            loop.adapt(seconds / steps)
            progress.clock.add(seconds, steps, examples, loop.waited)
        else:
            with stop.nothing_to_keep():
                session.reporter.wait_for_turn()
        self._is_traced = True
        progress.step = progress.step + steps
        progress.done = progress.done + steps
        return logs

    def _keep(self, stop: Stop) -> None:
        """Write a checkpoint where one is due or the run should stop; several workers decide together.

        A callback that stops one worker stops all: the others would wait for its next step forever.
        """
        session = self.session
        flags = [session.checkpoints.due(self.progress.step), stop.requested, bool(self._network.stop_training)]
        due, stops, self._network.stop_training = any_worker(session.strategy, flags)
        if due or stops:
            self.progress.stopping = self._network.stop_training
            self._save()
        if stops:
            session.checkpoints.wait()
            any_worker(session.strategy, [True])  # no worker leaves before the chief has written
            stop.now()

    def _save(self) -> None:
        self.session.checkpoints.save(self.state.read(self.progress, self.session.reporter.is_secret))

    def _validate(self) -> dict[str, float]:
        """Return loss and metrics on the validation split; for callbacks it is a validation of one batch."""
        callbacks = self.session.callbacks
        callbacks.on_test_begin()
        callbacks.on_test_batch_begin(0)
        logs = self.score()
        if not math.isfinite(logs["loss"]):
            raise diverged(self.progress, self.settings, f"the validation loss is {logs['loss']}{self._not_finite()}")
        if (invalid := first_invalid(self._scored.network.trainable_weights)) is not None:
            raise diverged(self.progress, self.settings, f"the weight {invalid} is not finite")
        callbacks.on_test_batch_end(0, logs)
        callbacks.on_test_end(logs)
        return {f"val_{name}": value for name, value in logs.items()}

    def _not_finite(self) -> str:
        """Name a validation example whose answer is not finite, as one number of its may be the cause."""
        dataset, model = self.dataset, self._scored
        answers = self._scorer.score(dataset.val, self._batch_of_scores, predicts=True).predictions
        assert answers is not None
        try:
            check_finite(answers, dataset.val, model.task, dataset.name, model.policy)
        except UserError as error:
            return f" ({error.problem})"
        return ""

    def _own_metrics(self) -> dict[str, float]:
        """Metrics of the epoch that no callback sees."""
        scale = self.step.loss_scale
        metrics = {"train/phase": self.plan.index + 1.0} if self.plan.index or self.plan.later else {}
        if scale is not None:
            metrics["train/loss_scale"] = float(scale.dynamic_scale.numpy())
            metrics["train/skipped_steps"] = float(scale.skipped_steps.numpy())
        return metrics

    def _check_finite(self, loss: float) -> None:
        scale = self.step.loss_scale
        if scale is not None and float(scale.dynamic_scale.numpy()) < LEAST_SCALE:
            raise diverged(self.progress, self.settings, "float16 overflows even at the smallest loss scale")
        if scale is None and not math.isfinite(loss):  # with a scale, steps that overflow are skipped and not counted
            raise diverged(self.progress, self.settings, f"the loss is {loss}")

    def score(self) -> dict[str, float]:
        """Return loss and metrics of the current weights on the validation split."""
        self.present_model()
        scores = self._scorer.score(self.dataset.val, self._batch_of_scores)
        return {"loss": scores.loss, **scores.metrics}

    @property
    def _batch_of_scores(self) -> int:
        return min(max(self.settings.batch_size, BATCH), self._scorer.most)

    def present_model(self) -> Model:
        """Return the whole model with its current weights, on one device where servers hold it."""
        model = self.session.model
        if self.session.strategy.coordinator is None:
            return model
        self._scored.network.set_weights(model.network.get_weights())
        return self._scored


def first_invalid(weights: Sequence[keras.Variable]) -> str | None:
    """Return the path of the first weight with a nan or an inf; None where all are finite.

    A loss can stay finite over such weights, as a ReLU makes 0 of a nan.
    """
    for weight in weights:
        if "float" in weight.dtype and not tf.reduce_all(tf.math.is_finite(tf.convert_to_tensor(weight.value))):
            return str(weight.path)
    return None
