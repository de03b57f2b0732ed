"""Rows of a comparison: runs that differ only by seed, with mean and standard deviation of each metric."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from pipeline.comparison.compared_run import ComparedRun

Value = TypeVar("Value")

RATES = ("train/images_per_second", "train/features_per_second")
"""Of what training counts: features are what a frozen backbone has made of images. A job with both has two phases."""


_DECIMAL = re.compile(r"-?\d+(\.\d+(e-?\d+)?|e-?\d+)")

LOWER_IS_BETTER = ("loss", "error", "mae", "mse", "perplexity", "seconds", "diff", "mib", "bytes")
"""Ends of the names of metrics of which less is better: losses, errors, times, sizes."""


@dataclass(frozen=True, eq=False)
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

    def by_seed(self, value: Callable[[ComparedRun], Value | None]) -> dict[str, Value]:
        """Return what each run has, by its seed; a seed that is repeated counts once, as it shows nothing new."""
        values: dict[str, Value] = {}
        for run in self.runs:
            if (found := value(run)) is not None:
                values.setdefault(run.seed or run.folder.name, found)
        return values

    @cached_property
    def metrics(self) -> set[str]:
        return {name for run in self.runs for name in run.metrics}

    def values(self, name: str) -> list[float]:
        """Return a metric, or `seconds`, of each run that has it."""
        if name == "seconds":
            return [run.summary.seconds for run in self.runs]
        return [run.metrics[name] for run in self.runs if name in run.metrics]

    def mean(self, name: str) -> float | None:
        """Return the mean over the runs, NaN where it is that of one; None where none has the metric."""
        values = self.values(name)
        return float(np.mean(values)) if values else None

    def std(self, name: str) -> float | None:
        """Return the sample standard deviation over the runs; None of fewer than two."""
        values = self.values(name)
        return float(np.std(values, ddof=1)) if len(values) > 1 else None

    @cached_property
    def speed(self) -> float | None:
        """Examples per second that training takes."""
        return next((self.mean(rate) for rate in RATES if rate in self.metrics), None)

    @property
    def speed_std(self) -> float | None:
        return next((self.std(rate) for rate in RATES if rate in self.metrics), None)

    @property
    def is_debug(self) -> bool:
        """Whether its runs only checked an experiment."""
        return any(run.is_debug for run in self.runs)

    @property
    def replicas(self) -> int:
        return self.runs[0].summary.replicas or 1

    @property
    def where(self) -> str:
        """The devices, such as `2 GPUs`."""
        devices = self.runs[0].summary.facts.get("devices") or ()
        kinds = {device.rpartition("device:")[2].partition(":")[0] for device in devices} if devices else set()
        if len(kinds) != 1:
            return f"{self.replicas} replica{'s' * (self.replicas != 1)}"
        return f"{len(devices)} {kinds.pop()}{'s' * (len(devices) != 1)}"


def rows_of(runs: Sequence[ComparedRun]) -> tuple[tuple[str, ...], tuple[Row, ...]]:
    """Return the names of the settings that differ, without the seed, and the rows of the runs that have finished.

    A name differs where two runs, finished or not, have different values. The order is that of the runs.
    """
    names = list(dict.fromkeys(name for run in runs for name in run.settings if name != "seed"))
    differing = tuple(name for name in names if len({run.setting(name) for run in runs}) > 1)
    groups: dict[tuple[str | None, ...], list[ComparedRun]] = {}
    for run in runs:
        if run.has_finished:
            groups.setdefault(tuple(run.setting(name) for name in differing), []).append(run)
    texts = {
        name: _shortened({value for run in runs if (value := run.setting(name)) is not None}) for name in differing
    }
    rows = tuple(
        Row(
            {name: texts[name][value] for name, value in zip(differing, key, strict=True) if value is not None},
            tuple(own),
        )
        for key, own in groups.items()
    )
    return differing, rows


def _shortened(values: set[str]) -> dict[str, str]:
    """Return values as a table shows them: numbers with four digits, or as many as tell them apart."""
    for digits in range(4, 17):
        texts = {value: f"{float(value):.{digits}g}" if _DECIMAL.fullmatch(value) else value for value in values}
        if len(set(texts.values())) == len(texts):
            return texts
    return {value: value for value in values}


def is_lower_better(metric: str) -> bool:
    """Return whether less of a metric is better, by its name: losses, errors and times."""
    last = metric.rpartition("/")[2].removeprefix("best_")
    return last.endswith(LOWER_IS_BETTER)


class Paired(NamedTuple):
    """Values of two rows, in the order of the seeds that both have; all of it, unpaired, where they share no seed.

    left_out: runs of both rows that are not among these.
    """

    first: list[Any]
    second: list[Any]
    is_paired: bool
    left_out: int


def pair(row: Row, other: Row, value: Callable[[ComparedRun], Any]) -> Paired:
    """Pair what the runs of two rows have; None of a run: it has nothing."""
    first, second = row.by_seed(value), other.by_seed(value)
    shared = [seed for seed in first if seed in second]
    left_out = len(row.runs) + len(other.runs)
    if shared:
        return Paired([first[s] for s in shared], [second[s] for s in shared], True, left_out - 2 * len(shared))
    return Paired([*first.values()], [*second.values()], False, left_out - len(first) - len(second))
