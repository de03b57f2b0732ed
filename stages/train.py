"""The `train` stage: trains the network and returns it with its best weights, see `stages.training.trainer`."""

from dataclasses import replace
from pathlib import Path

import keras

from stages.checkpoints.saved import restore_trained, save_trained
from stages.declared import declare
from stages.evaluation.predictions import check_inputs
from stages.networks.batch_norm import normalizing_by_batch
from stages.reporter import Reporter
from stages.results import Dataset, Model, Strategy, Trained
from stages.settings.train import FitSettings, TrainSettings
from stages.training.blending import blended
from stages.training.calibration import calibrated
from stages.training.engines import engine_for
from stages.training.trainer import Trainer


def train(  # noqa: PLR0913  # a stage's parameters name its inputs
    model: Model,
    dataset: Dataset,
    strategy: Strategy,
    settings: TrainSettings,
    reporter: Reporter | None = None,
    folder: Path | None = None,
    cache: Path | None = None,
) -> Trained:
    """Train `model` in place and return it with the weights of the best epoch (or of the last, by `restore_best`).

    Under a parameter-server strategy the result is a copy on one device. With fine-tuning, a second phase begins with
    the result of the first. Epochs, history and the best weights are those of both phases.

    Args:
        model: The model to train.
        dataset: The data set.
        strategy: The distribution strategy that the model was built in.
        settings: The settings of the training.
        reporter: Receives the metrics of each epoch, and the progress within it.
        folder: The run's folder, for checkpoints, `checkpoints/best.weights.h5`, `checkpoints/ema.weights.h5` if an EMA
            is kept and not used, and `plots/history.png`. Training resumes from the last intact checkpoint in it.
            None: no files.
        cache: The folder that runs share, for the features of a frozen backbone.

    Raises:
        UserError: If the replicas cannot share the batch, the loss is no longer finite, the checkpoint belongs to
            another training, or one cannot be written.
    """
    reporter = reporter or Reporter()
    settings = replace(settings, early_stopping_patience=settings.patience(dataset.images is not None))
    check(model, dataset, strategy, settings, reporter)
    trained = Trainer(model, dataset, strategy, settings, reporter, folder, cache).train()
    if not settings.calibrate:
        return trained
    return blended(calibrated(trained, dataset, strategy, reporter), dataset, strategy, reporter)


def fit(
    model: Model,
    dataset: Dataset,
    strategy: Strategy,
    settings: FitSettings,
    reporter: Reporter | None = None,
    folder: Path | None = None,
) -> Trained:
    """Train `model` in place by the steps of `Model.fit`; arguments, result and files are those of `train`.

    Raises:
        UserError: If Keras would average over replicas whose batches differ in size or in the sum of their weights.
    """
    return train(model, dataset, strategy, settings, reporter, folder)


for _function in (train, fit):
    declare(_function, save=save_trained, restore=restore_trained)


def check(model: Model, dataset: Dataset, strategy: Strategy, settings: TrainSettings, reporter: Reporter) -> None:
    """Refuse a training that would compute something else than its settings mean; warn of surprising results."""
    examples, size, replicas = len(dataset.train), settings.batch_size, strategy.in_sync
    engine_for(settings, strategy).check(model, dataset, strategy, settings)
    settings.check_share(replicas)
    check_inputs(dataset.val, dataset.name, model.policy)
    network = type(model.network.core)
    if network.test_step is not keras.Model.test_step:
        reporter.warn(f"{network.__name__}.test_step is not called: validation uses the task's loss and metrics")
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
