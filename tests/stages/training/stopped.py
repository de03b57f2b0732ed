"""Trainings that are stopped in between, and go on."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from stages.reporter import Silent
from stages.results import Dataset, Strategy, Trained
from stages.settings.train import TrainSettings
from stages.train import train
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
    at: int | None = None,
    policy: str = "float32",
    dropout: float = 0.3,
    dataset: Dataset = DATASET,
    **changes: Any,
) -> tuple[Trained | None, Stopper]:
    """Trains in `folder`, until `at` steps are over or to the end."""
    reporter, model = Stopper(at), small_cnn(dataset, where, policy, dropout)
    try:
        return train(model, dataset, where, given(**changes), reporter, folder), reporter
    except KeyboardInterrupt:
        return None, reporter


class Whole(NamedTuple):
    """A training that nobody stopped, in its folder."""

    folder: Path
    trained: Trained
    told: Stopper
