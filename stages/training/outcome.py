"""Reports of a training: its memory, the metrics and the log line of an epoch, errors that end it, and its result."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import keras
import tensorflow as tf

from stages.callbacks import BestWeights
from stages.checkpoints.progress import Progress
from stages.data.free_memory import available_memory
from stages.errors import UserError
from stages.networks.complexity import output_bytes
from stages.optimization.loss_scale import LEAST_SCALE, LossScale
from stages.plots.charts import plot_history
from stages.reporter import Reporter
from stages.results import Model, Record, Strategy, Trained
from stages.settings.train import TrainSettings
from stages.tasks.task import Task
from stages.training.phases import Phase

_MIB = 2**20

_COPIES = 6
"""Extra copies of the weights: gradients, their sum, two slots, the best epoch's and a checkpoint's."""


def warn_of_memory(model: Model, strategy: Strategy, settings: TrainSettings, reporter: Reporter) -> None:
    """Warn if this host may not have enough memory.

    The estimate includes the outputs of all layers for a batch, or for its part with accumulation, and copies of the
    weights. GPUs are not estimated: TensorFlow reports it when their memory is full.
    """
    examples = -(-settings.batch_size // settings.optimizer.accumulation)
    weights = 4 * model.network.count_params()
    needed = examples * sum(output_bytes(model.network)) + _COPIES * weights
    is_here = not any("GPU" in device for device in strategy.devices)
    free = available_memory()
    if is_here and needed > free:
        reporter.warn(
            f"train.batch_size={settings.batch_size} may need {needed / _MIB:,.0f} MiB of memory, but only "
            f"{free / _MIB:,.0f} MiB are free. A smaller batch or optimizer.accumulation needs less"
        )


def report_completed(progress: Progress, epochs: int, reporter: Reporter) -> None:
    """Report the epochs completed before training resumes or a fork begins.

    Args:
        progress: The progress of the training.
        epochs: The number of epochs of the phase.
        reporter: Receives the metrics of each epoch.

    Raises:
        UserError: If a fork has no epoch left to train.
    """
    name, done = "train.fine_tune_epochs" if progress.phase else "train.epochs", progress.epoch - progress.began
    if done >= epochs and not progress.finished:
        raise UserError(
            f"{name}={epochs}, but the checkpoint that this run starts from has already trained "
            f"{done} epoch{'s' * (done != 1)}",
            f"more than {done}",
            f"{name}={2 * done}",
        )
    for epoch, row in enumerate(progress.rows, progress.first_epoch):
        reporter.metrics(row, step=epoch)


def report_epoch(  # all of them are parts of one line
    progress: Progress, own: Mapping[str, float], epochs: int, task: Task, reporter: Reporter
) -> None:
    """Record the metrics of the epoch that ends, and log its line.

    Args:
        progress: The progress of the training, with the logs of the epoch.
        own: Metrics of the training itself, by their tracked names.
        epochs: The number of epochs of all phases.
        task: The task, which formats its metrics.
        reporter: Receives the metrics and the line.
    """
    row = {tracked(name): value for name, value in progress.logs.items()} | progress.clock.rates() | dict(own)
    progress.rows.append(row)
    reporter.metrics(row, step=progress.epoch + 1)
    reporter.log(_epoch_line(progress, epochs, task))


def diverged(progress: Progress, settings: TrainSettings, why: str) -> UserError:
    """Return the error for losses or weights that are not finite."""
    return UserError(
        f"training diverged by step {progress.step} (epoch {progress.epoch + 1}): {why}",
        "a lower learning rate, schedule.warmup_epochs=1 or precision=float32",
        f"optimizer.learning_rate={settings.optimizer.learning_rate / 10:g}",
    )


def refuse_divergence(progress: Progress, settings: TrainSettings, loss: float, scale: LossScale | None) -> None:
    """Raise UserError if the training loss cannot become finite again.

    Args:
        progress: The progress of the training.
        settings: The settings of the training.
        loss: The mean loss of the epoch so far.
        scale: The loss scale. With one, steps that overflow are skipped and not counted.
    """
    if scale is None and not math.isfinite(loss):
        raise diverged(progress, settings, f"the loss is {loss}")
    if scale is not None and float(scale.value.numpy()) < LEAST_SCALE:
        raise diverged(progress, settings, "float16 overflows even at the smallest loss scale")


def refuse_invalid_weights(progress: Progress, settings: TrainSettings, network: keras.Model) -> None:
    """Raise UserError if a weight is not finite."""
    if (invalid := first_invalid(network.trainable_weights)) is not None:
        raise diverged(progress, settings, f"the weight {invalid} is not finite")


def first_invalid(weights: Sequence[keras.Variable]) -> str | None:
    """Return the path of the first weight with a NaN or an infinity; None if all are finite.

    A loss can stay finite with such weights, as a ReLU makes 0 of a NaN.
    """
    for weight in weights:
        if "float" in weight.dtype and not tf.reduce_all(tf.math.is_finite(tf.convert_to_tensor(weight.value))):
            return str(weight.path)
    return None


def too_large(batch_size: int, error: tf.errors.ResourceExhaustedError) -> UserError:
    """Return the error for a batch that does not fit in memory. It suggests half of the batch."""
    half = max(batch_size // 2, 1)
    return UserError(
        f"train.batch_size={batch_size} does not fit in memory ({error.message.partition(chr(10))[0][:200]})",
        f"{half} or less" if half < batch_size else "a smaller network or smaller images",
        f"train.batch_size={half}" if half < batch_size else "model=cnn",
    )


def own_metrics(phase: Phase, scale: LossScale | None) -> dict[str, float]:
    """Return the metrics of an epoch that no callback sees."""
    metrics = {"train/phase": phase.index + 1.0} if phase.index or phase.later else {}
    if scale is not None:
        metrics["train/loss_scale"] = float(scale.value.numpy())
        metrics["train/skipped_steps"] = float(scale.skipped_steps.numpy())
    return metrics


def why_stopped(callbacks: Sequence[keras.callbacks.Callback]) -> str:
    """Return what stopped the training before its last epoch, as the end of a sentence."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.EarlyStopping) and callback.stopped_epoch:
            return f": no better {callback.monitor} for {callback.patience} epochs"
    return ", by a callback"


def tracked(name: str) -> str:
    """Return the tracked name of a Keras log: `val_loss` is `val/loss`, `loss` is `train/loss`."""
    if name.startswith(("train/", "val/")):
        return name
    return f"val/{name[4:]}" if name.startswith("val_") else f"train/{name}"


def _epoch_line(progress: Progress, epochs: int, task: Task) -> str:
    """Return a line of fewer than 100 columns: each metric of training, followed by that of validation."""
    logs = progress.logs
    names = [
        name
        for metric in ("loss", task.primary, *task.view.shown)
        for name in (metric, f"val_{metric}")
        if name in logs
    ]
    values = [
        f"{name} {task.view.text(name.removeprefix('val_'), logs[name], task.is_higher_better(name))}" for name in names
    ]
    of_all = f"{progress.epoch + 1:{len(str(epochs))}}/{epochs}"
    return "  ".join([f"epoch {of_all}", *values, progress.clock.speed])


def write_files(model: Model, progress: Progress, best: BestWeights, folder: Path | None) -> dict[str, Path]:
    """Write the best weights and the plot of a training's history; return the plot, to be recorded."""
    if folder is None:
        return {}
    best.save(folder / "checkpoints" / "best.weights.h5", model.network)
    path = folder / "plots" / "history.png"
    return {"plots": plot_history(progress.rows, model.task.primary, best.best_epoch, path, progress.first_epoch)}


def result_of(model: Model, progress: Progress, best: BestWeights, settings: TrainSettings, record: Record) -> Trained:
    """Return the result of a completed training; its record adds metrics and the weights' epoch to `record`.

    Metrics of the last epoch keep their names (`val/loss`); those of the best are `val/best_loss` and so on.
    """
    epoch = best.best_epoch if settings.restore_best else progress.epoch
    weights = {
        "epoch": epoch,
        "selection": "best" if settings.restore_best else "last",
        "monitor": settings.monitor,
        "ema": bool(settings.optimizer.ema_momentum and settings.optimizer.ema_use),
    }
    metrics: dict[str, float] = {
        name.replace("/", "/best_", 1): value
        for name, value in progress.rows[best.best_epoch - progress.first_epoch].items()
        if not name.endswith(("_per_second", "/step_milliseconds", "/input_wait_fraction"))  # are of the whole run
    }
    metrics |= {"train/best_epoch": best.best_epoch, "train/last_epoch": progress.epoch, "train/weights_epoch": epoch}
    record = replace(record, metrics={**metrics, **record.metrics}, weights=weights)
    return Trained(model, tuple(progress.rows), best.best_epoch, progress.step, record)


def gpu_peak(strategy: Strategy) -> dict[str, float]:
    """Return `memory/gpu_peak_mib`, the peak of memory of this host's fullest GPU; nothing without GPUs."""
    if not all("GPU" in device for device in strategy.devices):
        return {}
    names = [device.name.rpartition("/device:")[2] for device in tf.config.list_logical_devices("GPU")]
    peaks = [tf.config.experimental.get_memory_info(name)["peak"] for name in names]
    return {"memory/gpu_peak_mib": max(peaks) / _MIB} if peaks else {}
