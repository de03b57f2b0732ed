"""Rows of a comparison: runs that differ only by seed, with mean and standard deviation of each metric."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from pipeline.comparison.compared_run import ComparedRun
from stages.evaluation.test_set import may_be_same_pixels

RATES = ("train/images_per_second", "train/features_per_second")
"""Of what training counts: features are what a frozen backbone has made of images. A job with both has two phases."""


LOWER_IS_BETTER = ("loss", "error", "mae", "mse", "perplexity", "seconds", "diff", "mib", "bytes")
"""Ends of the names of metrics of which less is better: losses, errors, times, sizes."""


@dataclass(frozen=True)
class Row:
    """Finished runs that differ by seed alone.

    settings: those that differ between rows, without the seed.
    """

    settings: Mapping[str, str]
    runs: tuple[ComparedRun, ...]

    @property
    def label(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.settings.items()) or "the only setting"

    @property
    def has_seeds_of_their_own(self) -> bool:
        """Whether no two of its runs have the same seed."""
        return len({run.seed for run in self.runs}) == len(self.runs)

    @cached_property
    def metrics(self) -> set[str]:
        return {name for run in self.runs for name in run.metrics}

    def values(self, name: str) -> list[float]:
        """Returns a metric, or `seconds`, of each run that has it."""
        if name == "seconds":
            return [run.seconds for run in self.runs]
        return [run.metrics[name] for run in self.runs if name in run.metrics]

    def mean(self, name: str) -> float | None:
        """Returns the mean over the runs, NaN where it is that of one; None where none has the metric."""
        values = self.values(name)
        return float(np.mean(values)) if values else None

    def std(self, name: str) -> float | None:
        """Returns the sample standard deviation over the runs; None of fewer than two."""
        values = self.values(name)
        return float(np.std(values, ddof=1)) if len(values) > 1 else None

    @cached_property
    def speed(self) -> float | None:
        """Examples per second that training takes."""
        return next((self.mean(rate) for rate in RATES if rate in self.metrics), None)

    @property
    def is_debug(self) -> bool:
        """Whether its runs only checked an experiment."""
        return any(run.is_debug for run in self.runs)

    @property
    def replicas(self) -> int:
        return self.runs[0].replicas

    @property
    def where(self) -> str:
        """The devices, such as `2 GPUs`."""
        devices = self.runs[0].devices
        kinds = {device.rpartition("device:")[2].partition(":")[0] for device in devices} if devices else set()
        if len(kinds) != 1:
            return f"{self.replicas} replica{'s' * (self.replicas != 1)}"
        return f"{len(devices)} {kinds.pop()}{'s' * (len(devices) != 1)}"


def rows_of(runs: Sequence[ComparedRun]) -> tuple[tuple[str, ...], tuple[Row, ...]]:
    """Returns the names of the settings that differ, without the seed, and the rows of the runs that have finished.

    A name differs where two runs, finished or not, have different values. The order is that of the runs.
    """
    names = list(dict.fromkeys(name for run in runs for name in run.settings if name != "seed"))
    differing = tuple(name for name in names if len({run.setting(name) for run in runs}) > 1)
    groups: dict[tuple[str | None, ...], list[ComparedRun]] = {}
    for run in runs:
        if run.has_finished:
            groups.setdefault(tuple(run.setting(name) for name in differing), []).append(run)
    rows = tuple(
        Row({name: value for name, value in zip(differing, key, strict=True) if value is not None}, tuple(members))
        for key, members in groups.items()
    )
    return differing, rows


def is_lower_better(metric: str) -> bool:
    """Returns whether less of a metric is better, by its name: losses, errors and times."""
    last = metric.rpartition("/")[2].removeprefix("best_")
    return last.endswith(LOWER_IS_BETTER)


def chosen_metric(rows: Sequence[Row]) -> str | None:
    """Returns the validation metric on which the best row is chosen.

    That by which all runs chose their best epoch; where they differ in that, the best validation accuracy, as losses
    of different settings need not be on one scale; None where some have none, or they are of different examples.
    """
    if not are_validated_alike(rows):
        return None
    monitors = {run.monitor for row in rows for run in row.runs}
    candidates = [monitors.pop()] if len(monitors) == 1 else []
    for name in (*candidates, "val/best_accuracy"):
        if name is not None and rows and all(name in run.metrics for row in rows for run in row.runs):
            return name
    return None


def are_validated_alike(rows: Sequence[Row]) -> bool:
    """Returns whether no two runs are known to have been validated on different examples."""
    known = {run.validated for row in rows for run in row.runs if run.validated is not None}
    examples = {digest for digest, _ in known}
    return len(examples) < 2 and all(
        may_be_same_pixels(*pair) for pair in combinations({pixels for _, pixels in known}, 2)
    )


def best_row(rows: Sequence[Row], metric: str | None) -> Row | None:
    """Returns the row with the best mean of `metric`; of equals the fastest; None without a finite one."""
    if metric is None:
        return None
    sign = -1 if is_lower_better(metric) else 1
    means = [(sign * mean, row.speed or 0.0, row) for row in rows if (mean := row.mean(metric)) is not None]
    finite = [entry for entry in means if math.isfinite(entry[0])]
    return max(finite, key=lambda entry: entry[:2])[2] if finite else None
