"""Records of a stage's result of any type: metrics, parameters, files, and warnings about other values."""

import dataclasses
import json
import math
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from stages.results import Dataset, Exported, Record, as_number

EXACT_INTEGER = 2**53
"""Largest integer up to which float64, in which MLflow and `summary.json` hold numbers, is exact."""

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


def recorded(stage: str, makes: str, result: Any, folder: Path, earlier: Sequence[Record] = ()) -> Records:
    """Returns the records of the `result` of `stage`.

    They are those of a `Record`, or of an object with one as `record`. In a mapping, a named tuple or a dataclass
    without `record`, numbers become metrics (`stage/name`, or `name` if it has a slash), files artifacts, and other
    values that JSON can hold parameters. None is not recorded. All other values are named in warnings.

    Args:
        makes: the name of the result, for a value without a name of its own.
        folder: the run's folder, to which paths may be relative.
        earlier: records of earlier stages; a result that passes one of them on does not record it again.
    """
    collected = Records()
    if not any(getattr(result, "record", None) is record for record in earlier):
        _add(collected, stage, makes, result, folder)
    implied = getattr(result, "implied_record", None)
    if isinstance(implied, Record):
        _add_record(collected, stage, implied, folder)
    return collected


def clean_metrics(values: Mapping[Any, Any]) -> tuple[dict[str, float], dict[str, Any], list[str]]:
    """Returns metrics as MLflow takes them, the values that are not numbers, and a line for each change.

    Numbers become float64, and characters that MLflow refuses in a name `_`.
    """
    metrics: dict[str, float] = {}
    no_numbers: dict[str, Any] = {}
    warnings: list[str] = []
    for key, value in values.items():
        number = as_number(value)
        if number is None:
            no_numbers[str(key)] = value
            continue
        name = metric_name(str(key))
        while name in metrics:
            name += "_"
        if name != str(key):
            warnings.append(f"the metric {key!r} is recorded as {name}: MLflow allows letters, digits and _-.:/ only")
        if isinstance(value, int) and abs(value) > EXACT_INTEGER and int(number) != value:
            warnings.append(f"{name}={value} is recorded as {number:.17g}, the nearest 64-bit float")
        if math.isinf(number):
            warnings.append(f"{name} is {number}: MLflow shows the largest float instead, and summary.json null")
        metrics[name] = number
    return metrics, no_numbers, warnings


def metric_name(name: str) -> str:
    """Returns `name` with the characters and path parts that MLflow refuses replaced by `_`."""
    clean = _NOT_ALLOWED.sub("_", name)[:LONGEST_METRIC_NAME]
    path = posixpath.normpath(clean.strip("/") or "_")
    return "/".join("_" if part in (".", "..") else part for part in path.split("/"))


def _add(collected: Records, stage: str, name: str, result: Any, folder: Path) -> None:
    record = result if isinstance(result, Record) else getattr(result, "record", None)
    if isinstance(record, Record):
        _add_record(collected, stage, record, folder)
    elif result is None:
        return
    elif (fields := _fields(result)) is not None:
        _add_fields(collected, stage, fields, folder)
    elif record is not None and not callable(record):
        _add_fields(collected, stage, {"record": record}, folder)
    elif isinstance(result, (list, tuple)) and not _is_plain(result):
        for index, part in enumerate(result):
            _add(collected, stage, f"{name}_{index}", part, folder)
    else:
        _add_value(collected, stage, f"{stage}/{name}", result, folder)


def _add_record(collected: Records, stage: str, record: Record, folder: Path) -> None:
    metrics, no_numbers, warnings = clean_metrics(record.metrics)
    collected.metrics |= metrics
    collected.weights = record.weights or collected.weights
    collected.datasets += record.datasets
    collected.models += record.models
    collected.on_exit += [record.on_exit] if record.on_exit else []
    for name, value in record.summary.items():
        if _is_plain(value):
            collected.summary[name] = value
        else:
            collected.warnings.append(f"{name} is a {_kind(value)}, which summary.json cannot hold")
    for name, value in record.params.items():
        collected.params[name if "/" in name else f"{stage}/{name}"] = value
    collected.warnings += warnings
    for name, value in no_numbers.items():
        if value is not None and _is_plain(value):
            collected.warnings.append(f"the metric {name} is a {_kind(value)}, not a number: recorded as a parameter")
            collected.params[f"{stage}/{name}"] = value
        else:
            collected.warnings.append(f"the metric {name} is a {_kind(value)}, not a number: it is not recorded")
    for place, paths in record.files.items():
        for path in [paths] if isinstance(paths, Path) else paths:
            _add_file(collected, place, path, folder)


def _add_fields(collected: Records, stage: str, fields: Mapping[Any, Any], folder: Path) -> None:
    for key, value in fields.items():
        if isinstance(value, Record):
            _add_record(collected, stage, value, folder)
        elif key == "record" and isinstance(value, Mapping):
            _add_fields(collected, stage, value, folder)
        else:
            _add_value(collected, stage, str(key) if "/" in str(key) else f"{stage}/{key}", value, folder)


def _add_value(collected: Records, stage: str, name: str, value: Any, folder: Path) -> None:
    """Adds one value under its full name."""
    if isinstance(value, PurePath):
        _add_file(collected, stage, Path(value), folder)
    elif not isinstance(value, bool) and as_number(value) is not None:
        metrics, _, warnings = clean_metrics({name: value})
        collected.metrics |= metrics
        collected.warnings += warnings
    elif _is_plain(value):
        collected.params[name] = value
    else:
        collected.warnings.append(
            f"{name} is a {_kind(value)}, which cannot be recorded (numbers, text, lists, paths, and a "
            "stages.results.Record can); later stages get it all the same"
        )


def _add_file(collected: Records, place: str, path: Path, folder: Path) -> None:
    if not path.is_absolute():
        path = path.absolute() if path.exists() else folder / path
    if not (path.is_file() or path.is_dir()):
        what = "is no regular file" if path.exists() else "does not exist"
        collected.warnings.append(f"the file {path} ({place or 'no folder'}) {what}: it is not recorded")
        return
    clean = posixpath.normpath(place.strip("/")) if place.strip("/") else ""
    if clean.startswith(".."):
        clean = clean.replace("..", "_")
    if clean == ".":
        clean = ""
    collected.files.append((path, clean))


def _fields(result: Any) -> Mapping[Any, Any] | None:
    """Returns the named values of a mapping, a named tuple or a dataclass, or None for other types."""
    if isinstance(result, Mapping):
        return result
    if isinstance(result, tuple) and hasattr(result, "_asdict"):
        return dict(result._asdict())
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return {entry.name: getattr(result, entry.name) for entry in dataclasses.fields(result)}
    return None


def _is_plain(value: Any) -> bool:
    """Returns whether JSON can hold `value`."""
    try:
        json.dumps(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False
    return True


def _kind(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__} of shape {tuple(shape)}" if shape else type(value).__name__
