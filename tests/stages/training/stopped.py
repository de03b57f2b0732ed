"""Trainings that are stopped in between, and go on."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

from stages.reporter import Silent
from stages.results import Dataset, Model, Strategy, Trained
from stages.settings.train import FitSettings, TrainSettings
from stages.train import fit, train
from tests.stages.experiments import real_digits, settings, small_cnn

DATASET = real_digits(500)
"""Eight steps an epoch, the last of 52 examples."""


class Stopper(Silent):
    """Wants the end once `at` steps are over.

    first: the number of steps over when the first call of this training ended, which takes a single one.
    """

    def __init__(self, at: int | None = None) -> None:
        self.at, self.done = at, 0
        self.rows: dict[int, dict[str, float]] = {}
        self.first: int | None = None
        self.resumed_from: int | None = None
        self.said: list[str] = []
        self.warned: list[str] = []

    @property
    def requested(self) -> bool:
        return self.at is not None and self.done >= self.at

    def now(self) -> NoReturn:
        raise KeyboardInterrupt

    def nothing_to_keep(self) -> AbstractContextManager[None]:
        return nullcontext()

    def progress(self, done: int, total: int, note: str) -> None:
        self.done = done
        self.first = done if self.first is None else self.first

    def metrics(self, values: Any, step: int) -> None:
        self.rows[step] = {name: value for name, value in values.items() if "second" not in name and "wait" not in name}

    def resumed(self, step: int) -> None:
        self.resumed_from = step

    def log(self, line: str) -> None:
        self.said.append(line)

    def warn(self, line: str) -> None:
        self.warned.append(line)

    @contextmanager
    def stopping(self) -> Iterator[Any]:
        yield self


def given(**changes: Any) -> TrainSettings:
    return settings(**{"epochs": 4, "steps_per_call": 3, "early_stopping_patience": 2, **changes})


def run(
    where: Strategy,
    folder: Path | None,
    dataset: Dataset = DATASET,
    build: Callable[[Dataset, Strategy], Model] | None = None,
    reporter: Stopper | None = None,
    **changes: Any,
) -> tuple[Trained, Stopper]:
    """Trains in `folder` to the end; `changes` are of the settings, `policy` and `dropout` of the small network."""
    small = partial(small_cnn, dropout=changes.pop("dropout", 0.3), policy=changes.pop("policy", "float32"))
    engine: Callable[..., Trained] = fit if changes.pop("by", "loop") == "fit" else train
    told, reporter = given(**changes), reporter or Stopper()
    if engine is fit:
        told = FitSettings(**{**vars(told), "_target_": FitSettings._target_})
    model = (build or small)(dataset, where)
    return engine(model, dataset, where, told, reporter, folder), reporter


def stop(where: Strategy, folder: Path, at: int, **changes: Any) -> Stopper:
    """Trains in `folder`, as `run` does, until `at` steps are over."""
    reporter = Stopper(at)
    with pytest.raises(KeyboardInterrupt):
        run(where, folder, reporter=reporter, **changes)
    return reporter


class Whole(NamedTuple):
    """A training that nobody stopped, in its folder."""

    folder: Path
    trained: Trained
    told: Stopper
