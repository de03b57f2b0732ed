"""A training that was stopped, and went on, is the one that nobody stopped: to the bit, wherever it was stopped."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.cases import engine_of
from stages.checkpoints.files import from_bytes, to_bytes
from stages.checkpoints.progress import Progress
from stages.optimization.optimizers import build_optimizer
from stages.settings.train import PlateauSettings, SgdSettings
from stages.training.engine import Engine
from stages.training.resume import Resumable
from tests.stages.experiments import (
    adam,
    built_of,
    central_storage,
    flat,
    mirrored,
    model_parallel,
    one_device,
    small_cnn,
)
from tests.stages.training.stopped import DATASET, Whole, assert_resumes_as, given, run, stop

pytestmark = pytest.mark.slow


OWN = {"_target_": "keras.callbacks.EarlyStopping", "monitor": "val_loss", "min_delta": 0.06, "patience": 2}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "mirrored 2, adam, EMA, clipped, mixed_float16": (mirrored, {
        "optimizer": adam(ema_momentum=0.9, clip_norm=1.0, ema_use=True), "epochs": 3,
        "build": partial(built_of, {"_target_": "benchmarks.cases.with_batch_norm"}, policy="mixed_float16"),
    }),
    "central storage, bfloat16": (central_storage, {"policy": "bfloat16", "epochs": 3}),
    "model parallel": (model_parallel, {"epochs": 3}),
    "plateau, then patience": (one_device, {
        "monitor": "val_accuracy", "early_stopping_patience": 3, "schedule": PlateauSettings(patience=1),
        "optimizer": SgdSettings(learning_rate=1e-5), "epochs": 6,
    }),
    "own patience": (one_device, {"early_stopping_patience": 0, "callbacks": [OWN], "epochs": 8}),
}  # fmt: skip
"""Several things at once, wherever what is not restored would show: the weights are compared to the bit."""


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_training_equals_an_uninterrupted_one(case: str, tmp_path: Path) -> None:
    make, changes = CASES[case]
    whole, told = run(make(), None, **changes)
    if "patience" in case:
        assert len(whole.history) < changes["epochs"]  # it ran out
    if "plateau" in case:
        assert whole.history[-1]["train/learning_rate"] < whole.history[0]["train/learning_rate"]
    assert_resumes_as(whole, told, make, tmp_path, (13,), **changes)


def test_it_does_wherever_it_is_stopped_again_and_again(whole: Whole, tmp_path: Path) -> None:
    """After the first step, at the end of an epoch and of the last one; the cases above stop within an epoch."""
    assert_resumes_as(whole.trained, whole.told, one_device, tmp_path, (1, 16, 31))


def test_loss_scale_ema_and_sums_are_restored(tmp_path: Path) -> None:
    """Of two replicas each its own sums; what would not show in the weights of a short training."""

    def made() -> tuple[Engine, Resumable]:
        where, told = mirrored(2), given(optimizer=adam(ema_momentum=0.9))
        model = small_cnn(DATASET, where, "mixed_float16")
        with where.distribution.scope():
            optimizer = build_optimizer(told.optimizer, 0.001)
        model.network.compile(optimizer)
        engine = engine_of(where, model, DATASET, optimizer, told)
        return engine, Resumable(engine.state, (), DATASET, told, optimizer)

    (first, before), (second, after) = made(), made()
    scale, sums = first.state.loss_scale, first.state.sums[0].values
    assert scale is not None
    for variable, value in zip(scale.variables, (4.0, 7, 2), strict=True):
        variable.assign(value)
    for part, value in zip(sums, (0.1, 0.2), strict=True):
        part.assign(value)
    first.state.ema.values[0].assign(first.state.ema.values[0] + 1.0)
    progress = after.restore(from_bytes(to_bytes(before.checkpoint(Progress(1, 3, 11)))))
    assert (progress.epoch, progress.done, progress.step) == (1, 3, 11)
    assert second.state.loss_scale is not None
    assert [float(one.numpy()) for one in second.state.loss_scale.variables] == [4, 7, 2]
    assert [float(part.numpy()) for part in second.state.sums[0].values] == [0.1, 0.2]
    np.testing.assert_array_equal(second.state.ema.values[0].numpy(), first.state.ema.values[0].numpy())


def test_a_training_that_was_over_is_not_trained_again(whole: Whole, tmp_path: Path) -> None:
    first = whole.trained
    shutil.copytree(whole.folder, tmp_path, dirs_exist_ok=True)
    again, told = run(one_device(), tmp_path)
    assert (told.resumed_from, again.history) == (first.steps, first.history)
    np.testing.assert_array_equal(flat(first.model.network), flat(again.model.network))


def test_the_number_of_devices_may_change(whole: Whole, tmp_path: Path) -> None:
    """From two replicas to one device, or to four."""
    first = stop(mirrored(2), tmp_path / "2", 13)
    for now in (one_device(), mirrored(4)):
        folder = tmp_path / str(now.in_sync)
        shutil.copytree(tmp_path / "2", folder)
        resumed, second = run(now, folder)
        assert second.resumed_from == first.done
        assert np.max(np.abs(flat(whole.trained.model.network) - flat(resumed.model.network))) <= 1e-6
        for epoch, row in whole.told.rows.items():
            assert second.rows[epoch] == pytest.approx(row, abs=1e-5)
