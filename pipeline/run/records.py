"""Records of a stage's result: metrics, parameters, files, and warnings about values that cannot be recorded."""

import json
import math
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.errors import UserError
from stages.results import Dataset, Exported, Record, as_number

LONGEST_METRIC_NAME = 250
"""Characters, MLflow's own limit."""

_NOT_ALLOWED = re.compile(r"[^/\w.\- :]")


@dataclass
class Records:
    """Metrics and parameters by the names under which they are tracked, files by folder.

    warnings: a line for each value that is changed or lost. All others: see `stages.results.Record`.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    files: list[tuple[Path, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    weights: Mapping[str, Any] | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    datasets: list[Dataset] = field(default_factory=list)
    models: list[Exported] = field(default_factory=list)
    on_exit: list[Callable[[], object]] = field(default_factory=list)


def own_record(stage: str, result: Any) -> Record | None:
    """Return the record of what a stage has returned; None for one that returns nothing.

    Raises:
        UserError: where the result is neither a Record, nor has one, nor is a mapping from names to numbers.
    """
    record = result if isinstance(result, Record) else getattr(result, "record", None)
    if isinstance(record, Record):
        return record
    if result is None or isinstance(getattr(result, "implied_record", None), Record):
        return None
    numbers = {str(name): as_number(value) for name, value in result.items()} if isinstance(result, Mapping) else {}
    if not isinstance(result, Mapping) or None in numbers.values():
        named = next((f"{name!r}, a {_kind(result[name])}" for name, one in numbers.items() if one is None), "")
        raise UserError(
            f"it returned a {_kind(result)}{f' with {named}' if named else ''}",
            "a dataclass with a Record as `record`, a Record, or a mapping from names to numbers",
            "return stages.results.Record(metrics={…}, params={…}, files={…})",
        )
    return Record(metrics={name if "/" in name else f"{stage}/{name}": number for name, number in numbers.items()})


def recorded(stage: str, result: Any, folder: Path, earlier: Sequence[Record] = ()) -> Records:
    """Return the records of the `result` of `stage`.

    Args:
        folder: the run's folder, to which paths may be relative.
        earlier: records of earlier stages; a result that passes one of them on does not record it again.

    Raises:
        UserError: as `own_record` does.
    """
    collected = Records()
    record = own_record(stage, result)
    for one in (record, getattr(result, "implied_record", None)):
        if isinstance(one, Record) and not any(one is before for before in earlier):
            _add_record(collected, stage, one, folder)
    return collected


def clean_metrics(values: Mapping[Any, Any]) -> tuple[dict[str, float], list[str]]:
    """Return metrics as MLflow takes them, and a line for each that is changed or is no number.

    Numbers become float64, and characters that MLflow refuses in a name `_`.
    """
    metrics: dict[str, float] = {}
    warnings: list[str] = []
    for key, value in values.items():
        number = as_number(value)
        if number is None:
            warnings.append(f"the metric {key} is a {_kind(value)}, not a number: it is not recorded")
            continue
        name = metric_name(str(key))
        while name in metrics:
            name += "_"
        if name != str(key):
            warnings.append(f"the metric {key!r} is recorded as {name}: MLflow allows letters, digits and _-.:/ only")
        if math.isinf(number):
            warnings.append(f"{name} is {number}: MLflow shows the largest float instead, and summary.json null")
        metrics[name] = number
    return metrics, warnings


def metric_name(name: str) -> str:
    """Return `name` with the characters and path parts that MLflow refuses replaced by `_`."""
    clean = _NOT_ALLOWED.sub("_", name)[:LONGEST_METRIC_NAME]
    path = posixpath.normpath(clean.strip("/") or "_")
    return "/".join("_" if part in (".", "..") else part for part in path.split("/"))


def _add_record(collected: Records, stage: str, record: Record, folder: Path) -> None:
    metrics, warnings = clean_metrics(record.metrics)
    collected.metrics |= metrics
    collected.warnings += warnings
    collected.weights = record.weights or collected.weights
    collected.datasets += record.datasets
    collected.models += record.models
    collected.on_exit += [record.on_exit] if record.on_exit else []
    collected.params |= {name if "/" in name else f"{stage}/{name}": value for name, value in record.params.items()}
    for name, value in record.summary.items():
        if _is_plain(value):
            collected.summary[name] = value
        else:
            collected.warnings.append(f"{name} is a {_kind(value)}, which summary.json cannot hold")
    for place, paths in record.files.items():
        for path in [paths] if isinstance(paths, Path) else paths:
            _add_file(collected, place, path, folder)


def _add_file(collected: Records, place: str, path: Path, folder: Path) -> None:
    if not path.is_absolute():
        path = path.absolute() if path.exists() else folder / path
    if path.is_file() or path.is_dir():
        inside = posixpath.normpath(place.strip("/") or ".").replace("..", "_")
        collected.files.append((path, "" if inside == "." else inside))
    else:
        what = "is no regular file" if path.exists() else "does not exist"
        collected.warnings.append(f"the file {path} ({place or 'no folder'}) {what}: it is not recorded")


def _is_plain(value: Any) -> bool:
    """Return whether JSON can hold `value`."""
    try:
        json.dumps(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False
    return True


def _kind(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__} of shape {tuple(shape)}" if shape else type(value).__name__
