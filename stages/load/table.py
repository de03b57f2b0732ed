"""Tables: CSV, TSV, Parquet and Feather files with a column to predict."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np

from stages.data.columns import Column, Described, describe, digests_of_rows
from stages.data.loading import report_left_out
from stages.data.profiles import FEW
from stages.data.split import Split
from stages.data.splits import cut_all, cut_by_time, dataset_of
from stages.data.table_source import (
    ORDER,
    ColumnFacts,
    TableSource,
    Wide,
    feature_of_column,
    named_splits,
    read_table,
    refuse_empty,
)
from stages.errors import UserError
from stages.features.vectors import VectorFeature
from stages.features.windows import WindowFeature
from stages.load.table_images import images_of_rows
from stages.reporter import Reporter
from stages.results import Dataset, Record
from stages.seeds import derive
from stages.settings.table import TableSettings, declaring
from stages.settings.trained_table import TrainedTableSettings
from stages.storage.atomic import write_csv
from stages.tasks.classification import classification
from stages.tasks.multi_label import multi_label
from stages.tasks.regression import NumberTargets, regression
from stages.tasks.task import Task

LABELS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1, "no": 0, "yes": 1}
"""Values of a column of labels, which are compared case-insensitively."""

MAX_ROUNDING = 1e-3
"""Maximum rounding error of a target in float32, as a fraction of its standard deviation."""


def table(
    settings: TableSettings, reporter: Reporter | None = None, folder: Path | None = None, cache: Path | None = None
) -> Dataset:
    """Return the rows of a table, with a feature for each column that is a number, a category or a text.

    Args:
        settings: The settings of the table.
        reporter: Receives the description of the columns.
        folder: The run's folder for `data/columns.csv`, and for `data/skipped.csv` if rows are left out; None writes no
            files.
        cache: The folder that runs share, for a table that is larger than memory.

    Raises:
        UserError: If the target, a kind of a column or a row cannot be used, or splits cannot be cut.
    """
    reporter = reporter or Reporter()
    source = read_table(settings, partial(cut, settings=settings), cache, reporter)
    if not settings.images:
        return dataset_of_rows(source, settings, reporter, folder)
    source, images = images_of_rows(source, settings, reporter, cache)
    return dataset_of_rows(source, settings, reporter, folder, images)


def dataset_of_rows(
    source: TableSource,
    settings: TableSettings,
    reporter: Reporter,
    folder: Path | None,
    wide: Wide | None = None,
) -> Dataset:
    """Return the rows of a table as a data set."""
    wide = wide or Wide({}, lambda _: {})
    wide_columns = wide.columns
    if not source.used and not wide_columns:
        notes = {column.name: column.note for column in source.columns if column.kind == "leave_out"}
        left_out = "; ".join(f"{name}: {note}" for name, note in notes.items()) or "there is no other column"
        texts = {name: "text" for name, note in notes.items() if note.startswith("a text")}
        fix = declaring(texts) if texts else ""
        expected = "at least one number or category in addition to the target"
        raise UserError(f"{source.name} has no features ({left_out})", expected, fix)
    targets, task, why = _task(source, settings)
    rows = {name: np.flatnonzero(source.splits == place) for place, name in enumerate(ORDER)}
    refuse_empty(source, rows)
    _refuse_unknown_targets(source, settings, rows["train"], task)
    if task.kind == "regression":
        task = NumberTargets.of(task.names, targets[rows["train"]]).task()
    _log(source, why, reporter)
    whole = Split(
        {**{column.feature: source.column(column.name) for column in source.used}, **wide_columns},
        targets,
        weights=source.arrays[settings.weight] if settings.weight else None,
        groups=np.unique(source.arrays[settings.group], return_inverse=True)[1] if settings.group else None,
        numbers=source.numbers,
        files=wide.files,
        is_table=True,
    ).with_described(_described(source, wide))
    splits = {name: whole.take(part) for name, part in rows.items()}
    features = {column.feature: feature_of_column(column) for column in source.used}
    for name, feature in wide.features(splits["train"]).items():
        features[name] = feature
        if isinstance(feature, VectorFeature):
            reporter.log(f"  vector    {name} ({feature.shape[0]} numbers)")
        elif isinstance(feature, WindowFeature):
            steps, channels = feature.shape
            reporter.log(f"  series    {feature.column_name(name)} ({steps} steps of {channels} channels)")
    dataset = dataset_of(source.name, splits, task, features)
    params = {
        "held_in": "memory" if whole.is_in_memory else "disk",
        "data/skipped": len(source.skipped),
        "task": why,
        "left_out": ", ".join(column.name for column in source.columns if column.kind == "leave_out"),
    }
    record = Record(params, files=_write(source, reporter, folder))
    dates = [column for column in source.used if column.kind == "date"]
    patterns = {column.name: column.date_format for column in dates}
    zones = {column.name: column.time_zone for column in dates}
    reading = {**settings.reading, "date_format": patterns, "time_zone": zones}
    return replace(dataset, record=record, reading=reading)


def _described(source: TableSource, wide: Wide) -> Described | None:
    """Return what is known of the rows; None for images alone that have not been read."""
    columns: list[tuple[Column, Sequence[str] | None]] = [
        (source.arrays[column.name], source.texts.get(column.name)) for column in source.used
    ]
    if not columns and len(wide.columns) == 1 and wide.has_images:
        return next(iter(wide.described.values()), None)
    moments: dict[str, np.ndarray] = {}
    for name, column in wide.columns.items():
        is_image = len(column.shape) == 4
        described = wide.described.get(name) or (describe({name: column}) if is_image else None)
        moments |= {} if described is None else described.moments
        columns.append((column if described is None else described.digests, None))
    return Described(digests_of_rows(*zip(*columns, strict=True)), moments)


def _task(source: TableSource, settings: TableSettings) -> tuple[np.ndarray, Task, str]:
    """Return the targets, int32 [N] or float32 [N, k], the task, and the reason for the task.

    Raises:
        UserError: If a target has only one value, or several targets are neither all numbers nor all 0 or 1.
    """
    names = settings.targets
    kinds = {column.name: column.note for column in source.columns if column.kind == "target"}
    candidates = [_labels(source, name) for name in names if settings.declared.get(name) != "number"]
    labels = [part for part in candidates if part is not None]
    minimum = {"auto": 2, "multi_label": 1}.get(settings.predicts, len(names) + 1)
    are_labels = len(labels) == len(names) >= minimum
    is_trained = isinstance(settings, TrainedTableSettings)
    may_be_alike = is_trained or (are_labels and len(names) > 1)
    for name in names if not may_be_alike else ():
        if (source.arrays[name] == source.arrays[name][0]).all():
            raise UserError(f"data.target={name} is {source.of(name)[0]} in all rows", "a column with different values")
    if are_labels:
        several = np.stack(labels, axis=1)
        if settings.predicts == "auto" and not is_trained and (several.sum(axis=1) == 1).all():
            problem = f"exactly one of {', '.join(names[:5])}{', …' if names[5:] else ''} is 1 in every row"
            expected = "a single column with the class, or task=multi_label if several labels can apply"
            raise UserError(problem, expected, "task=multi_label")
        return several, multi_label(names), f"{', '.join(names)} are 0 or 1: task=multi_label"
    if "number" in kinds.values() and "category" not in kinds.values():  # whole numbers among numbers are not classes
        targets = np.stack([_as_float32(source, name) for name in names], axis=1)
        if len(names) == 1 and names[0] not in settings.declared:
            _refuse_few(names[0], targets)
        why = f"{', '.join(names)} {'are numbers' if names[1:] else 'is a number'}: task=regression"
        return targets, regression(names), why
    if len(names) > 1 and settings.predicts == "classification":
        problem = f"task=classification needs one target, but data.target has {len(names)}"
        raise UserError(problem, "one target, or task=multi_label for columns of 0 and 1", "task=multi_label")
    if len(names) > 1:
        raise _mixed_targets(source, names, kinds)
    return _classes(source, settings, names[0])


def _classes(source: TableSource, settings: TableSettings, name: str) -> tuple[np.ndarray, Task, str]:
    """Return the targets, the task and the reason for classes. A trained model keeps its classes if some are absent."""
    codes, classes = codes_of(source, name)
    why = f"{name} has {len(classes)} values ({', '.join(classes[:5])}{', …' if len(classes) > 5 else ''})"
    if isinstance(settings, TrainedTableSettings) and {*classes} <= {*settings.classes}:
        codes, classes = np.array([settings.classes.index(name) for name in classes])[codes], settings.classes
    return codes.astype(np.int32), classification(classes), f"{why}: task=classification"


def codes_of(source: TableSource, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the class of each row, int32 [N], and the names of the classes in order."""
    values, codes = np.unique(source.arrays[name], return_inverse=True)
    if name in source.texts:  # numbers of texts in order of occurrence, including those in rows that are left out
        values, order = np.unique(np.array(source.texts[name], object)[values], return_inverse=True)
        codes = order[codes]
    return codes.astype(np.int32), tuple(map(str, values))


def _as_float32(source: TableSource, name: str) -> np.ndarray:
    """Return a target as float32 [N].

    Raises:
        UserError: If the rounding error is not negligible.
    """
    values = source.arrays[name]
    rounded = np.asarray(values, np.float32)
    loss, std = float(np.abs(rounded - values).max()), float(np.std(values))
    if loss > MAX_ROUNDING * std:
        problem = f"data.target={name} loses up to {loss:.2g} by rounding to float32, and its std is only {std:.2g}"
        raise UserError(problem, "numbers that are not so large compared with their differences; subtract a constant")
    return rounded


def _refuse_few(name: str, targets: np.ndarray) -> None:
    """Refuse a target with few values that are all whole floats, because they may be amounts or classes."""
    different = np.unique(targets)
    if len(different) <= FEW and (different % 1 == 0).all():
        shown = ", ".join(f"{value:g}" for value in different)
        raise UserError(
            f"data.target={name} has only {len(different)} different values ({shown}): classes or amounts",
            "task=classification for classes, or task=regression for amounts",
            "task=classification",
        )


def _labels(source: TableSource, name: str) -> np.ndarray | None:
    """Return a column of 0 and 1 as int32 [N]; None if it has other values."""
    values = source.arrays[name]
    if name not in source.texts:
        return np.asarray(values, np.int32) if np.isin(values, (0, 1)).all() else None
    labels = np.array([LABELS.get(text.lower(), -1) for text in source.texts[name]], np.int32)[values]
    return labels if labels.min() >= 0 else None


def _mixed_targets(source: TableSource, names: Sequence[str], kinds: Mapping[str, str]) -> UserError:
    """Return the error for several targets that are neither all numbers nor all labels."""
    wrong = [name for name in names if kinds[name] != "number"]
    other = next((name for name in wrong if _labels(source, name) is None), wrong[0])
    others = ",".join(name for name in names if name != other)
    values = enumerate(map(str, source.of(other)))
    row, value = next(((row, value) for row, value in values if value.lower() not in LABELS), (0, "0 or 1"))
    return UserError(
        f"data.target: {other} is {value} in row {source.numbers[row] + 1:,}, which does not fit the other targets",
        "one target, several columns of numbers, or several columns of 0 and 1",
        declaring({other: "number"}) if kinds[other] == "whole" else f"'data.target=[{others}]'",
    )


def cut(source: TableSource, settings: TableSettings) -> dict[str, np.ndarray]:
    """Return the rows of each split; see `_splits`. The source only needs the columns that the settings name."""
    targets, task, _ = _task(source, settings)
    return _splits(source, targets, task, settings)


def _refuse_unknown_targets(source: TableSource, settings: TableSettings, train: np.ndarray, task: Task) -> None:
    """Refuse targets in other splits that no training row has, because they would change the network's outputs."""
    if isinstance(settings, TrainedTableSettings):
        return
    _, training_task, _ = _task(source.take(train, []), settings)
    if training_task.kind == task.kind and training_task.names == task.names:
        return
    for name in settings.targets:
        values = source.of(name)
        if len(unknown := np.flatnonzero(~np.isin(values, values[train]))):
            problem = f"{source.where(int(unknown[0]), name)} is {values[unknown[0]]}, which is not in any training row"
            raise UserError(problem, "only targets that also occur in the training split")


def _splits(source: TableSource, targets: np.ndarray, task: Task, settings: TableSettings) -> dict[str, np.ndarray]:
    """Return the rows of each split, int64 in order. Splits that files or `data.split_column` do not define are cut.

    Raises:
        UserError: If the column has an unknown value, a group is in two splits, or a split cannot be cut.
    """
    rows = named_splits(source, settings)
    train = rows["train"]
    missing = {name: fraction for name, fraction in settings.held_out.items() if name not in rows}
    if settings.group is not None:
        groups = source.arrays[settings.group]
        for name, fraction in missing.items():
            if len(np.unique(groups[train])) < 2:
                raise UserError(f"data.group={settings.group} has too few groups", "at least one group per split")
            is_part = _whole_groups(groups[train], fraction, derive(settings.split_seed, "split", name))
            rows[name], train = train[is_part], train[~is_part]
        _refuse_shared(source, settings.group, rows | {"train": train})
    elif settings.time is not None:
        rows |= cut_by_time(source.arrays[settings.time], train, missing)
        train = rows["train"]
    elif missing:
        strata = task.targets.strata(targets[train])
        strata = np.zeros(len(train), np.int32) if strata is None else strata
        names = task.names if task.kind == "classification" else ()
        cut = cut_all(strata, missing, settings.split_seed, names)
        rows |= {name: train[part] for name, part in cut.items()}
        train = rows["train"]
    rows["train"] = np.sort(train)
    return rows


def _whole_groups(groups: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Return which rows belong to a part with about a fraction of them, bool [N]. Groups are drawn as a whole.

    A group that would move the size of the part away from the fraction is skipped. If all are skipped, the part is one
    of the smallest groups. At least one group remains outside of the part.
    """
    names, counts = np.unique(groups, return_counts=True)
    order = np.random.RandomState(seed).permutation(len(names))
    missing: float = fraction * len(groups)
    chosen: list[int] = []
    for place in order:
        if counts[place] < 2 * missing and len(chosen) < len(names) - 1:
            chosen.append(place)
            missing -= counts[place]
    return np.isin(groups, names[chosen or [order[counts[order].argmin()]]])


def _refuse_shared(source: TableSource, column: str, rows: Mapping[str, np.ndarray]) -> None:
    groups = source.of(column)
    for one, other in combinations(rows, 2):
        shared = np.intersect1d(groups[rows[one]], groups[rows[other]])
        if len(shared):
            problem = f"data.group={column}: {shared[0]} is in the splits {one} and {other}"
            raise UserError(problem, "each group in only one split", "data.group=null")


def _log(source: TableSource, task: str, reporter: Reporter) -> None:
    """Report the columns by kind, and the task."""
    reporter.log(f"{source.name}: {len(source.numbers):,} rows; {task}")
    kinds = {"whole": "category"}
    for kind in ("number", "date", "category", "text", "image", "leave_out"):
        if columns := [_described_column(one) for one in source.columns if kinds.get(one.kind, one.kind) == kind]:
            reporter.log(f"  {kind:<9} {', '.join(columns)}")


def _described_column(column: ColumnFacts) -> str:
    if column.kind == "leave_out":
        return f"{column.name} ({column.note})"
    facts = [f"{column.different:,}"] * (column.kind not in ("number", "date"))
    facts += [" ".join(filter(None, (column.date_format, column.time_zone)))] * (column.kind == "date")
    facts += [f"{column.missing:,} missing"] * (column.missing > 0)
    return f"{column.name} ({', '.join(facts)})" if facts else column.name


def _write(source: TableSource, reporter: Reporter, folder: Path | None) -> dict[str, list[Path]]:
    """Warn about rows that are left out; write the table of the columns, and the table of these rows."""
    left_out = report_left_out(source.skipped, source.name, reporter, folder)
    if folder is None:
        return {}
    path = folder / "data" / "columns.csv"
    write_csv(path, [list(ColumnFacts.__dataclass_fields__), *(list(asdict(part).values()) for part in source.columns)])
    return {"data": [path, *left_out]}
