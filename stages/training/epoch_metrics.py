"""Metrics of epochs: their tracked names, the log line of each, and those of epochs that a checkpoint brings."""

import re
from collections.abc import Callable, Mapping, Sequence

from stages.checkpoints.progress import Clock, Progress
from stages.errors import UserError
from stages.reporter import Reporter


def report_completed(progress: Progress, notes: Sequence[str], epochs: int, reporter: Reporter) -> None:
    """Reports the epochs completed before training resumes or a fork begins.

    Raises:
        UserError: where a fork has no epoch left to train.
    """
    if progress.epoch >= epochs and not progress.finished:
        raise UserError(
            f"train.epochs={epochs}, and {progress.epoch} are over where this run starts from",
            f"more than {progress.epoch}",
            f"train.epochs={2 * progress.epoch}",
        )
    for note in notes:
        reporter.warn(note)
    for epoch, row in enumerate(progress.rows, progress.first_epoch):
        reporter.metrics(row, step=epoch)


_RESERVED = re.compile(
    r"(train|val)/((best|start)_(loss|accuracy)|best_(epoch|learning_rate)|(last|weights)_epoch|phase|loss_scale"
    r"|skipped_steps|(images|features)_per_second|step_milliseconds|input_wait_fraction|(\w+_)?seconds)"
)
"""Names of the metrics that training itself records."""


def tracked(name: str) -> str:
    """Returns the tracked name of a Keras log: `val_loss` is `val/loss`, `loss` is `train/loss`."""
    if name.startswith(("train/", "val/")):
        return name
    return f"val/{name[4:]}" if name.startswith("val_") else f"train/{name}"


def epoch_metrics(logs: Mapping[str, float], clock: Clock, warn: Callable[[str], None]) -> dict[str, float]:
    """Returns an epoch's metrics by the names under which they are tracked.

    Args:
        warn: called for a log under a name that training itself records, which only a callback can have added.
    """
    return tracked_logs(logs, warn) | clock.rates()


def tracked_logs(logs: Mapping[str, float], warn: Callable[[str], None]) -> dict[str, float]:
    """Returns logs by the names under which they are tracked; a reserved one becomes `train/logs_<name>`."""
    metrics = {}
    for name, value in logs.items():
        metric = tracked(name)
        if _RESERVED.fullmatch(metric):
            split, _, log = metric.partition("/")
            warn(f"a callback adds {name} to the logs, a name of training's own: it is recorded as {split}/logs_{log}")
            metric = f"{split}/logs_{log}"
        metrics[metric] = float(value)
    return metrics


def is_rate(name: str) -> bool:
    """Returns whether a tracked name is one of `Clock.rates`, which are of the whole run and not of an epoch."""
    return name.endswith(("_per_second", "/step_milliseconds", "/input_wait_fraction"))


def epoch_line(epoch: int, epochs: int, steps_per_epoch: int, logs: Mapping[str, float], clock: Clock) -> str:
    """Returns the log line of `epoch`, counted from 0."""
    rate = clock.per_second
    speed = f"{rate:,.0f} {clock.unit}/s" if rate else "-"
    remaining = (
        f"  {steps_per_epoch * (epochs - epoch - 1) * clock.step_seconds:.0f} s left" if epoch + 1 < epochs else ""
    )
    means = "  ".join(
        f"{name} {logs[name]:.4f}" for name in ("loss", "accuracy", "val_loss", "val_accuracy") if name in logs
    )
    return f"epoch {epoch + 1:{len(str(epochs))}}/{epochs}  {means}  {speed}{remaining}"
