"""Runs read from their folders for a comparison, and rows of those that differ only by seed."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import yaml

from pipeline.config.names import flatten, split_override
from pipeline.exit_codes import STOPPED, TIMED_OUT, WRONG_CONFIGURATION
from pipeline.provenance.identity import WITHOUT_EFFECT, is_among
from pipeline.records import yaml_text
from pipeline.runs.finding import debug_kind
from pipeline.runs.folder import RunFolder
from pipeline.runs.summary import UNITS, Summary, best_metric
from stages.evaluation.test_set import may_be_same_pixels

Value = TypeVar("Value")

PREDICTIONS = "predictions.parquet"

FINISHING = "best_"
"""Prefix of the name of the run that evaluates and exports a job of a sweep; the job's number follows."""

RATES = tuple(f"train/{unit}_per_second" for unit in UNITS)
"""Metrics of training speed; a job with two of them has two phases."""

_DECIMAL = re.compile(r"-?\d+(\.\d+(e-?\d+)?|e-?\d+)")
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class ComparedRun:
    """A run, or a job of a sweep. A job without a run has an empty summary."""

    number: int  # from 1
    status: str  # of the run; or REFUSED (its configuration), DIED (was killed), NOT RUN
    settings: Mapping[str, str]  # overrides, and of a run that is no job also the options of every group
    summary: Summary
    reason: str | None = None  # why it has not finished
    config_dirs: Sequence[str] = ()  # of custom options, where they are known

    @property
    def folder(self) -> Path:
        return Path(self.summary.folder)

    @property
    def metrics(self) -> Mapping[str, float]:
        return self.summary.metrics

    @property
    def has_finished(self) -> bool:
        """Whether it has the results of a complete training, which is not a debug run."""
        return self.status == "FINISHED" and self.pruned_after is None and not self.is_debug

    @property
    def pruned_after(self) -> int | None:
        """The epoch after which a search pruned it."""
        return self.summary.facts.pruned_after_epoch

    @property
    def seed(self) -> str | None:
        drawn = self.summary.facts.seed
        return self.settings.get("seed") or (None if drawn is None else str(drawn)) or self.setting("seed")

    @property
    def is_debug(self) -> bool:
        """Whether it only checked an experiment, so its results count nowhere."""
        return debug_kind({**self.summary.choices, **self.settings}) is not None

    @property
    def monitor(self) -> str | None:
        """The metric by which its best epoch was chosen, such as `val/best_loss`."""
        return best_metric(str((self.summary.weights or {}).get("monitor", "")))

    def is_tested_as(self, other: "ComparedRun") -> bool:
        """Whether both were tested on the same examples, with the same pixels if their images have one size."""
        ours, theirs = self.summary.facts, other.summary.facts
        is_same = ours.test_examples is not None and ours.test_examples == theirs.test_examples
        return is_same and may_be_same_pixels(ours.test_pixels or "", theirs.test_pixels or "")

    def setting(self, name: str) -> str | None:
        """Return the value of a setting or option, including defaults; None if it is unknown."""
        value = self.settings.get(name, self.summary.choices.get(name))
        return self._recorded.get(name) if value is None else value

    @cached_property
    def _recorded(self) -> Mapping[str, str]:
        """Every value of the recorded configuration, by its dotted name."""
        try:
            values = flatten(yaml.load(yaml_text(self.folder / "config.yaml"), _Loader))
            texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values}
        except (OSError, ValueError, AttributeError, TypeError, RecursionError, yaml.YAMLError):
            return {}
        return {name: canonical(text) for name, text in texts.items() if "${" not in text}

    def by_example(self) -> np.ndarray | None:
        """Return a value per test example, whose mean is the task's primary metric; None without predictions."""
        from stages.evaluation.predictions import read_by_example  # pyarrow takes most of a second to import

        try:
            folder = Path(self.summary.facts.tested_in or self.folder)
            metric, values = read_by_example(folder / PREDICTIONS)
        except (OSError, ValueError, TypeError, KeyError):  # pyarrow's errors are these, and what is damaged can be any
            return None
        return values if metric == self.summary.primary else None


def read_job(number: int, folder: Path, entry: Mapping[str, Any]) -> ComparedRun:
    """Return a job of a sweep.

    Args:
        folder: of its run, which need not exist. entry: of the sweep's index.
    """
    summary = RunFolder(folder).read()
    status = _job_status(summary.status if summary else None, entry)
    summary = replace(summary or Summary(None, status, "", str(folder), {}), overrides=list(entry["overrides"]))
    summary = with_test(summary)
    reason, config_dirs = summary.error or entry.get("reason"), entry.get("config_dirs", ())
    return ComparedRun(number, status, _settings(summary), summary, reason, config_dirs)


def with_test(job: Summary) -> Summary:
    """Return a run; a job gets the results of the run that finished it."""
    folder = Path(job.folder)
    tested = RunFolder(folder.with_name(FINISHING + folder.name.partition("_")[0])).read()
    if tested is None:
        return job
    facts = replace(job.facts.completed(tested.facts), tested_in=tested.folder)
    return replace(job, metrics=tested.metrics | job.metrics, facts=facts)


def read_finished(number: int, status: str, summary: Summary) -> ComparedRun:
    """Return a run that belongs to no sweep, with its options."""
    choices = {name: option for name, option in summary.choices.items() if option is not None}
    code = {"code": summary.code[:8]} if summary.code else {}  # runs of other code are no repetitions
    settings = {**choices, **_settings(summary), **code}
    return ComparedRun(number, status, settings, summary, summary.error)


def _settings(summary: Summary) -> dict[str, str]:
    parts = map(split_override, summary.overrides)
    return {name: canonical(value) for name, value in parts if not is_among(name, WITHOUT_EFFECT)}


def canonical(text: str) -> str:
    """Return one spelling for equal values: `0.1` for `1e-1`, `[8,a]` for `[8.0, "a"]`, `true` for `True`."""
    plain = text.strip().strip("'\"")
    if plain[:1] in ("[", "{") and len(plain) > 1:
        return "".join(map(canonical, re.split(r"([,:\[\]{}])", plain)))
    try:
        return f"{float(plain):.12g}"
    except ValueError:
        return plain.lower() if plain.lower() in ("true", "false", "null") else plain


def _job_status(status: str | None, entry: Mapping[str, Any]) -> str:
    """Return the status of a job: that of its run, unless its process has ended without one."""
    exit_code = entry.get("exit_code")
    if status is not None and (status != "RUNNING" or exit_code is None):
        return status
    if exit_code in (TIMED_OUT, *STOPPED):
        return "KILLED"
    return {None: "NOT RUN", WRONG_CONFIGURATION: "REFUSED"}.get(exit_code, "DIED")


@dataclass(frozen=True, eq=False)
class Row:
    """Finished runs that differ only by seed; `settings` are those that differ between rows, without the seed."""

    settings: Mapping[str, str]
    runs: tuple[ComparedRun, ...]

    @property
    def label(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.settings.items()) or "the only combination"

    def by_seed(self, value: Callable[[ComparedRun], Value | None]) -> dict[str, Value]:
        """Return the value of each run by its seed; a repeated seed counts once, as it adds no information."""
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
        every = ({"seconds": run.summary.seconds, **run.metrics} for run in self.runs)
        return [metrics[name] for metrics in every if name in metrics]

    def mean(self, name: str) -> float | None:
        """Return the mean over the runs, NaN if one of them is; None if no run has the metric."""
        values = self.values(name)
        return float(np.mean(values)) if values else None

    def std(self, name: str) -> float | None:
        """Return the sample standard deviation over the runs; None for fewer than two."""
        values = self.values(name)
        return float(np.std(values, ddof=1)) if len(values) > 1 else None

    @property
    def rate(self) -> str:
        """The metric of its training speed."""
        return next((rate for rate in RATES if rate in self.metrics), RATES[0])

    @cached_property
    def speed(self) -> float:
        """Examples per second of training; 0 if unknown."""
        speed = self.mean(self.rate) or 0.0
        return speed if math.isfinite(speed) else 0.0


def rows_of(runs: Sequence[ComparedRun]) -> tuple[tuple[str, ...], tuple[Row, ...]]:
    """Return the names of the settings that differ, without the seed, and the rows of the finished runs.

    A setting differs if two runs, finished or not, have different values. The rows are in the order of the runs.
    """
    names = list(dict.fromkeys(name for run in runs for name in run.settings if name != "seed"))
    differing = tuple(name for name in names if len({run.setting(name) for run in runs}) > 1)
    groups: dict[tuple[str | None, ...], list[ComparedRun]] = {}
    for run in runs:
        if run.has_finished:
            groups.setdefault(tuple(run.setting(name) for name in differing), []).append(run)
    texts = {name: _shortened({run.setting(name) for run in runs} - {None}) for name in differing}
    return differing, tuple(
        Row({name: texts[name][value] for name, value in zip(differing, key, strict=True) if value}, tuple(own))
        for key, own in groups.items()
    )


def _shortened(values: set[Any]) -> dict[str, str]:
    """Return values as a table shows them: numbers with four digits, or as many as make them distinct."""
    for digits in range(4, 17):
        texts = {value: f"{float(value):.{digits}g}" if _DECIMAL.fullmatch(value) else value for value in values}
        if len(set(texts.values())) == len(texts):
            return texts
    return {value: value for value in values}


class Paired(NamedTuple):
    """Values of two rows on the seeds that both have; all values, unpaired, if they share no seed."""

    first: list[Any]
    second: list[Any]
    is_paired: bool


def pair(row: Row, other: Row, value: Callable[[ComparedRun], Any]) -> Paired:
    """Pair the values of two rows by seed; runs whose value is None are left out."""
    first, second = row.by_seed(value), other.by_seed(value)
    shared = [seed for seed in first if seed in second]
    one, two = shared or list(first), shared or list(second)
    return Paired([first[seed] for seed in one], [second[seed] for seed in two], bool(shared))
