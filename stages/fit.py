"""Training by Keras' `Model.fit`, which users know, and which checks the training loop."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from stages.callbacks.build import build_callbacks, prepare_callbacks
from stages.callbacks.callback_list import Callbacks
from stages.callbacks.timing import Timing
from stages.checkpoints.files import Checkpoints, newest
from stages.checkpoints.forks import forked, with_schedule
from stages.checkpoints.saved import restore_trained, save_trained
from stages.checkpoints.state import State, progress_of
from stages.data.batches import InputFunction, distributed, evaluation_input, steps_per_epoch, training_input
from stages.errors import UserError
from stages.evaluation.test_set import validation_facts
from stages.networks.inference_memory import scoring_batch
from stages.networks.precision import keras_floats
from stages.optimization.losses import accuracy, class_weight, class_weights, cross_entropy
from stages.optimization.optimizers import Rate, build_optimizer, exclude_from_decay, learning_rate
from stages.reporter import Reporter, Silent
from stages.results import Dataset, Model, Record, Split, Strategy, Trained
from stages.reuse import allow_reuse
from stages.settings.train import FitSettings
from stages.training.fit_report import FitReport
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
    reporter = reporter or Silent()
    if warning := settings.check_share(strategy.in_sync, len(dataset.train)):
        reporter.warn(warning)
    _check_batches(settings, strategy, dataset.train)
    with timing.of("build"):
        needed = check_memory(model, dataset, strategy, settings)
    per_epoch = steps_per_epoch(dataset.train, settings.batch_size)
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
    validation = _Validation(model, dataset.val, strategy, settings.steps_per_call or 1)
    with keras_floats(model.policy), reporter.stopping() as stop:  # Keras makes its losses at the first step
        state = State(strategy, model, dataset, settings, all_callbacks)
        checkpoints = Checkpoints(place, settings, reporter.is_secret)
        report = FitReport(dataset, settings, rate, reporter, state, checkpoints, stop, validation.score, checkpoint)
        first_step = report.progress.epoch * per_epoch
        training = training_input(dataset, settings.batch_size, settings.seed, settings.epochs, first_step)
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
        prepare_callbacks(report.callbacks, settings, checkpoint is not None)
        batches = distributed(strategy.distribution, _weighted(training, weights))
        _run(model.network, batches, validation, report)
    report.progress.outside = dict(report.callbacks.outside)
    reporter.doing("writing the best weights")
    if settings.restore_best:
        best.restore()
    params = {"jit": "on" if settings.jit == "on" else "off", "steps_per_call": settings.steps_per_call or 1, **needed}
    files = write_files(model, report.progress, best, folder)
    record = Record(params, timing.metrics() | gpu_peak(strategy), files, summary=validation_facts(dataset))
    return result_of(model, report.progress, best, settings, record)


allow_reuse(fit, save_trained, restore_trained)


def _run(network: keras.Model, batches: Any, validation: "_Validation", report: FitReport) -> None:
    """Runs the epochs that are left; if none is, the callbacks alone: the run was interrupted after training."""
    if report.progress.finished:
        report.callbacks.on_train_begin()
        report.callbacks.on_train_end()
        return
    settings = report.settings
    network.fit(
        batches,
        steps_per_epoch=steps_per_epoch(report.dataset.train, settings.batch_size),
        initial_epoch=report.progress.epoch,
        epochs=settings.epochs,
        validation_data=validation.input(settings.epochs),
        validation_steps=validation.steps,
        callbacks=report.callbacks,
        shuffle=False,  # the input is
        verbose=0,
    )


def _compile(model: Model, strategy: Strategy, settings: FitSettings, per_epoch: int, shift: int) -> Rate:
    chosen = settings.optimizer
    options: dict[str, Any] = {"global_clipnorm": chosen.clip_norm or None}
    if chosen.ema_momentum:
        options |= {"use_ema": True, "ema_momentum": chosen.ema_momentum}
    with strategy.distribution.scope(), keras_floats(model.policy):  # dtype of Keras' losses and means
        peak = chosen.learning_rate
        rate = learning_rate(peak, settings.schedule, per_epoch, settings.epochs, shift, policy=model.policy)
        optimizer = build_optimizer(chosen, rate, model.policy, **options)
        exclude_from_decay(optimizer, model.network, chosen)
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


class _Validation:
    """Validation by Keras: `passes` whole ones in each call, or it would go beyond its number of steps."""

    def __init__(self, model: Model, split: Split, strategy: Strategy, passes: int) -> None:
        self._network = model.network
        self._split = split
        self._strategy = strategy
        self._passes = passes
        self._size = _validation_batch(len(split), strategy.in_sync, scoring_batch(model.network, strategy))

    @property
    def steps(self) -> int:
        return steps_per_epoch(self._split, self._size) * self._passes

    def input(self, epochs: int = 1) -> Any:
        """Returns the batches of as many validations."""
        batches = evaluation_input(self._split, self._size, passes=epochs * self._passes)
        return distributed(self._strategy.distribution, batches)

    def score(self) -> dict[str, float]:
        """Returns loss and accuracy of the network as it is."""
        scores: dict[str, float] = self._network.evaluate(self.input(), steps=self.steps, verbose=0, return_dict=True)
        return scores


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
