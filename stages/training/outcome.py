"""The result of a training: metrics, files, and the epoch whose weights it has."""

from dataclasses import replace
from pathlib import Path

from stages.callbacks.best_weights import BestWeights
from stages.checkpoints.progress import Progress
from stages.plots.charts import plot_history
from stages.results import Model, Record, Trained
from stages.settings.train import TrainSettings
from stages.training.epoch_metrics import is_rate, tracked_logs


def write_files(model: Model, progress: Progress, best: BestWeights, folder: Path | None) -> dict[str, Path]:
    """Writes the best weights and the plot of a training's history; returns the plot, to be recorded."""
    if folder is None:
        return {}
    best.save(folder / "checkpoints" / "best.weights.h5", model.network)
    path = folder / "plots" / "history.png"
    return {"plots": plot_history(progress.rows, best.best_epoch, path, progress.first_epoch)}


def result_of(model: Model, progress: Progress, best: BestWeights, settings: TrainSettings, record: Record) -> Trained:
    """Returns the result of a completed training; its record adds metrics and the weights' epoch to `record`.

    Metrics of the last epoch keep their names (`val/loss`); those of the best are `val/best_loss` and so on.
    """
    rows = progress.rows
    epoch = best.best_epoch if settings.restore_best else progress.epoch
    weights = {
        "epoch": epoch,
        "selection": "best" if settings.restore_best else "last",
        "monitor": settings.monitor,
        "ema": bool(settings.optimizer.ema_momentum and settings.optimizer.ema_use),
    }
    metrics: dict[str, float] = {
        **tracked_logs(progress.outside, lambda line: None),
        **progress.start,
        "train/best_epoch": best.best_epoch,
        "train/last_epoch": progress.epoch,
        "train/weights_epoch": epoch,
    }
    for name, value in rows[best.best_epoch - progress.first_epoch].items():
        split, _, log = name.partition("/")
        if not is_rate(name) and f"{split}/best_{log}" not in rows[-1]:  # a callback may have its own of that name
            metrics[f"{split}/best_{log}"] = value
    record = replace(record, metrics={**metrics, **record.metrics}, weights=weights)
    return Trained(model, tuple(rows), best.best_epoch, progress.step, record)
