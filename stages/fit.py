"""Training by Keras' `Model.fit`, which users know, and which checks the training loop."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from stages.callbacks.callbacks import Callbacks, build_callbacks, prepare_callbacks
from stages.callbacks.timing import Timing
from stages.checkpoints.files import Checkpoint, Checkpoints, newest
from stages.checkpoints.forks import description, forked, is_fork, with_schedule
from stages.checkpoints.progress import Progress
from stages.checkpoints.saved import restore_trained, save_trained
from stages.checkpoints.state import State, progress_of
from stages.data.batches import InputFunction, distributed, evaluation_input, steps_per_epoch, training_input
from stages.errors import UserError
from stages.networks.inference_memory import scoring_batch
from stages.networks.precision import keras_floats
from stages.optimization.losses import accuracy, class_weight, cross_entropy
from stages.optimization.optimizers import Rate, build_optimizer, last_rate, learning_rate
from stages.reporter import Reporter, Silent, Stop
from stages.results import Dataset, Model, Record, Split, Strategy, Trained
from stages.reuse import allow_reuse
from stages.safe_places import safe_place
from stages.settings.train import FitSettings
from stages.training.class_weights import class_weights
from stages.training.epoch_metrics import epoch_line, epoch_metrics, report_resumed
from stages.training.finite import FiniteWeights
from stages.training.memory import check_memory, gpu_peak
from stages.training.outcome import result_of, write_files


def fit(
    model: Model,
    dataset: Dataset,
    strategy: Strategy,
    settings: FitSettings,
    reporter: Reporter | None = None,
    folder: Path | None = None,
) -> Trained:
    """Trains `model` in place by `Model.fit`, on the batches of the training loop.

    Arguments, result and files are those of `stages.train.train`.

    Raises:
        UserError: where Keras would compute other numbers than one device.
    """
    timing = Timing()
    settings.check_share(strategy.in_sync)
    _check_batches(settings, strategy, dataset.train)
    with timing.of("build"):
        needed = check_memory(model, dataset, strategy, settings)
    per_epoch = steps_per_epoch(dataset.train, settings.batch_size)
    reporter = reporter or Silent()
    place = folder / "checkpoints" if folder is not None else None
    checkpoint = newest(place, reporter.warn) if place is not None else None
    if checkpoint is not None:
        checkpoint = with_schedule(forked(checkpoint, model.network), per_epoch)
    with timing.of("build"):
        rate = _compile(
            model, strategy, settings, per_epoch, progress_of(checkpoint).shift if checkpoint is not None else 0
        )
    best, callbacks = build_callbacks(settings, reporter, folder=folder, metrics=model.metrics)
    # Validation swaps the EMA in by itself; this one does for the callbacks after it.
    ema = [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)] if settings.optimizer.ema_use else []
    all_callbacks = [*ema, *callbacks.callbacks]
    weights = class_weights(settings.class_weights, dataset)
    size = _validation_batch(len(dataset.val), strategy.in_sync, scoring_batch(model.network, strategy))
    passes = settings.steps_per_call or 1  # whole ones in each call, or Keras would go beyond validation_steps
    with keras_floats(model.policy), reporter.stopping() as stop:  # Keras makes its losses at the first step
        state = State(strategy, model, dataset, settings, all_callbacks)
        checkpoints = Checkpoints(place, settings, reporter.is_secret)
        report = _Report(dataset, settings, rate, reporter, state, checkpoints, checkpoint, stop)
        first_epoch = report.progress.epoch
        training = training_input(dataset, settings.batch_size, settings.seed, settings.epochs, first_epoch * per_epoch)
        report.callbacks = Callbacks(
            [*all_callbacks, report],
            reporter.warn,
            timing,
            names=callbacks.names,
            add_history=True,  # Keras' fit returns it
            model=model.network,
            verbose=0,
            epochs=settings.epochs,
            steps=per_epoch,
        )
        report.validate = lambda: model.network.evaluate(
            distributed(strategy.distribution, evaluation_input(dataset.val, size, passes=passes)),
            steps=steps_per_epoch(dataset.val, size) * passes,
            verbose=0,
            return_dict=True,
        )
        prepare_callbacks(report.callbacks, settings, checkpoint is not None)
        if report.progress.finished:  # it was interrupted after training
            report.callbacks.on_train_begin()
            report.callbacks.on_train_end()
        else:
            model.network.fit(
                distributed(strategy.distribution, _weighted(training, weights)),
                steps_per_epoch=per_epoch,
                initial_epoch=first_epoch,
                epochs=settings.epochs,
                validation_data=distributed(
                    strategy.distribution, evaluation_input(dataset.val, size, passes=settings.epochs * passes)
                ),
                validation_steps=steps_per_epoch(dataset.val, size) * passes,
                callbacks=report.callbacks,
                shuffle=False,  # the input is
                verbose=0,
            )
    report.progress.outside = dict(report.callbacks.outside)
    reporter.doing("writing the best weights")
    if settings.restore_best:
        best.restore()
    params = {"jit": "on" if settings.jit == "on" else "off", "steps_per_call": passes, **needed}
    files = write_files(model, report.progress, best, folder)
    record = Record(params, timing.metrics() | gpu_peak(strategy), files)
    return result_of(model, report.progress, best, settings, record)


allow_reuse(fit, save_trained, restore_trained)


def _compile(model: Model, strategy: Strategy, settings: FitSettings, per_epoch: int, shift: int) -> Rate:
    chosen = settings.optimizer
    options: dict[str, Any] = {"global_clipnorm": chosen.clip_norm or None}
    if chosen.ema_momentum:
        options |= {"use_ema": True, "ema_momentum": chosen.ema_momentum}
    with strategy.distribution.scope(), keras_floats(model.policy):  # dtype of Keras' losses and means
        peak = chosen.learning_rate
        rate = learning_rate(peak, settings.schedule, per_epoch, settings.epochs, shift, policy=model.policy)
        optimizer = build_optimizer(chosen, rate, model.policy, **options)
        loss = cross_entropy(model.outputs, settings.label_smoothing)
        for network in (model.network, model.network.core) if model.has_own_loss else (model.network,):
            network.compile(
                optimizer,
                loss,
                metrics=[accuracy],
                jit_compile=settings.jit == "on",
                steps_per_execution=settings.steps_per_call or 1,
            )
        model.network.optimizer.build(model.network.trainable_variables)  # a loss scale around it, too
    return rate


def _check_batches(settings: FitSettings, strategy: Strategy, split: Split) -> None:
    replicas = strategy.in_sync
    remainder = len(split) % settings.batch_size
    if settings.batch_size % replicas or remainder % replicas:
        raise UserError(
            f"train=fit averages the replicas' means, which is wrong where per-replica batches differ: "
            f"{replicas} replicas, "
            f"train.batch_size={settings.batch_size}, a last batch of {remainder or settings.batch_size} "
            "(github.com/keras-team/keras/issues/19891)",
            f"batches that {replicas} divides, or train=loop, which is correct for all",
            "train=loop",
        )
    per_epoch = steps_per_epoch(split, settings.batch_size)
    if (settings.checkpoint_every_steps or 0) % per_epoch:
        raise UserError(
            f"train.checkpoint_every_steps={settings.checkpoint_every_steps} with train=fit: it is saved at the ends "
            f"of epochs alone, of {per_epoch} steps",
            f"a multiple of {per_epoch}, or train=loop",
            f"train.checkpoint_every_steps={per_epoch}",
        )
    if per_epoch % (settings.steps_per_call or 1):
        raise UserError(
            f"train=fit would run {settings.steps_per_call} steps in a call beyond the epoch's {per_epoch}",
            f"a train.steps_per_call that divides {per_epoch}",
            "train.steps_per_call=1",
        )


def _validation_batch(examples: int, replicas: int, at_most: int) -> int:
    """Returns a batch size with which even the last batch gives every replica at least one example.

    The largest up to 256 and `at_most`; else the smallest above.
    """
    fitting = min(256, at_most)
    sizes = [*range(fitting, replicas - 1, -1), *range(fitting + 1, fitting + 1 + replicas)]
    return next(size for size in sizes if examples % size == 0 or examples % size >= replicas)


def _weighted(source: InputFunction, weights: Sequence[float] | None) -> InputFunction:
    if weights is None:
        return source
    by_class = tf.constant(weights, tf.float64)
    return lambda context: source(context).map(lambda x, y, w: (x, y, w * class_weight(y, by_class)))


@dataclass(eq=False)
class _Report(keras.callbacks.Callback):
    """Reports each epoch as the training loop does, and writes checkpoints. The last of `callbacks`."""

    dataset: Dataset
    settings: FitSettings
    rate: Rate
    reporter: Reporter
    state: State
    checkpoints: Checkpoints
    checkpoint: InitVar[Checkpoint | None]
    stop: Stop
    callbacks: Callbacks = field(init=False)
    validate: Callable[[], dict[str, float]] = field(init=False)

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
            report_resumed(self.progress, self.state.notes, self.settings.epochs, self.reporter)
        if facts is not None:
            scores = self.validate()
            self.progress.start = {f"val/start_{name}": value for name, value in scores.items()}
            val_scores = {f"val_{name}": value for name, value in scores.items()}
            self.reporter.log(description(facts, self.progress.epoch, val_scores))

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
