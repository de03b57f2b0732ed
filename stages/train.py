"""The `train` stage: the training loop, or Keras' own steps, with validation, callbacks and the best weights."""

import math
from dataclasses import replace
from pathlib import Path

import keras
import tensorflow as tf

from stages.callbacks import build_callbacks, save_weights
from stages.checkpoints.files import Checkpoints
from stages.checkpoints.saved import restore_trained, save_trained
from stages.collectives import is_chief
from stages.data.batches import steps_per_epoch
from stages.declared import declare
from stages.errors import UserError
from stages.evaluation.predictions import check_inputs
from stages.evaluation.test_set import validation_facts
from stages.networks.batch_norm import normalizing_by_batch
from stages.reporter import Reporter
from stages.results import Dataset, Model, Record, Strategy, Trained
from stages.settings.train import FitSettings, TrainSettings
from stages.training.outcome import gpu_peak, result_of, write_files
from stages.training.phase import Phase
from stages.training.session import Session, plan_phases, starting_point


def train(  # noqa: PLR0913  # a stage's parameters name its inputs
    model: Model,
    dataset: Dataset,
    strategy: Strategy,
    settings: TrainSettings,
    reporter: Reporter | None = None,
    folder: Path | None = None,
    cache: Path | None = None,
) -> Trained:
    """Trains `model` in place and returns it with the best epoch's weights (or the last's, by `restore_best`).

    Under a parameter-server strategy the result is a copy on one device. With fine-tuning, a second phase begins with
    the result of the first; epochs, history and the best weights are those of both.

    Args:
        reporter: receives the metrics of each epoch, and the progress within it.
        folder: the run's; takes checkpoints, `checkpoints/best.weights.h5`, `checkpoints/ema.weights.h5` where an
            EMA is kept and not used, and `plots/history.png`. Training resumes from the last intact checkpoint in it.
            None: no files.
        cache: the folder that runs share; takes the features of a frozen backbone.

    Raises:
        UserError: where the replicas cannot share the batch, the loss is no longer finite, the checkpoint belongs to
            another training, or one cannot be written.
    """
    reporter = reporter or Reporter()
    settings = replace(settings, early_stopping_patience=settings.patience(dataset.images is not None))
    _refuse_or_warn(model, dataset, strategy, settings, reporter)
    best, callbacks = build_callbacks(settings, model.task, reporter, folder, model.metrics)
    steps = steps_per_epoch(dataset.train, settings.batch_size)
    callbacks.set_params({"verbose": 0, "epochs": settings.all_epochs, "steps": steps})
    place = folder / "checkpoints" if folder is not None else None
    checkpoints = Checkpoints(place if is_chief(strategy) else None, settings)
    session = Session(model, dataset, strategy, best, callbacks, checkpoints, reporter, cache)
    plans = plan_phases(model.network, settings)
    checkpoint, start = starting_point(session, plans, place)
    phase: Phase | None = None
    params: dict[str, object] = {}
    for plan in plans[start:]:
        if phase is not None and settings.restore_best:
            best.restore()
        phase = Phase(session, plan, checkpoint, phase)
        checkpoint = None  # it may be large
        phase.run()
        params |= phase.params
    assert phase is not None

    if not math.isfinite(best.best_value):
        what = f"train.monitor={settings.monitor} is {best.best_value} in every epoch"
        reporter.warn(f"{what}, so there is no best epoch, and the weights of the last epoch are used")
    reporter.doing("writing the best weights")
    if phase.step.ema.values and not settings.optimizer.ema_use and place is not None:
        with phase.step.ema.as_weights():
            save_weights(phase.present_model().network, place / "ema.weights.h5")
    if settings.restore_best:
        best.restore()
    trained = phase.present_model()
    files = write_files(trained, phase.progress, best, folder)
    record = Record(params, gpu_peak(strategy), files, summary=validation_facts(dataset, trained.network))
    return result_of(trained, phase.progress, best, settings, record)


def fit(
    model: Model,
    dataset: Dataset,
    strategy: Strategy,
    settings: FitSettings,
    reporter: Reporter | None = None,
    folder: Path | None = None,
) -> Trained:
    """Trains `model` in place by the steps of `Model.fit`; arguments, result and files are those of `train`.

    Raises:
        UserError: if Keras would average over replicas whose batches differ in size or in the sum of their weights.
    """
    return train(model, dataset, strategy, settings, reporter, folder)


for _function in (train, fit):
    declare(_function, save=save_trained, restore=restore_trained)


def _refuse_or_warn(
    model: Model, dataset: Dataset, strategy: Strategy, settings: TrainSettings, reporter: Reporter
) -> None:
    """Refuses what the steps would compute wrongly or never call; warns of what they compute otherwise."""
    network, examples, size = type(model.network.core), len(dataset.train), settings.batch_size
    replicas, last = strategy.in_sync, examples % size or size
    if isinstance(settings, FitSettings):
        task = model.task.for_training(settings, dataset.train.target_values)
        by_target = task.weights(tf.constant(dataset.train.targets[:1]), tf.float32)
        if replicas > 1 and (dataset.train.weights is not None or by_target is not None):
            raise UserError(
                f"train=fit supports weights of examples or classes on 1 replica only, but {replicas} are used: Keras "
                "averages the replicas' means, although their sums of weights differ",
                "one device, or train=loop",
                "train=loop",
            )
        if size % replicas or last % replicas:
            raise UserError(
                f"train=fit requires batches that {replicas} replicas share equally, but train.batch_size={size} and "
                f"the last batch has {last} examples: Keras averages the replicas' means "
                "(github.com/keras-team/keras/issues/19891)",
                f"batch sizes divisible by {replicas}, or train=loop, which is exact for all sizes",
                "train=loop",
            )
    elif network.train_step is not keras.Model.train_step:
        raise UserError(
            f"{network.__name__} defines its own train_step, which train=loop does not call",
            "train=fit, which calls it, or a network that uses compute_loss, add_loss and metrics instead",
            "train=fit",
        )
    if network.test_step is not keras.Model.test_step:
        reporter.warn(f"{network.__name__}.test_step is not called: validation uses the task's loss and metrics")
    if strategy.coordinator is not None and not dataset.train.is_in_memory:
        problem = "strategy=parameter_server requires training examples that fit in memory, but these do not"
        raise UserError(problem, "data.memory_gib=<more>, or strategy=multi_worker", "strategy=multi_worker")
    settings.check_share(replicas)
    check_inputs(dataset.val, dataset.name, model.policy)
    if size > examples:
        reporter.warn(
            f"train.batch_size={size} is larger than the training split ({examples:,} {dataset.unit}), so each epoch "
            "is one step"
        )
    normalizing = normalizing_by_batch(model.network)
    if replicas > 1 and (plain := [layer.name for layer in normalizing if not layer.synchronized]):
        reporter.warn(
            f"{', '.join(plain[:3])}: each of the {replicas} replicas computes BatchNorm statistics over its own part "
            "of the batch, so results differ from one device. stages.networks.batch_norm.BatchNormalization uses the "
            "whole batch"
        )
    if settings.optimizer.accumulation > 1 and normalizing:
        reporter.warn("optimizer.accumulation: BatchNorm computes its statistics over each part of a batch separately")
