"""The `train` stage: the training loop, with validation, callbacks and the best weights."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from stages.agreement import from_chief, has_workers, is_chief
from stages.batches import steps_per_epoch
from stages.callbacks import BestWeights, build_callbacks, save_weights
from stages.checkpoints import Checkpoint, Checkpoints, from_bytes, newest, to_bytes
from stages.epochs import Epochs
from stages.errors import UserError
from stages.gradients import Gradients
from stages.history import tracked
from stages.jit import choose_jit
from stages.losses import cross_entropy
from stages.optimizers import build_optimizer, learning_rate
from stages.plots import plot_history
from stages.reporter import Reporter, Silent
from stages.results import Dataset, Model, Record, Strategy, Trained
from stages.settings.train import TrainSettings
from stages.step import Step


def train(
    model: Model,
    dataset: Dataset,
    strategy: Strategy,
    settings: TrainSettings,
    reporter: Reporter | None = None,
    folder: Path | None = None,
) -> Trained:
    """Trains `model` in place and returns it with the best epoch's weights (or the last's, by `restore_best`).

    Under a parameter-server strategy the result is a copy of it on one device.

    Args:
        reporter: is told every epoch's metrics, and the progress within.
        folder: the run's; takes checkpoints, `checkpoints/best.weights.h5`, `checkpoints/averages.weights.h5` where
            averages are kept and not used, and `plots/history.png`. Training goes on from the last whole checkpoint
            that is there. None: no files.

    Raises:
        UserError: where the replicas cannot share the batch, the loss is no longer finite, the checkpoint belongs to
            another training, or one cannot be written.
    """
    settings.check_share(strategy.in_sync)
    settings = replace(settings, class_weights=class_weights(settings.class_weights, dataset))
    reporter = reporter or Silent()
    per_epoch = steps_per_epoch(dataset.train, settings.batch_size)
    loss = cross_entropy(model.outputs, settings.label_smoothing)
    with strategy.distribution.scope():
        rate = learning_rate(settings.optimizer.learning_rate, settings.schedule, per_epoch, settings.epochs)
        optimizer = build_optimizer(settings.optimizer, rate)
        # For callbacks, which look for `model.optimizer`, and for a `compute_loss` of the network's own.
        for network in (model.network, model.network.core) if model.has_own_loss else (model.network,):
            network.compile(optimizer, loss, jit_compile=False, auto_scale_loss=False)
    best, callbacks = build_callbacks(settings, reporter)
    callbacks.set_model(model.network)

    def gradients(compiled: bool) -> Gradients:
        return Gradients(model, loss, settings, strategy.in_sync, compiled)

    jit, why = choose_jit(settings, strategy, model, dataset, gradients)
    if settings.jit != "auto":
        reporter.say(f"jit {'on' if jit else 'off'}: {why}")
    step = Step(strategy, model, optimizer, settings, jit)
    epochs = Epochs(model, dataset, strategy, settings, step, rate, callbacks)
    place = folder / "checkpoints" if folder is not None else None
    epochs.run(
        reporter, Checkpoints(place if is_chief(strategy) else None, settings), _found(place, strategy, reporter)
    )
    if step.averages is not None and not settings.optimizer.ema_use and place is not None:
        with step.averages.used():
            save_weights(epochs.take_over().network, place / "averages.weights.h5")
    if settings.restore_best:
        best.restore()
    params = {"jit": "on" if jit else "off", "jit_reason": why, "steps_per_call": epochs.steps_per_call}
    progress = epochs.progress
    return finished(epochs.take_over(), progress.rows, best, settings, progress.step, params, folder)


def _found(place: Path | None, strategy: Strategy, reporter: Reporter) -> Checkpoint | None:
    """Returns the checkpoint to go on from, of which only the chief's folder is asked."""
    own = newest(place, reporter.warn) if place is not None and is_chief(strategy) else None
    if not has_workers(strategy):
        return own
    content = from_chief(strategy, to_bytes(own) if own is not None else b"")
    return from_bytes(content) if content else None


def finished(
    model: Model,
    history: Sequence[Mapping[str, float]],
    best: BestWeights,
    settings: TrainSettings,
    steps: int,
    params: Mapping[str, object],
    folder: Path | None,
) -> Trained:
    """Returns the result of a training that is over, and writes its files."""
    files = {}
    if folder is not None:
        best.save(folder / "checkpoints" / "best.weights.h5", model.network)
        files["plots"] = plot_history(history, best.best_epoch, folder / "plots" / "history.png")
    monitored = tracked(settings.monitor).replace("/", "/best_")  # such as val/best_loss
    metrics = {"train/best_epoch": best.best_epoch, monitored: best.best_value}
    return Trained(model, tuple(history), best.best_epoch, steps, Record(params, metrics, files))


def class_weights(given: object, dataset: Dataset) -> list[float] | None:
    """Returns a weight for each class, or None for all alike.

    Raises:
        UserError: where there are not as many weights as classes.
    """
    if given is None:
        return None
    if given == "balanced":
        counts = np.bincount(dataset.train.labels, minlength=dataset.num_classes)
        return [float(len(dataset.train) / (dataset.num_classes * max(count, 1))) for count in counts]
    assert isinstance(given, list)
    if len(given) != dataset.num_classes:
        raise UserError(
            f"train.class_weights has {len(given)} numbers",
            f"{dataset.num_classes}, one for each of {', '.join(dataset.class_names)}",
            "train.class_weights=balanced",
        )
    return [float(weight) for weight in given]
