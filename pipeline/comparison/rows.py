"""Runs read from their folders for a comparison, and rows of runs that differ only by seed."""

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
from pipeline.runs.folder import RunFolder, current_status
from pipeline.runs.summary import UNITS, Summary, best_metric
from stages.evaluation.test_set import may_be_same_pixels

Value = TypeVar("Value")

PREDICTIONS = "predictions.parquet"

FINISHING = "best_"
"""Prefix of the folder of a run that evaluates and exports a job of a sweep, followed by the job's number."""

RATES = tuple(f"train/{unit}_per_second" for unit in UNITS)
"""Metrics of training speed; a run with two of them has two phases."""

_DECIMAL = re.compile(r"-?\d+(\.\d+(e-?\d+)?|e-?\d+)")
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class RunRecord:
    """A run, a job of a sweep, or a sweep, as tables show it: its summary, with the status that it has now."""

    number: int
    """Its number in a comparison, from 1; 0 outside of one."""

    status: str
    """The status of the run, or REFUSED (wrong configuration), DIED (its process was killed) or NOT RUN."""

    settings: Mapping[str, str]
    """The overrides; for a run outside a sweep, also the option of each group."""

    summary: Summary
    """The summary of the run; empty for a job without a run."""

    reason: str | None = None
    """The reason for not having finished."""

    config_dirs: Sequence[str] = ()
    """The folders of custom options, if known."""

    kind: str = "run"
    """`run`, `job`, or `sweep`. The summary of a sweep has its status and its name, and no results."""

    @property
    def folder(self) -> Path:
        return self.summary.folder

    @property
    def metrics(self) -> Mapping[str, float]:
        return self.summary.metrics

    @property
    def has_finished(self) -> bool:
        """Whether it completed its training and is not a debug run."""
        return self.status == "FINISHED" and self.pruned_after is None and not self.is_debug

    @property
    def pruned_after(self) -> int | None:
        """The epoch after which a search pruned it, if it did."""
        return self.summary.facts.pruned_after_epoch

    @property
    def seed(self) -> str | None:
        drawn = self.summary.facts.seed
        return self.settings.get("seed") or (None if drawn is None else str(drawn)) or self.setting("seed")

    @property
    def is_debug(self) -> bool:
        """Whether it only checked an experiment, so its results do not count."""
        return debug_kind({**self.summary.choices, **self.settings}) is not None

    @property
    def monitor(self) -> str | None:
        """The metric that chose its best epoch, such as `val/best_loss`."""
        return best_metric(str((self.summary.weights or {}).get("monitor", "")))

    @property
    def validation(self) -> str | None:
        """`monitor`, if the run has a value of it; None before the first epoch."""
        return self.monitor if self.monitor in self.metrics else None

    def is_tested_as(self, other: "RunRecord") -> bool:
        """Return whether both were tested on the same examples; images of the same size must have the same pixels."""
        ours, theirs = self.summary.facts, other.summary.facts
        is_same = ours.test_examples is not None and ours.test_examples == theirs.test_examples
        return is_same and may_be_same_pixels(ours.test_pixels or "", theirs.test_pixels or "")

    def setting(self, name: str) -> str | None:
        """Return the value of a setting or option, including defaults; None if it is unknown."""
        value = self.settings.get(name, self.summary.choices.get(name))
        return self._recorded.get(name) if value is None else value

    @cached_property
    def _recorded(self) -> Mapping[str, str]:
        """All values of the recorded configuration by their dotted names."""
        try:
            values = flatten(yaml.load(yaml_text(self.folder / "config.yaml"), _Loader))
            texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values}
        except (OSError, ValueError, AttributeError, TypeError, RecursionError, yaml.YAMLError):
            return {}
        return {name: canonical(text) for name, text in texts.items() if "${" not in text}

    def by_example(self) -> np.ndarray | None:
        """Return one value per test example, with the primary metric as their mean; None without predictions."""
        from stages.evaluation.predictions import read_by_example  # pyarrow takes most of a second to import

        try:
            metric, values = read_by_example((self.summary.facts.tested_in or self.folder) / PREDICTIONS)
        except (OSError, ValueError, TypeError, KeyError):  # a damaged file can raise any of these
            return None
        return values if metric.name == self.summary.primary else None


def read_job(number: int, folder: Path, entry: Mapping[str, Any]) -> RunRecord:
    """Return a job of a sweep.

    Args:
        number: The number of the job, from 1.
        folder: The folder of its run, which need not exist.
        entry: Its entry in the sweep's index.
    """
    summary = RunFolder(folder).read()
    status = _job_status(summary.status if summary else None, entry)
    summary = replace(summary or Summary(None, status, "", folder, {}), overrides=list(entry["overrides"]))
    summary = with_test(summary)
    reason, config_dirs = summary.error or entry.get("reason"), entry.get("config_dirs", ())
    return RunRecord(number, status, _settings(summary), summary, reason, config_dirs, kind="job")


def with_test(job: Summary) -> Summary:
    """Return the summary of a job, with the results of the run that evaluated it if there is one."""
    folder = job.folder
    tested = RunFolder(folder.with_name(FINISHING + folder.name.partition("_")[0])).read()
    if tested is None:
        return job
    facts = replace(job.facts.completed(tested.facts), tested_in=tested.folder)
    return replace(job, metrics=tested.metrics | job.metrics, facts=facts)


def recorded(summary: Summary, kind: str) -> RunRecord:
    """Return a run outside of the comparison of its sweep, with the option of each group as a setting."""
    choices = {name: option for name, option in summary.choices.items() if option is not None}
    code = {"code": summary.code[:8]} if summary.code else {}  # runs of different code are not repetitions
    settings = {**choices, **_settings(summary), **code}
    status = current_status(summary.status, summary.folder)
    return RunRecord(0, status, settings, summary, summary.error, kind=kind)


def _settings(summary: Summary) -> dict[str, str]:
    parts = map(split_override, summary.overrides)
    return {name: canonical(value) for name, value in parts if not is_among(name, WITHOUT_EFFECT)}


def canonical(text: str) -> str:
    """Return the same spelling for equal values: `0.1` for `1e-1`, `[8,a]` for `[8.0, "a"]`, `true` for `True`."""
    plain = text.strip().strip("'\"")
    if plain[:1] in ("[", "{") and len(plain) > 1:
        return "".join(map(canonical, re.split(r"([,:\[\]{}])", plain)))
    try:
        return f"{float(plain):.12g}"
    except ValueError:
        return plain.lower() if plain.lower() in ("true", "false", "null") else plain


def _job_status(status: str | None, entry: Mapping[str, Any]) -> str:
    """Return the status of a job: the status of its run, or what its exit code means if the run did not record one."""
    exit_code = entry.get("exit_code")
    if status is not None and (status != "RUNNING" or exit_code is None):
        return status
    if exit_code in (TIMED_OUT, *STOPPED):
        return "KILLED"
    return {None: "NOT RUN", WRONG_CONFIGURATION: "REFUSED"}.get(exit_code, "DIED")


@dataclass(frozen=True, eq=False)
class Row:
    """Finished runs that differ only by seed."""

    settings: Mapping[str, str]
    """The settings that differ between rows, without the seed."""

    runs: tuple[RunRecord, ...]

    @property
    def label(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.settings.items()) or "the only combination"

    def by_seed(self, value: Callable[[RunRecord], Value | None]) -> dict[str, Value]:
        """Return the value of each run by its seed.

        A repeated seed counts once, because it says nothing about other seeds.

        Args:
            value: Returns the value of a run; None if the run has none and is left out.
        """
        values: dict[str, Value] = {}
        for run in self.runs:
            if (one := value(run)) is not None:
                values.setdefault(run.seed or run.folder.name, one)
        return values

    @cached_property
    def metrics(self) -> set[str]:
        return {name for run in self.runs for name in run.metrics}

    def values(self, name: str) -> list[float]:
        """Return the values of a metric, or of `seconds`, in the runs that have it."""
        by_run = ({"seconds": run.summary.seconds, **run.metrics} for run in self.runs)
        return [metrics[name] for metrics in by_run if name in metrics]

    def mean(self, name: str) -> float | None:
        """Return the mean over the runs, NaN if a value is NaN; None if no run has the metric."""
        values = self.values(name)
        return float(np.mean(values)) if values else None

    def std(self, name: str) -> float | None:
        """Return the sample standard deviation over the runs; None for fewer than two."""
        values = self.values(name)
        return float(np.std(values, ddof=1)) if len(values) > 1 else None

    @property
    def rate(self) -> str:
        """The name of the metric of its training speed."""
        return next((rate for rate in RATES if rate in self.metrics), RATES[0])

    @cached_property
    def speed(self) -> float:
        """Examples per second of training; 0 if unknown."""
        speed = self.mean(self.rate) or 0.0
        return speed if math.isfinite(speed) else 0.0


def rows_of(runs: Sequence[RunRecord]) -> tuple[tuple[str, ...], tuple[Row, ...]]:
    """Return the names of the settings that differ, without the seed, and the rows of the finished runs.

    A setting differs if any two runs, finished or not, have different values. The rows are in the order of the runs.
    """
    names = list(dict.fromkeys(name for run in runs for name in run.settings if name != "seed"))
    differing = tuple(name for name in names if len({run.setting(name) for run in runs}) > 1)
    groups: dict[tuple[str | None, ...], list[RunRecord]] = {}
    for run in runs:
        if run.has_finished:
            groups.setdefault(tuple(run.setting(name) for name in differing), []).append(run)
    texts = {name: _shortened({run.setting(name) for run in runs} - {None}) for name in differing}
    return differing, tuple(
        Row({name: texts[name][value] for name, value in zip(differing, key, strict=True) if value}, tuple(group))
        for key, group in groups.items()
    )


def _shortened(values: set[Any]) -> dict[str, str]:
    """Return the texts of values for tables: numbers have four digits, or as many as make all texts distinct."""
    for digits in range(4, 17):
        texts = {value: f"{float(value):.{digits}g}" if _DECIMAL.fullmatch(value) else value for value in values}
        if len(set(texts.values())) == len(texts):
            return texts
    return {value: value for value in values}


class Paired(NamedTuple):
    """Values of two rows for the seeds that both have; all values, unpaired, if they have no seed in common."""

    first: list[Any]
    second: list[Any]
    is_paired: bool


def pair(row: Row, other: Row, value: Callable[[RunRecord], Any]) -> Paired:
    """Return the values of two rows, paired by seed; runs whose value is None are left out."""
    first, second = row.by_seed(value), other.by_seed(value)
    shared = [seed for seed in first if seed in second]
    one, two = shared or list(first), shared or list(second)
    return Paired([first[seed] for seed in one], [second[seed] for seed in two], bool(shared))
