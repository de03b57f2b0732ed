"""From arrays to the three splits of a data set."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from stages.data.columns import blocks_of
from stages.data.split import Split, int32_labels
from stages.errors import UserError
from stages.features.kinds import Schema
from stages.results import Dataset
from stages.seeds import derive
from stages.settings.data import DataSettings
from stages.tasks.task import Task


def cut_all(
    labels: np.ndarray, fractions: Mapping[str, float], seed: int, names: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Return the rows, int64 in order, of each split in `fractions`, cut one after another, and of `train`: the rest.

    Args:
        labels: of classes, int [N].
        fractions: from each split to its fraction of the examples that the splits before it have left.
        names: of the classes, for errors.

    Raises:
        UserError: where a split cannot have an example of each class.
    """
    rows = {"train": np.arange(len(labels))}
    for name, fraction in fractions.items():
        train = rows["train"]
        is_part = _stratified(labels[train], fraction, derive(seed, "split", name))
        if is_part is None:
            classes, counts = np.unique(labels, return_counts=True)
            rarest = classes[counts.argmin()]
            raise UserError(
                f"the {name} split cannot get an example of each class: {fraction:g} of {len(train):,} examples, "
                f"there are {len(classes):,} classes, and class {names[rarest] if names else f'number {rarest}'} has "
                f"{counts.min()}",
                f"at least one example of each class in each of {len(fractions) + 1} splits; add examples, change the "
                "fractions, or set task=regression if the target is a number",
                "data.val_fraction=<fraction> data.test_fraction=<fraction>",
            )
        rows |= {name: train[is_part], "train": train[~is_part]}
    return rows


def cut_evenly(source: str, rows: Mapping[str, np.ndarray], settings: DataSettings) -> dict[str, np.ndarray]:
    """Return the rows of all splits, in order: those that `rows` lacks are cut at random from its `train`.

    Raises:
        UserError: If a split of `source` has no example.
    """
    _refuse_empty(source, rows)
    train = rows["train"]
    missing = {name: fraction for name, fraction in settings.held_out.items() if name not in rows}
    if len(train) <= len(missing):
        problem = f"{source} has only {len(train)} training examples that can be used"
        raise UserError(problem, f"at least {len(missing) + 1}, one for each split")
    cut = cut_all(np.zeros(len(train), np.int32), missing, settings.split_seed)
    return {**rows, **{name: train[part] for name, part in cut.items()}}


def cut_by_time(times: np.ndarray, train: np.ndarray, fractions: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Return the rows of each split in `fractions`, each the last rows that the splits before it have left.

    Equal times stay in the same split, unless it would become twice as large.

    Args:
        times: Of all rows, float64 [N].
        train: The rows that are cut, int64.
        fractions: From each split to its fraction of the rows that the splits before it have left.

    Returns:
        The rows of these splits and of `train`, int64 in order.
    """
    rows = {}
    train = train[np.argsort(times[train], kind="stable")]
    for name, fraction in fractions.items():
        size = math.ceil(fraction * len(train))
        last = len(train) - size
        borders = 1 + np.flatnonzero(np.diff(times[train]))
        near = borders[np.abs(borders - last) < size]
        if len(near):
            last = near[np.abs(near - last).argmin()]
        rows[name], train = np.sort(train[last:]), train[:last]
    return {**rows, "train": np.sort(train)}


def cut_classes(
    source: str, rows: Mapping[str, np.ndarray], labels: np.ndarray, names: tuple[str, ...], settings: DataSettings
) -> dict[str, np.ndarray]:
    """Return the rows of all splits, in order: those that `rows` lacks are cut from its `train`.

    Args:
        labels: int [N], of all rows, numbers of the classes `names`.

    Raises:
        UserError: where a split of `source` has no example, a class too few for each, or only one can be learned.
    """
    _refuse_empty(source, rows)
    train = rows["train"]
    present = np.unique(labels[train])
    if len(present) < 2:
        raise UserError(
            f"only the class {names[present[0]]} has training examples that can be used",
            "training examples of at least two classes",
        )
    missing = {name: fraction for name, fraction in settings.held_out.items() if name not in rows}
    cut = cut_all(labels[train], missing, settings.split_seed, names)
    return {**rows, **{name: train[part] for name, part in cut.items()}}


def _refuse_empty(source: str, rows: Mapping[str, np.ndarray]) -> None:
    for name, part in rows.items():
        if not len(part):
            raise UserError(f"the {name} split of {source} has no examples that can be used", "at least one")


def _stratified(labels: np.ndarray, fraction: float, seed: int) -> np.ndarray | None:
    """Return which examples the part has, bool [N]; None where it or the rest cannot have one of each class.

    They are those of scikit-learn's `train_test_split(stratify=labels)`, which takes a second to import.
    """
    random = np.random.RandomState(seed)
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    size = math.ceil(fraction * len(labels))
    if not len(counts) <= size <= len(labels) - len(counts) or counts.min() < 2:
        return None
    stay = _allot(counts, len(labels) - size, random)
    go = _allot(counts - stay, size, random)
    is_part = np.zeros(len(labels), bool)
    for number, count in enumerate(counts):
        shuffled = np.flatnonzero(classes == number)[random.permutation(count)]
        is_part[shuffled[stay[number] : stay[number] + go[number]]] = True
    return is_part


def _allot(counts: np.ndarray, size: int, random: np.random.RandomState) -> np.ndarray:
    """Return how many of `size` examples are of each class, in proportion to `counts`.

    The largest remainders are rounded up; `random` decides among equal ones.
    """
    exact = counts / counts.sum() * size
    rounded = np.floor(exact).astype(int)
    remainders = exact - rounded
    for remainder in np.unique(remainders)[::-1]:
        missing = size - rounded.sum()
        if not missing:
            break
        equal = np.flatnonzero(remainders == remainder)
        rounded[random.choice(equal, min(len(equal), missing), replace=False)] += 1
    return rounded


def dataset_of(name: str, splits: Mapping[str, Split], task: Task, features: Schema) -> Dataset:
    """Return the data set of `train`, `val` and `test`, with the fingerprint of their values and targets."""
    content = hashlib.sha256()
    splits = {key: replace(one, targets=int32_labels(one.targets)) for key, one in splits.items()}
    train, val, test = (splits[key] for key in ("train", "val", "test"))
    for key, split in {"train": train, "val": val, "test": test}.items():
        for feature, column in split.features.items():
            content.update(f"{key} {feature} {column.dtype} {column.shape}".encode())
        for block in blocks_of(split.targets):
            content.update(block.tobytes())
        content.update(b"" if split.weights is None else split.weights.tobytes())
        content.update(split.described.digests.data)
    fingerprint = content.hexdigest()[:32]
    return Dataset(name, train, val, test, task, features, fingerprint)
