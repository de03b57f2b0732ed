"""The `profiling` stage of a debug run: where the time of training went, and how to look at the profiler's trace."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.callbacks.debug import FOLDER
from stages.callbacks.timing import PARTS
from stages.distribution.collectives import is_chief
from stages.reporter import Reporter, Silent
from stages.results import Record, Strategy, Trained

_ALWAYS = ("steps", "input_wait", "validation", "build")
"""Parts that are told even where they took no time: images that a step gathers from memory are not waited for."""


@dataclass(kw_only=True)
class ProfilingSettings:
    """Nothing to set: `debug.traced` says what is traced."""

    _target_: str = "stages.debug.profiling.profiling"


@dataclass(frozen=True)
class Profile:
    """seconds: of training, by part. trace: the folder with TensorFlow's trace; None: there is none."""

    seconds: Mapping[str, float]
    trace: Path | None
    record: Record = Record()


def profiling(
    trained: Trained,
    settings: ProfilingSettings,
    strategy: Strategy | None = None,
    reporter: Reporter | None = None,
    folder: Path | None = None,
) -> Profile:
    """Returns where the time of training went; logs it as a table, with how to open the trace.

    Args:
        folder: the run's, with the trace in `profile`; made by training.
    """
    reporter = reporter or Silent()
    seconds = _by_part(trained.record.metrics)
    for line in _table(seconds):
        reporter.log(line)
    trace = folder / FOLDER if folder is not None else None
    if trace is None or not trace.is_dir() or (strategy is not None and not is_chief(strategy)):
        return Profile(seconds, None)
    if strategy is not None and strategy.coordinator is not None:
        reporter.warn("the trace is of the coordinator, which takes no steps; strategy=one_device shows a worker's")
    reporter.log(f"trace: with the package xprof, xprof --logdir {trace}")
    return Profile(seconds, trace, Record(files={FOLDER: trace}))


def _by_part(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Returns the seconds of each part of training, the longest first."""
    seconds = {part: float(metrics.get(f"train/{part}_seconds", 0.0)) for part in (*PARTS, "other")}
    return dict(sorted(seconds.items(), key=lambda entry: -entry[1]))


def _table(seconds: Mapping[str, float]) -> list[str]:
    total = sum(seconds.values())
    lines = [f"{'training, both epochs':24}{'seconds':>9}{'share':>8}"]
    lines += [
        f"  {part.replace('_', ' '):22}{value:9.2f}{value / total:8.1%}"
        for part, value in seconds.items()
        if value or part in _ALWAYS
    ]
    return lines
