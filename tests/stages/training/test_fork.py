"""A fork begins with the weights that the other run reported: its first validation is that run's, to the digit."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from stages.checkpoints.forks import at_epoch, start_from
from stages.errors import UserError
from stages.fit import fit
from stages.results import Trained
from stages.settings.optimizer import CosineSettings, SgdSettings
from stages.settings.train import FitSettings, TrainSettings
from stages.train import train
from tests.stages.experiments import adam, flat, one_device, real_digits, settings, small_cnn
from tests.stages.training.stopped import Stopper

pytestmark = pytest.mark.slow

DATASET = real_digits(256)
"""Four steps an epoch."""


class Spoil(keras.callbacks.Callback):
    """Makes the second epoch the best one: from the third on the weights are pushed away before every epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch >= 2:
            for variable in self.model.trainable_variables:
                variable.assign(variable * 1.5 + 0.1 * epoch)


class Lines(Stopper):
    def __init__(self, at: int | None = None) -> None:
        super().__init__(at)
        self.said: list[str] = []

    def log(self, line: str) -> None:
        self.said.append(line)


def run(by: str, folder: Path, at: int | None = None, **changes: Any) -> tuple[Trained | None, Lines]:
    reporter, where = Lines(at), one_device()
    given = settings(**{"epochs": 3, "steps_per_call": 1, "optimizer": adam(), **changes})
    if by == "fit":
        plain = {field.name: getattr(given, field.name) for field in fields(TrainSettings) if field.name != "_target_"}
        given = FitSettings(**plain)
    model = small_cnn(DATASET, where)
    try:
        engine: Callable[..., Trained] = fit if by == "fit" else train
        return engine(model, DATASET, where, given, reporter, folder), reporter
    except KeyboardInterrupt:
        return None, reporter


EMA = adam(ema_momentum=0.5, ema_use=True)
KEPT = adam(ema_momentum=0.5)
"""An EMA that is kept beside the weights, which are what is reported."""
Source = Callable[..., tuple[Path, Trained | None, Lines]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """Trains what is forked, once for all tests that fork it: returns its checkpoints, its result, what it has told."""
    made: dict[str, tuple[Path, Trained | None, Lines]] = {}

    def of(
        by: str, at: int | None = None, before: Mapping[str, Any] | None = None
    ) -> tuple[Path, Trained | None, Lines]:
        key = f"{by} {at} {before or {}}"
        if key not in made:
            folder = tmp_path_factory.mktemp("source")
            made[key] = (folder / "checkpoints", *run(by, folder, at, callbacks=[Spoil()], **(before or {})))
        return made[key]

    return of


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], int | None]] = {
    "stopped within an epoch": ("loop", {}, {}, 10),
    "EMA, and EMA": ("loop", {"optimizer": EMA}, {"optimizer": EMA}, None),
    "EMA, then none": ("loop", {"optimizer": EMA}, {}, None),
    "EMA kept, then used": ("loop", {"optimizer": KEPT}, {"optimizer": EMA}, None),
    "the last": ("loop", {"restore_best": False}, {}, None),
    "by Keras": ("fit", {}, {}, None),
    "best by accuracy, another optimizer": ("loop", {"monitor": "val_accuracy"}, {"optimizer": SgdSettings()}, None),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_first_validation_is_what_the_other_run_reported(case: str, source: Source, tmp_path: Path) -> None:
    by, before, now, at = CASES[case]
    checkpoints, trained, told = source(by, at, before)
    last = "restore_best" in before
    epoch = 3 if last else 2
    start_from(checkpoints, tmp_path / "checkpoints", "best", "4d9eb298")
    result, heard = run(by, tmp_path, epochs=4, **now)
    assert result is not None
    for name in ("loss", "accuracy"):
        assert result.record.metrics[f"val/start_{name}"] == told.rows[epoch][f"val/{name}"]
        if trained is not None and not last:
            assert result.record.metrics[f"val/start_{name}"] == trained.record.metrics[f"val/best_{name}"]
    assert list(heard.rows) == list(range(epoch + 1, 5))
    [line] = [line for line in heard.said if line.startswith("forked from 4d9eb298: weights of epoch")]
    assert f"weights of epoch {epoch} ({'the last' if last else 'best'}" in line
    assert f"epoch {epoch + 1} is next" in line
    assert ("the optimizer starts again" in line) == (not last)
    assert result.record.metrics["train/last_epoch"] == 4


def test_by_last_it_is_continued_exactly(source: Source, tmp_path: Path) -> None:
    checkpoints, _, told = source("loop")
    start_from(checkpoints, tmp_path / "checkpoints", "last", "4d9eb298")
    result, heard = run("loop", tmp_path, epochs=4)
    assert result is not None
    assert result.record.metrics["val/start_loss"] == told.rows[3]["val/loss"]
    assert any("weights of epoch 3 (the last), with their optimizer" in line for line in heard.said)


@pytest.mark.parametrize("by", ["loop"])
def test_the_schedule_continues_and_an_interrupted_fork_is_resumed_exactly(
    by: str, source: Source, tmp_path: Path
) -> None:
    cosine: dict[str, Any] = {"schedule": CosineSettings(), "epochs": 5}
    checkpoints, _, _ = source(by)
    for name in ("b", "c"):
        start_from(checkpoints, tmp_path / name / "checkpoints", "best")
    whole, told = run(by, tmp_path / "b", **cosine)
    assert whole is not None
    steps = 4 * 5
    expected = [0.0005 * (1 + np.cos(np.pi * (4 * epoch - 1) / steps)) for epoch in (3, 4, 5)]
    assert [row["train/learning_rate"] for row in whole.history] == pytest.approx(expected, rel=1e-5)
    assert run(by, tmp_path / "c", 14, **cosine)[0] is None
    resumed, again = run(by, tmp_path / "c", **cosine)
    assert resumed is not None
    assert again.rows == told.rows
    assert list(again.rows) == [3, 4, 5]
    np.testing.assert_array_equal(flat(whole.model.network), flat(resumed.model.network))
    assert resumed.record.metrics["val/start_loss"] == whole.record.metrics["val/start_loss"]


def test_without_best_weights_it_says_what_to_type(tmp_path: Path) -> None:
    run("loop", tmp_path / "a", 2)
    with pytest.raises(UserError, match=r"no best weights yet.*Try: fork=4d9e fork_weights=last"):
        start_from(tmp_path / "a" / "checkpoints", tmp_path / "b" / "checkpoints", "best", "4d9e")
    start_from(tmp_path / "a" / "checkpoints", tmp_path / "b" / "checkpoints", "last", "4d9e")
    assert run("loop", tmp_path / "b")[0] is not None


@pytest.mark.smoke
def test_the_epoch_of_the_best_weights_decides_the_phase() -> None:
    of_both = {"epoch": 9, "done": 3, "step": 39, "phase": 1, "began": 6, "rows": []}
    assert at_epoch(of_both, 8) == {"epoch": 8, "done": 0}
    assert at_epoch(of_both, 6) == {"epoch": 6, "done": 0, "phase": 0, "began": 0}
