"""Training by Keras' `Model.fit`, for networks that have a `train_step` of their own."""

import math
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from stages.callbacks.best_weights import BestWeights
from stages.callbacks.build import build_callbacks, numbers, prepare_callbacks
from stages.checkpoints.files import Checkpoint, Checkpoints, newest
from stages.checkpoints.progress import Progress
from stages.checkpoints.saved import restore_trained, save_trained
from stages.data.batches import distributed, evaluation_input, training_input
from stages.data.examples import Batch, network_input
from stages.errors import UserError
from stages.evaluation.test_set import validation_facts
from stages.networks.precision import keras_floats
from stages.optimization.optimizers import Rate, build_optimizer, exclude_from_decay, last_rate, learning_rate
from stages.reporter import Reporter, Silent, Stop
from stages.results import Dataset, Model, Record, Strategy, Trained
from stages.reuse import allow_reuse
from stages.safe_places import safe_place
from stages.settings.train import FitSettings
from stages.tasks.task import Task
from stages.training.outcome import diverged, report_completed, report_epoch, result_of, write_files
from stages.training.validation import first_invalid


def fit(
    model: Model,
    dataset: Dataset,
    strategy: Strategy,
    settings: FitSettings,
    reporter: Reporter | None = None,
    folder: Path | None = None,
) -> Trained:
    """Train `model` in place by `Model.fit`, on the batches of the training loop; metrics are Keras' own.

    Arguments, result and files are those of `stages.train.train`. A run resumes at the end of its last epoch, with
    callbacks that start again.

    Raises:
        UserError: where Keras would average over replicas whose batches differ in size.
    """
    per_epoch = _steps_per_epoch(settings, strategy, len(dataset.train))
    if dataset.train.weights is not None:
        raise UserError("train=fit divides weighted losses by their number", "train=loop", "train=loop")
    network = model.network.core
    reporter = reporter or Silent()
    place = folder / "checkpoints" / "fit" if folder is not None else None
    task = model.task.for_training(settings, dataset.train.targets)

    def for_training(batch: Batch) -> tuple[Any, ...]:
        weights = task.weights(batch.targets, tf.float64)
        return *for_validation(batch), *(() if weights is None else (weights,))

    def for_validation(batch: Batch) -> tuple[Any, ...]:
        return model.network.scaled(network_input(batch.inputs)), batch.targets

    with keras_floats(model.policy), reporter.stopping() as stop:  # Keras makes its losses at the first step
        rate = _compile(model, task, strategy, settings, per_epoch, reporter)
        best, callbacks = build_callbacks(settings, model.task, reporter, folder=folder, metrics=model.metrics)
        swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True) if settings.optimizer.ema_use else None
        checkpoints = Checkpoints(place, settings)
        report = _Report(task, rate, best, swap, settings, len(dataset.train), checkpoints, reporter, stop)
        first = report.restore(network, newest(place, reporter.warn) if place is not None else None)
        report.progress.clock.unit = dataset.unit
        prepare_callbacks(callbacks, settings, bool(first))
        batches = training_input(dataset, settings.batch_size, settings.seed, settings.epochs, first * per_epoch)
        size = _validation_batch(len(dataset.val), strategy.in_sync)
        validation = evaluation_input(dataset.val, size, passes=settings.epochs)
        network.fit(
            distributed(strategy.distribution, lambda context: batches(context).map(for_training)),
            steps_per_epoch=per_epoch,
            initial_epoch=first,
            epochs=settings.epochs,
            validation_data=distributed(strategy.distribution, lambda context: validation(context).map(for_validation)),
            validation_steps=-(-len(dataset.val) // size),
            callbacks=[*([swap] if swap else []), *callbacks.callbacks, report],
            shuffle=False,  # the input is
            verbose=0,
        )
    reporter.doing("writing the best weights")
    network.set_weights(best.weights if settings.restore_best else report.last_weights)
    progress = report.progress
    record = Record(files=write_files(model, progress, best, folder), summary=validation_facts(dataset))
    if place is not None:
        shutil.rmtree(place, ignore_errors=True)
    return result_of(model, progress, best, settings, record)


allow_reuse(fit, save_trained, restore_trained)


@dataclass(eq=False)
class _Report(keras.callbacks.Callback):
    """Reports and saves each epoch; the last of all callbacks, so that it sees what they add to the logs.

    task: of the training. swap: puts the EMA into the network. progress: what is done, and the metrics of each epoch.
    """

    task: Task
    rate: Rate
    best: BestWeights
    swap: keras.callbacks.SwapEMAWeights | None
    settings: FitSettings
    examples: int
    checkpoints: Checkpoints
    reporter: Reporter
    stop: Stop
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        super().__init__()
        self._per_epoch = -(-self.examples // self.settings.batch_size)
        self._began: float | None = None  # of a step; None for the first, which is traced

    def restore(self, network: keras.Model, checkpoint: Checkpoint | None) -> int:
        """Restore a checkpoint of `fit`; return the number of epochs that are done."""
        if checkpoint is None:
            return 0
        for index, variable in enumerate([*network.variables, *network.optimizer.variables]):
            variable.assign(checkpoint.arrays[f"variable.{index}"])
        self.best.weights = [checkpoint.arrays[f"best.{index}"] for index in range(len(network.weights))]
        self.best.best_epoch, self.best.best_value = checkpoint.facts["best"]
        if self.swap is not None:
            self.swap._ema_weights_in_model = True
        self.progress = Progress.of(checkpoint.facts["progress"])
        self.reporter.resumed(self.progress.step)
        report_completed(self.progress, [], self.settings.epochs, self.reporter)
        return self.progress.epoch

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        progress, size = self.progress, self.settings.batch_size
        if self._began is not None:
            progress.clock.add(time.perf_counter() - self._began, 1, min(size, self.examples - progress.done * size))
        progress.done, progress.step = progress.done + 1, progress.step + 1
        note = f"epoch {progress.epoch + 1}/{self.settings.epochs}  loss {(logs or {}).get('loss', math.nan):.4f}"
        total = self._per_epoch * self.settings.epochs
        self.reporter.progress(progress.step, total, None, f"{note}  {progress.clock.speed}")
        self._end_if_asked()
        self._began = time.perf_counter()

    def on_test_begin(self, logs: Mapping[str, float] | None = None) -> None:
        self.reporter.doing("validating")

    def on_test_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        safe_place()
        self._end_if_asked()

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        self._began = None if self._began is None else time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        progress = self.progress
        progress.logs = {"learning_rate": last_rate(self.model.optimizer, self.rate)} | numbers(logs or {})
        self.last_weights = self.model.get_weights()
        invalid = first_invalid(self.model.weights)
        if invalid or not math.isfinite(progress.logs.get("loss", 0.0)):
            why = f"{invalid} has values that are not finite" if invalid else f"the loss is {progress.logs['loss']}"
            raise diverged(progress, self.settings, why)
        report_epoch(progress, {}, self.settings.epochs, self.task, self.reporter)
        progress.epoch, progress.done = epoch + 1, 0
        progress.finished = self.model.stop_training or progress.epoch == self.settings.epochs
        variables = [*self.model.variables, *self.model.optimizer.variables]
        arrays = {f"variable.{index}": np.array(variable) for index, variable in enumerate(variables)}
        arrays |= {f"best.{index}": array for index, array in enumerate(self.best.weights)}
        facts = {
            "step": progress.step,
            "progress": asdict(progress),
            "best": [self.best.best_epoch, self.best.best_value],
        }
        self.checkpoints.save(Checkpoint(facts, arrays))

    def on_train_end(self, logs: Mapping[str, float] | None = None) -> None:
        self.checkpoints.wait()

    def _end_if_asked(self) -> None:
        if self.stop.requested:
            self.checkpoints.wait()
            self.stop.now()


def _compile(
    model: Model, task: Task, strategy: Strategy, settings: FitSettings, per_epoch: int, reporter: Reporter
) -> Rate:
    chosen, network = settings.optimizer, model.network.core
    if not chosen.ema_use:  # an EMA that is kept and not used would end as the weights
        chosen = replace(chosen, ema_momentum=0.0)
    with strategy.distribution.scope():
        rate = learning_rate(chosen.learning_rate, settings.schedule, per_epoch, settings.epochs, policy=model.policy)
        optimizer = build_optimizer(chosen, rate, model.policy)
        left_out = exclude_from_decay(optimizer, network, chosen)
        if left_out:
            reporter.log(f"weight decay leaves out {left_out}")
        network.compile(optimizer, task.losses, metrics=task.metric_functions(), jit_compile=settings.jit == "on")
        network.optimizer.build(network.trainable_variables)  # a loss scale around it, too
    return rate


def _steps_per_epoch(settings: FitSettings, strategy: Strategy, examples: int) -> int:
    """Number of steps of an epoch; UserError where the replicas' batches differ in size."""
    replicas, size = strategy.in_sync, settings.batch_size
    settings.check_share(replicas, examples)
    per_epoch, last = -(-examples // size), examples % size or size
    if size % replicas or last % replicas:
        raise UserError(
            f"train=fit averages the replicas' means, which is wrong where per-replica batches differ: {replicas} "
            f"replicas, train.batch_size={size}, a last batch of {last} (github.com/keras-team/keras/issues/19891)",
            f"batches that {replicas} divides, or train=loop, which is correct for all",
            "train=loop",
        )
    return per_epoch


def _validation_batch(examples: int, replicas: int) -> int:
    """Largest batch size up to 256 with which even the last batch gives every replica an example."""
    sizes = [*range(256, replicas - 1, -1), *range(257, 257 + replicas)]
    return next(size for size in sizes if examples % size == 0 or examples % size >= replicas)
