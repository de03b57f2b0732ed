"""A frozen backbone stays as it is, and two phases are one training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from stages.checkpoints.forks import start_from
from stages.errors import UserError
from stages.results import Strategy
from stages.settings.model import CnnSettings
from stages.settings.train import CosineSettings
from stages.train import train
from tests.stages.experiments import adam, built_of, flat, mirrored, one_device
from tests.stages.training import stopped
from tests.stages.training.stopped import Stopper, Whole
from tests.stages.transfer.small import DATASET, build, given, inside, run, two_phases, weights_inside

pytestmark = pytest.mark.slow


def test_a_frozen_backbone_stays_to_the_bit() -> None:
    """Statistics included; its dropout is off in training. Where its features are cached: test_backbones.py."""
    where = one_device()
    made = build(where)
    backbone, before = inside(made.network), weights_inside(made.network)
    images = tf.cast(DATASET.train.images[:4], tf.float32)
    np.testing.assert_array_equal(backbone(images, training=True), backbone(images, training=False))
    head = flat(made.network)[len(before) :]
    trained = train(made, DATASET, where, given(fine_tune_epochs=0, cache_features="off"))
    np.testing.assert_array_equal(weights_inside(trained.model.network), before)
    assert np.max(np.abs(flat(trained.model.network)[len(before) :] - head)) > 1e-3
    assert trained.record.params["features"] == "off: train.cache_features=off"
    assert sum(np.size(weight) for weight in trained.model.network.trainable_variables) == 8 * 10 + 10


def test_two_replicas_equal_one_device_in_both_phases() -> None:
    """The backbone has dropout, which would differ from replica to replica if it were not off."""
    (one, _), (two, _) = (run(where, cache_features="off", dropout=0.0) for where in (one_device(), mirrored(2)))
    assert np.max(np.abs(flat(one.model.network) - flat(two.model.network))) <= 1e-5


CASES: dict[str, tuple[Callable[[], Strategy], tuple[int, ...], dict[str, Any]]] = {
    "mirrored 2, mixed_float16, last weights": (mirrored, (8,), {"policy": "mixed_float16", "restore_best": False}),
    "EMA, stopped early, cosine": (
        one_device,
        (4, 9),
        {
            "optimizer": adam(learning_rate=1e-9, ema_momentum=0.9, ema_use=True), "schedule": CosineSettings(),
            "epochs": 9, "monitor": "val_accuracy", "early_stopping_patience": 2,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_training_of_two_phases_equals_an_uninterrupted_one(case: str, tmp_path: Path) -> None:
    """Stopped within the second phase; in the first one and at the border, one after the other."""
    make, places, changes = CASES[case]
    whole, told = run(make(), None, **changes)
    phases = [row["train/phase"] for row in whole.history]
    assert (phases, phases[-2:]) == (sorted(phases), [2.0, 2.0])
    if "early" in case:
        assert len(phases) < 9 + 2
    stopped.assert_resumes_as(whole, told, make, tmp_path, places, **two_phases(**changes))


def test_phases_are_one_history_with_rates_and_weights_of_their_own(tmp_path: Path) -> None:
    where, reporter = one_device(), Stopper()
    made = build(where)
    backbone = inside(made.network)
    before = backbone.get_weights()
    trained = train(made, DATASET, where, given(fine_tune_rate=0.5, restore_best=False), reporter, tmp_path)
    assert list(reporter.rows) == [1, 2, 3, 4]
    rates = [row["train/learning_rate"] for row in trained.history]
    assert rates == pytest.approx([1e-3, 1e-3, 5e-4, 5e-4])
    assert [line for line in reporter.lines if line.startswith("phase")] == [
        "phase 2 (fine-tuning): 674 weights are trained"
    ]
    assert [line.split()[1] for line in reporter.lines if line.startswith("epoch")] == ["1/4", "2/4", "3/4", "4/4"]
    pairs = zip(backbone.weights, before, strict=True)
    changed = [weight.path for weight, old in pairs if not np.array_equal(weight, old)]
    assert changed == ["conv_2/kernel", "conv_2/bias"]  # neither conv_1 nor any BatchNorm


def test_a_job_of_a_sweep_computes_no_features_before_its_turn() -> None:
    events: list[tuple[int, str]] = []

    class Waiting(Stopper):
        def progress(self, done: int, total: int, note: str) -> None:
            events.append((done, note[:8]))

    run(one_device(), None, reporter=Waiting(), fine_tune_epochs=0)
    assert events[0] == (0, "features")  # the first progress of a training waits for the turn


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("frozen")
    return Whole(folder, *run(one_device(), folder, fine_tune_epochs=0))


def test_the_best_weights_of_a_frozen_training_are_those_of_the_whole_network(frozen: Whole) -> None:
    again = build(one_device(), weights=frozen.folder / "checkpoints" / "best.weights.h5", frozen=False)
    np.testing.assert_array_equal(flat(again.network), flat(frozen.trained.model.network))
    assert again.record.params["weights_of"] == "network"


def test_the_second_phase_begins_with_the_best_of_the_first(tmp_path: Path) -> None:
    """At a rate at which nothing is learnt, its scores are those of the best epoch, which stays the best of both."""
    wild: dict[str, Any] = {"optimizer": adam(learning_rate=30.0), "fine_tune_rate": 1e-12}
    trained, _ = run(one_device(), tmp_path, epochs=4, **wild)
    losses = [row["val/loss"] for row in trained.history]
    assert trained.best_epoch < 4
    assert losses[4] == pytest.approx(min(losses[:4]), rel=1e-5)
    assert trained.record.metrics["val/best_loss"] == min(losses)
    again = build(one_device(), weights=tmp_path / "checkpoints" / "best.weights.h5", frozen=False)
    np.testing.assert_array_equal(flat(again.network), flat(trained.model.network))


def test_a_fork_of_a_frozen_training_goes_on_with_fine_tuning(frozen: Whole, tmp_path: Path) -> None:
    start_from(frozen.folder / "checkpoints", tmp_path / "b" / "checkpoints")
    trained, told = run(one_device(), tmp_path / "b")
    assert list(told.rows) == [3, 4]
    assert [row["train/phase"] for row in trained.history] == [2.0, 2.0]


def test_a_fork_of_a_fine_tuned_training_has_the_epochs_that_it_asks_for(tmp_path: Path) -> None:
    run(one_device(), tmp_path / "a", epochs=1, fine_tune_epochs=1)
    start_from(tmp_path / "a" / "checkpoints", tmp_path / "b" / "checkpoints")
    trained, told = run(one_device(), tmp_path / "b", epochs=4, fine_tune_epochs=1)
    assert list(told.rows) == [3, 4, 5]
    assert [row["train/phase"] for row in trained.history] == [1.0, 1.0, 2.0]


def test_a_fork_of_a_second_phase_whose_first_one_stopped_early_stays_in_it(tmp_path: Path) -> None:
    early: dict[str, Any] = {"optimizer": adam(learning_rate=1e-9), "monitor": "val_accuracy", "epochs": 9}
    run(one_device(), tmp_path / "a", **early, early_stopping_patience=1, fine_tune_epochs=1)
    start_from(tmp_path / "a" / "checkpoints", tmp_path / "b" / "checkpoints")
    with pytest.raises(
        UserError, match=r"fine_tune_epochs=1, but .* has already trained 1 epoch.*Try: train\.fine_tune_epochs=2"
    ):
        run(one_device(), tmp_path / "b", **early, fine_tune_epochs=1)
    trained, told = run(one_device(), tmp_path / "b", **early, fine_tune_epochs=2)
    assert (list(told.rows), [row["train/phase"] for row in trained.history]) == ([4], [2.0])


def test_a_checkpoint_of_a_phase_that_is_not_asked_for_is_refused(tmp_path: Path) -> None:
    stopped.stop(one_device(), tmp_path, 8, **two_phases())
    with pytest.raises(UserError, match="the checkpoint is from the fine-tuning phase"):
        run(one_device(), tmp_path, fine_tune_epochs=0)


@pytest.mark.smoke
def test_what_cannot_be_fine_tuned_is_refused_before_the_first_phase() -> None:
    where = one_device()
    with pytest.raises(UserError, match=r"requires a frozen backbone.*Try: model.frozen=true"):
        train(build(where, frozen=False), DATASET, where, given())
    with pytest.raises(UserError, match=r"cnn has no layer named backbone"):
        built_of(CnnSettings(filters=[8]), DATASET, where, frozen=True)


def test_a_backbone_that_its_own_network_has_frozen_is_fine_tuned() -> None:
    where = one_device()
    made = build(where, frozen=False)
    inside(made.network).trainable = False
    before = flat(inside(made.network))
    trained = train(made, DATASET, where, given(epochs=1, fine_tune_epochs=1, restore_best=False))
    assert len(trained.history) == 2
    assert np.any(flat(inside(made.network)) != before)
