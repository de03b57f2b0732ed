"""Training by Keras' `Model.fit`, because users know it and because it checks the training loop."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from stages.data.batches import InputFunction, distributed, evaluation_input, steps_per_epoch, training_input
from stages.errors import UserError
from stages.networks.inference_memory import scoring_batch
from stages.networks.precision import keras_floats
from stages.optimization.losses import accuracy, class_weight, cross_entropy
from stages.optimization.optimizers import Rate, build_optimizer, last_rate, learning_rate
from stages.reporter import Reporter, Silent, Stop
from stages.results import Dataset, Model, Split, Strategy, Trained
from stages.safe_places import safe_place
from stages.settings.train import FitSettings
from stages.training.callbacks import Callbacks, build_callbacks, prepare_callbacks
from stages.training.checkpoints import Checkpoint, Checkpoints, newest
from stages.training.class_weights import class_weights
from stages.training.forks import description, forked, is_fork, with_schedule
from stages.training.memory import check_memory
from stages.training.outcome import result_of
from stages.training.progress import Progress, epoch_line, epoch_metrics, report_resumed
from stages.training.state import State, progress_of
from stages.training.timing import Timing


def fit(
    model: Model,
    dataset: Dataset,
    strategy: Strategy,
    settings: FitSettings,
    reporter: Reporter | None = None,
    folder: Path | None = None,
) -> Trained:
    """Trains `model` in place by `Model.fit`, on the batches that the training loop would take.

    Arguments, result and files are those of `stages.train.train`.

    Raises:
        UserError: where Keras would give other numbers than one device.
    """
    timing = Timing()
    settings.check_share(strategy.in_sync)
    _check_shares(settings, strategy, dataset.train)
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
    best, callbacks = build_callbacks(settings, reporter)
    # Validation swaps the EMA in by itself; the callbacks after this one see it, too.
    ema = [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)] if settings.optimizer.ema_use else []
    called = [*ema, *callbacks.callbacks]
    weights = class_weights(settings.class_weights, dataset)
    size = _validation_batch(len(dataset.val), strategy.in_sync, scoring_batch(model.network, strategy))
    passes = settings.steps_per_call or 1  # whole ones in every call: Keras runs on beyond validation_steps otherwise
    with keras_floats(model.policy), reporter.stopping() as stop:  # Keras makes its losses at the first step
        state = State(strategy, model, dataset, settings, called)
        checkpoints = Checkpoints(place, settings, reporter.is_secret)
        report = _Report(dataset, settings, rate, reporter, state, checkpoints, checkpoint, stop)
        first = report.progress.epoch
        training = training_input(dataset, settings.batch_size, settings.seed, settings.epochs, first * per_epoch)
        report.callbacks = Callbacks(
            [*called, report],
            reporter.warn,
            timing,
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
        if report.progress.finished:  # what was interrupted came after it
            report.callbacks.on_train_begin()
            report.callbacks.on_train_end()
        else:
            model.network.fit(
                distributed(strategy.distribution, _weighted(training, weights)),
                steps_per_epoch=per_epoch,
                initial_epoch=first,
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
    return result_of(model, report.progress, best, settings, params, folder, timing)


def _compile(model: Model, strategy: Strategy, settings: FitSettings, per_epoch: int, shift: int) -> Rate:
    chosen = settings.optimizer
    options: dict[str, Any] = {"global_clipnorm": chosen.clip_norm or None}
    if chosen.ema_momentum:
        options |= {"use_ema": True, "ema_momentum": chosen.ema_momentum}
    with strategy.distribution.scope(), keras_floats(model.policy):  # of Keras' losses and means
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


def _check_shares(settings: FitSettings, strategy: Strategy, split: Split) -> None:
    replicas, last = strategy.in_sync, len(split) % settings.batch_size
    if settings.batch_size % replicas or last % replicas:
        raise UserError(
            f"train=fit averages the replicas' means, which is wrong where shares differ: {replicas} replicas, "
            f"train.batch_size={settings.batch_size}, a last batch of {last or settings.batch_size} "
            "(github.com/keras-team/keras/issues/19891)",
            f"batches that {replicas} divides, or train=loop, which is right for all",
            "train=loop",
        )
    per_epoch = steps_per_epoch(split, settings.batch_size)
    if per_epoch % (settings.steps_per_call or 1):
        raise UserError(
            f"train=fit would run {settings.steps_per_call} steps in a call beyond the epoch's {per_epoch}",
            f"a train.steps_per_call that divides {per_epoch}",
            "train.steps_per_call=1, or train=loop",
        )


def _validation_batch(examples: int, replicas: int, at_most: int) -> int:
    """Returns a batch size whose last batch, too, gives every replica at least one example.

    The largest that is 256 and `at_most` at most; else the smallest above.
    """
    fitting = min(256, at_most)
    sizes = [*range(fitting, replicas - 1, -1), *range(fitting + 1, fitting + 1 + replicas)]
    return next(size for size in sizes if examples % size == 0 or examples % size >= replicas)


def _weighted(source: InputFunction, weights: Sequence[float] | None) -> InputFunction:
    if weights is None:
        return source
    by_class = tf.constant(weights, tf.float64)
    return lambda context: source(context).map(lambda x, y, w: (x, y, w * class_weight(y, by_class)))


class _Report(keras.callbacks.Callback):
    """Reports each epoch as the training loop does, and keeps a checkpoint of it. The last of `callbacks`."""

    callbacks: Callbacks
    validate: Callable[[], dict[str, float]]

    def __init__(
        self,
        dataset: Dataset,
        settings: FitSettings,
        rate: Rate,
        reporter: Reporter,
        state: State,
        checkpoints: Checkpoints,
        checkpoint: Checkpoint | None,
        stop: Stop,
    ) -> None:
        super().__init__()
        self.progress = progress_of(checkpoint, same_order=False) if checkpoint is not None else Progress()
        self._examples, self._validated = len(dataset.train), len(dataset.val)
        self._settings, self._rate, self._reporter = settings, rate, reporter
        self._state, self._checkpoints, self._start, self._stop = state, checkpoints, checkpoint, stop
        self._per_epoch = -(-self._examples // settings.batch_size)
        self._is_traced = False
        self._last: Checkpoint | None = checkpoint

    def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
        self.callbacks.timing.add("build", self.callbacks.between)
        self._state.begin()  # last of all callbacks, which reset themselves here
        facts = self._start.facts if self._start is not None and is_fork(self._start) else None
        if self._start is not None:
            self.progress, self._start = self._state.restore(self._start), None
            self.callbacks.outside = dict(self.progress.outside)
            report_resumed(self.progress, self._state.notes, self._settings.epochs, self._reporter)
        if facts is not None:
            scores = self.validate()
            self.progress.start = {f"val/start_{name}": value for name, value in scores.items()}
            named = {f"val_{name}": value for name, value in scores.items()}
            self._reporter.say(description(facts, self.progress.epoch, named))

    def on_test_begin(self, logs: Mapping[str, float] | None = None) -> None:
        self._reporter.doing(f"validating on {self._validated:,} images")
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
        seconds, size, progress = self.callbacks.between, self._settings.batch_size, self.progress
        self.callbacks.timing.add("steps" if self._is_traced else "build", seconds)
        before, progress.done = progress.done, batch + 1
        steps = progress.done - before
        if self._is_traced:
            examples = min(progress.done * size, self._examples) - before * size
            progress.clock.add(seconds, steps, examples)
        self._is_traced = True
        progress.step += steps
        total, loss = self._per_epoch * self._settings.epochs, (logs or {}).get("loss", float("nan"))
        note = f"epoch {progress.epoch + 1}/{self._settings.epochs}  loss {loss:.4f}"
        self._reporter.progress(progress.step, total, progress.clock.per_second, note)
        self._end_if_asked()

    def _end_if_asked(self) -> None:
        if self._stop.requested:
            if self._last is not None:  # Keras cannot begin within an epoch
                self._checkpoints.save(self._last)
            self._checkpoints.wait()
            self._stop.now()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        progress, loss = self.progress, (logs or {}).get("loss", float("nan"))
        if not math.isfinite(loss):
            raise UserError(
                f"training diverged by epoch {epoch + 1}: the loss is {loss}", "finite losses", "train=loop"
            )
        # A callback that lowers the rate for the next epoch logs that of this one.
        metrics = {"learning_rate": last_rate(self.model.optimizer, self._rate)} | self.callbacks.numbers(logs or {})
        progress.rows.append(epoch_metrics(metrics, progress.clock, self.callbacks.warn_once))
        self._reporter.metrics(progress.rows[-1], step=epoch + 1)
        self._reporter.say(epoch_line(epoch, self._settings.epochs, self._per_epoch, metrics, progress.clock))
        progress.epoch, progress.done = epoch + 1, 0
        progress.finished = self.model.stop_training or progress.epoch >= self._settings.epochs
        progress.outside = dict(self.callbacks.outside)
        with self.callbacks.timing.of("checkpoints"):
            self._last = self._state.read(progress)
            if progress.finished or self._checkpoints.due(progress.step):
                self._checkpoints.save(self._last)

    def on_train_end(self, logs: Mapping[str, float] | None = None) -> None:
        self._reporter.doing("writing a checkpoint")
        with self.callbacks.timing.of("checkpoints"):
            self._checkpoints.wait()
