"""The result of a training: metrics, files, and the epoch whose weights it has."""

from collections.abc import Mapping
from pathlib import Path

from stages.plots.charts import plot_history
from stages.results import Model, Record, Trained
from stages.settings.train import TrainSettings
from stages.training.callbacks import BestWeights
from stages.training.progress import Progress, is_rate, named
from stages.training.timing import Timing


def result_of(
    model: Model,
    progress: Progress,
    best: BestWeights,
    settings: TrainSettings,
    params: Mapping[str, object],
    folder: Path | None,
    timing: Timing,
) -> Trained:
    """Returns the result of a training that is over, and writes its files.

    Metrics of the last epoch keep their names (`val/loss`); those of the best are `val/best_loss` and so on.
    """
    rows = progress.rows
    files = {}
    if folder is not None:
        best.save(folder / "checkpoints" / "best.weights.h5", model.network)
        path = folder / "plots" / "history.png"
        files["plots"] = plot_history(rows, best.best_epoch, path, progress.first_epoch)
    epoch = best.best_epoch if settings.restore_best else progress.epoch
    weights = {
        "epoch": epoch,
        "selection": "best" if settings.restore_best else "last",
        "monitor": settings.monitor,
        "ema": bool(settings.optimizer.ema_momentum and settings.optimizer.ema_use),
    }
    metrics: dict[str, float] = {
        **named(progress.outside, lambda line: None),
        **progress.start,
        "train/best_epoch": best.best_epoch,
        "train/last_epoch": progress.epoch,
        "train/weights_epoch": epoch,
    }
    for name, value in rows[best.best_epoch - progress.first_epoch].items():
        split, _, rest = name.partition("/")
        if not is_rate(name) and f"{split}/best_{rest}" not in rows[-1]:  # a callback may have one of its own
            metrics[f"{split}/best_{rest}"] = value
    record = Record(params, metrics | timing.metrics(), files, weights)
    return Trained(model, tuple(rows), best.best_epoch, progress.step, record)
