"""A fork begins with the weights that the other run reported, to the digit, and has settings of its own."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from stages.checkpoints.forks import at_epoch, start_from
from stages.errors import UserError
from stages.evaluation.eval_step import BATCH, Scorer
from stages.results import Trained
from stages.settings.model import CnnSettings
from stages.settings.train import AutoTaskSettings, CosineSettings, SgdSettings
from tests.stages.experiments import adam, built_of, flat, one_device, real_digits, small_cnn
from tests.stages.training import stopped
from tests.stages.training.stopped import Stopper, Whole

pytestmark = pytest.mark.slow

DATASET = real_digits(256)
"""Four steps an epoch."""


class Spoil(keras.callbacks.Callback):
    """Makes the second epoch the best one: from the third on the weights are pushed away before every epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch >= 2:
            for variable in self.model.trainable_variables:
                variable.assign(variable * 1.5 + 0.1 * epoch)


class Beginning(keras.callbacks.Callback):
    """Has the weights before the first step."""

    weights: Any = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.weights = self.weights or self.model.get_weights()

    def scores(self) -> dict[str, float]:
        model = small_cnn(DATASET, one_device())
        model.network.set_weights(self.weights)
        found = Scorer(one_device(), model).score(DATASET.val, BATCH)
        return {"val/loss": found.loss, "val/accuracy": found.metrics["accuracy"]}


def scores_of(row: Mapping[str, float]) -> dict[str, float]:
    return {name: row[name] for name in ("val/loss", "val/accuracy")}


USUAL: dict[str, Any] = {
    "dataset": DATASET, "dropout": 0.0, "optimizer": adam(),
    "epochs": 3, "steps_per_call": 1, "early_stopping_patience": 0,
}  # fmt: skip


def run(folder: Path, **changes: Any) -> tuple[Trained, Stopper]:
    return stopped.run(one_device(), folder, **{**USUAL, **changes})


def stop(folder: Path, at: int, **changes: Any) -> Stopper:
    return stopped.stop(one_device(), folder, at, **{**USUAL, **changes})


EMA = adam(ema_momentum=0.5, ema_use=True)
Source = Callable[..., tuple[Path, Stopper]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """Train what is forked, once for all tests that fork it: returns its checkpoints, and what it has told."""

    @functools.cache
    def of(case: str) -> tuple[Path, Stopper]:
        by, before, _, at = CASES[case]
        folder, given = tmp_path_factory.mktemp("source"), {"callbacks": [Spoil()], **before}
        return folder / "checkpoints", run(folder, by=by, **given)[1] if at is None else stop(folder, at, **given)

    return of


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], int | None]] = {
    "usual": ("loop", {}, {}, None),
    "EMA, and EMA": ("loop", {"optimizer": EMA}, {"optimizer": EMA}, None),
    "EMA, then none": ("loop", {"optimizer": EMA}, {}, None),
    "the last": ("loop", {"restore_best": False}, {}, None),
    "by Keras": ("fit", {}, {}, None),
    "by accuracy, stopped, another optimizer": ("loop", {"monitor": "val_accuracy"}, {"optimizer": SgdSettings()}, 10),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_its_first_weights_are_those_that_the_other_run_reported(case: str, source: Source, tmp_path: Path) -> None:
    by, before, now, _ = CASES[case]
    checkpoints, told = source(case)
    last = "restore_best" in before
    epoch = 3 if last else 2
    start_from(checkpoints, tmp_path / "checkpoints", "best", "4d9eb298")
    beginning = Beginning()
    result, heard = run(tmp_path, by=by, epochs=4, callbacks=[beginning], **now)
    assert beginning.scores() == scores_of(told.rows[epoch])
    assert list(heard.rows) == list(range(epoch + 1, 5))
    [line] = [line for line in heard.lines if line.startswith("forked from 4d9eb298: weights of epoch")]
    assert f"weights of epoch {epoch} ({'the last' if last else 'best'}" in line
    assert f"training continues with epoch {epoch + 1}" in line
    assert ("with a new optimizer" in line) == (not last)
    assert result.record.metrics["train/last_epoch"] == 4


def test_by_last_it_is_continued_exactly(source: Source, tmp_path: Path) -> None:
    checkpoints, told = source("usual")
    start_from(checkpoints, tmp_path / "checkpoints", "last", "4d9eb298")
    beginning = Beginning()
    _, heard = run(tmp_path, epochs=4, callbacks=[beginning])
    assert beginning.scores() == scores_of(told.rows[3])
    assert any("weights of epoch 3 (the last), with the state of their optimizer" in line for line in heard.lines)


def test_the_schedule_continues_and_an_interrupted_fork_is_resumed_exactly(source: Source, tmp_path: Path) -> None:
    cosine: dict[str, Any] = {"schedule": CosineSettings(), "epochs": 5}
    checkpoints, _ = source("usual")
    for name in ("b", "c"):
        start_from(checkpoints, tmp_path / name / "checkpoints", "best")
    whole, told = run(tmp_path / "b", **cosine)
    steps = 4 * 5
    expected = [0.0005 * (1 + np.cos(np.pi * (4 * epoch - 1) / steps)) for epoch in (3, 4, 5)]
    assert [row["train/learning_rate"] for row in whole.history] == pytest.approx(expected, rel=1e-5)
    stop(tmp_path / "c", 14, **cosine)
    resumed, again = run(tmp_path / "c", **cosine)
    assert (again.rows, list(again.rows)) == (told.rows, [3, 4, 5])
    np.testing.assert_array_equal(flat(whole.model.network), flat(resumed.model.network))


def test_without_best_weights_it_starts_from_the_last(tmp_path: Path) -> None:
    stop(tmp_path / "a", 2)
    start_from(tmp_path / "a" / "checkpoints", tmp_path / "b" / "checkpoints", "best", "4d9e")
    told = run(tmp_path / "b")[1]
    assert "forked from 4d9e: weights of epoch 1, step 2 (the last)" in "".join(told.lines)


@pytest.mark.smoke
def test_the_epoch_of_the_best_weights_decides_the_phase() -> None:
    of_both = {"epoch": 9, "done": 3, "step": 39, "phase": 1, "began": 6, "rows": []}
    assert at_epoch(of_both, 8) == {"epoch": 8, "done": 0}
    assert at_epoch(of_both, 6) == {"epoch": 6, "done": 0, "phase": 0, "began": 0}


OTHER_SUMS = AutoTaskSettings(metrics=[{"_target_": "keras.metrics.AUC"}])
MEASURED = functools.partial(built_of, CnnSettings(filters=[8, 16], dropout=0.3), task=OTHER_SUMS)


@pytest.fixture(scope="module")
def within_the_third(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of a training that was stopped after 20 steps of eight an epoch, within the third."""
    folder = tmp_path_factory.mktemp("within_the_third")
    stopped.stop(one_device(), folder, 20, steps_per_call=4)
    return folder / "checkpoints"


def test_a_fork_takes_the_weights_and_other_settings(within_the_third: Path, tmp_path: Path) -> None:
    start_from(within_the_third, tmp_path / "checkpoints")
    changes: dict[str, Any] = {"optimizer": adam(learning_rate=1e-4), "batch_size": 32, "epochs": 5, "build": MEASURED}
    trained, told = stopped.run(one_device(), tmp_path, **changes)
    assert any("with a new optimizer, whose learning-rate schedule starts again;" in line for line in told.lines)
    assert told.first == 2 * 16 + 1  # 20 steps of 64 are within the third epoch, which begins again
    assert list(told.rows) == [3, 4, 5]
    assert [row["train/learning_rate"] for row in told.rows.values()] == pytest.approx([1e-4] * 3)
    again, _ = stopped.run(one_device(), tmp_path, **changes)  # its own checkpoints come first
    np.testing.assert_array_equal(flat(again.model.network), flat(trained.model.network))


def test_a_fork_that_switches_the_ema_on_averages_from_the_weights_it_takes(whole: Whole, tmp_path: Path) -> None:
    start_from(whole.folder / "checkpoints", tmp_path / "checkpoints")
    ema = SgdSettings(ema_momentum=0.999, ema_use=True)
    _, told = stopped.run(one_device(), tmp_path, epochs=5, optimizer=ema)
    assert told.rows[5]["val/accuracy"] >= whole.told.rows[4]["val/accuracy"] - 0.05


@pytest.mark.parametrize(("build", "first"), [(None, 20 + 1), (MEASURED, 2 * 8 + 1)], ids=["same", "other sums"])
def test_a_fork_goes_on_within_the_epoch_unless_it_sums_otherwise(
    build: Any, first: int, within_the_third: Path, tmp_path: Path
) -> None:
    start_from(within_the_third, tmp_path / "checkpoints")
    told = stopped.stop(one_device(), tmp_path, first, build=build)
    assert (told.first, told.resumed_from) == (first, None)


def test_a_fork_with_nothing_left_to_do_is_refused(whole: Whole, tmp_path: Path) -> None:
    start_from(whole.folder / "checkpoints", tmp_path / "checkpoints")
    with pytest.raises(UserError, match=r"train.epochs=4, but .* already trained 4 epochs.*Try: train.epochs=8"):
        stopped.run(one_device(), tmp_path, early_stopping_patience=0)
