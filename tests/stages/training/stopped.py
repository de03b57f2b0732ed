"""Trainings that are stopped in between, and go on."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pytest

from stages.results import Dataset, Model, Strategy, Trained
from stages.settings.train import FitSettings, TrainSettings
from stages.train import fit, train
from tests.stages.experiments import flat, real_digits, settings, small_cnn
from tests.stages.images import Telling

DATASET = real_digits(500)
"""Eight steps an epoch, the last of 52 examples."""


class Stopper(Telling):
    """Wants the end once `at` steps are over.

    first: the number of steps over when the first call of this training ended, which takes a single one.
    """

    def __init__(self, at: int | None = None) -> None:
        super().__init__()
        self.at, self.done = at, 0
        self.first: int | None = None
        self.resumed_from: int | None = None

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
        kept = {name: value for name, value in values.items() if "second" not in name and "wait" not in name}
        super().metrics(kept, step)

    def resumed(self, step: int) -> None:
        self.resumed_from = step

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
    """Train in `folder` to the end; `changes` are of the settings, `policy` and `dropout` of the small network."""
    small = partial(small_cnn, dropout=changes.pop("dropout", 0.3), policy=changes.pop("policy", "float32"))
    engine: Callable[..., Trained] = fit if changes.pop("by", "loop") == "fit" else train
    told, reporter = given(**changes), reporter or Stopper()
    if engine is fit:
        told = FitSettings(**{**vars(told), "_target_": FitSettings._target_})
    model = (build or small)(dataset, where)
    return engine(model, dataset, where, told, reporter, folder), reporter


def stop(where: Strategy, folder: Path, at: int, **changes: Any) -> Stopper:
    """Train in `folder`, as `run` does, until `at` steps are over."""
    reporter = Stopper(at)
    with pytest.raises(KeyboardInterrupt):
        run(where, folder, reporter=reporter, **changes)
    return reporter


def assert_resumes_as(
    whole: Trained, told: Stopper, make: Callable[[], Strategy], folder: Path, stops: tuple[int, ...], **changes: Any
) -> None:
    """Asserts that a training which stops once so many steps are over goes on to the weights and history of `whole`."""
    done = None
    for at in stops:
        reporter = stop(make(), folder, at, **changes)
        assert reporter.resumed_from == done
        done = reporter.done
    resumed, last = run(make(), folder, **changes)
    assert last.resumed_from == done
    np.testing.assert_array_equal(flat(whole.model.network), flat(resumed.model.network))
    assert (resumed.best_epoch, resumed.steps, last.rows) == (whole.best_epoch, whole.steps, told.rows)


class Whole(NamedTuple):
    """A training that nobody stopped, in its folder."""

    folder: Path
    trained: Trained
    told: Stopper
