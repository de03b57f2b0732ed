"""An optimizer or a schedule of one's own obeys the laws of the project's, or is refused."""

import functools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from stages.errors import UserError
from stages.optimization.optimizers import build_optimizer, learning_rate
from stages.results import Dataset, Model, Strategy
from stages.settings.model import MlpSettings
from stages.settings.train import CosineSettings, CustomOptimizerSettings, CustomScheduleSettings, SgdSettings
from tests.stages.experiments import PLACES, built_of, flat, one_device, real_digits, settings, start
from tests.stages.training import stopped
from tests.stages.training.test_loop import overflowing

pytestmark = pytest.mark.slow


class Decaying(keras.optimizers.Optimizer):
    """Momentum whose factor grows with the steps: a slot for each weight, and a counter of its own."""

    def __init__(self, learning_rate: float, growth: float = 0.1, **options: Any) -> None:
        super().__init__(learning_rate=learning_rate, **options)
        self.growth = growth

    def build(self, variables: list[Any]) -> None:
        super().build(variables)
        self.slots = self.add_optimizer_variables(variables, "slot")

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        slot = self.slots[self._get_variable_index(variable)]
        step = keras.ops.cast(self.iterations, variable.dtype)
        factor = keras.ops.cast(self.growth, variable.dtype) * step / (step + 1)
        self.assign(slot, slot * factor + gradient)
        self.assign_sub(variable, slot * keras.ops.cast(learning_rate, variable.dtype))


class Forgetful(Decaying):
    """Has a variable that no checkpoint would have."""

    def build(self, variables: list[Any]) -> None:
        super().build(variables)
        self.calls = tf.Variable(0.0)


def halving(peak: float, steps: int, share: float = 0.5) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return a schedule that ends at `share` of the peak."""
    return lambda step: peak * (1 - (1 - share) * step / steps)


OPTIMIZERS = {
    "Lion": CustomOptimizerSettings(_target_="keras.optimizers.Lion", arguments={"beta_1": 0.8}),
    "one's own": CustomOptimizerSettings(_target_=f"{__name__}.Decaying", learning_rate=0.05),
}
HALVING = CustomScheduleSettings(_target_=f"{__name__}.halving", arguments={"share": 0.1}, warmup_epochs=0.5)


def small_mlp(dataset: Dataset, where: Strategy, policy: str = "float64") -> Model:
    return built_of(MlpSettings(hidden=[16]), dataset, where, policy)


EVERYTHING: dict[str, Any] = {"clip_norm": 0.5, "ema_momentum": 0.9, "weight_decay": 0.1, "accumulation": 2}


@functools.cache
def updated(target: str, where: str, policy: str) -> np.ndarray:
    """Return weights and EMA after steps of 7 examples, clipped, in two parts, with decay that leaves out the bias."""
    dataset = real_digits(18)  # the last batch has 4
    given = settings(optimizer=CustomOptimizerSettings(_target_=target, learning_rate=1e-3, **EVERYTHING), batch_size=7)
    place = PLACES[where]()
    loop = start(place, small_mlp(dataset, place, policy), dataset, replace(given, epochs=9))
    loop.run(0, 12)
    network = loop.step.model.network
    return np.concatenate([flat(network), *(np.ravel(value) for value in loop.state.ema.values)]).astype(np.float64)


KERAS = ["Nadam", "Muon", "Lion", "Adafactor", "Lamb"]


# Elsewhere than mirrored, variables are read and assigned by the same methods for every optimizer: two suffice there.
@pytest.mark.parametrize(("target", "where"), [
    *((target, "mirrored 3") for target in [*KERAS, "own"]),
    *((target, "central_storage 2") for target in ["Muon", "own"]),
])  # fmt: skip
def test_replicas_equal_one_device(target: str, where: str) -> None:
    path = f"{__name__}.Decaying" if target == "own" else f"keras.optimizers.{target}"
    policy, bound = ("float32", 2e-7) if target != "Lion" else ("float64", 1e-8)  # a sign turns rounding into steps
    np.testing.assert_allclose(updated(path, where, policy), updated(path, "one device", policy), atol=bound, rtol=0)


def test_a_resumed_training_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    """With a slot and a counter; Keras' own have nothing else."""
    given: dict[str, Any] = {
        "dataset": real_digits(150), "optimizer": OPTIMIZERS["one's own"], "schedule": HALVING, "steps_per_call": 1,
    }  # fmt: skip
    given |= {"build": partial(small_mlp, policy="float32"), "early_stopping_patience": 0, "epochs": 2}
    whole, told = stopped.run(one_device(), None, **given)
    stopped.assert_resumes_as(whole, told, one_device, tmp_path, (4,), **given)


@pytest.mark.parametrize(("name", "place"), [("Lion", "central_storage 2"), ("one's own", "mirrored 3")])
def test_float16_overflow_skips_one_step_everywhere(name: str, place: str) -> None:
    dataset, where = overflowing(real_digits(320), 17), PLACES[place]()
    model = small_mlp(dataset, where, "mixed_float16")
    loop = start(where, model, dataset, settings(optimizer=OPTIMIZERS[name]))
    loop.run(0, 5)
    assert loop.state.loss_scale is not None
    assert int(loop.state.loss_scale.skipped_steps.numpy()) == 1
    assert int(loop.state.iterations.numpy()) == 4
    assert float(loop.step.sums.totals.read()["examples"]) == 320 - 64
    for variable in model.network.trainable_variables:
        copies = [copy.numpy() for copy in where.distribution.experimental_local_results(variable.value)]
        assert all(np.isfinite(copy).all() and np.array_equal(copy, copies[0]) for copy in copies)


@pytest.mark.parametrize(("target", "arguments", "message"), [
    ("keras.optimizers.Lion", {"global_clipnorm": 1.0}, "sets global_clipnorm.*optimizer.clip_norm"),
    ("keras.optimizers.Lion", {"beta_9": 1.0}, "cannot be created"), ("keras.layers.ReLU", {}, "cannot be created"),
    ("keras.optimizers.SGD", {"clipnorm": 1.0}, "the optimizer's own clipnorm.*Try: optimizer.clip_norm=0"),
    (f"{__name__}.Decaying", {"clipvalue": 1.0}, "clip_norm=0.5 cannot be combined with the optimizer's own clipvalue"),
    (f"{__name__}.Forgetful", {}, "checkpoints cannot include: calls"),
])  # fmt: skip
def test_what_would_train_otherwise_in_silence_is_refused(target: str, arguments: dict[str, Any], message: str) -> None:
    dataset, where = real_digits(64), one_device()
    given = settings(optimizer=CustomOptimizerSettings(_target_=target, arguments=arguments, clip_norm=0.5))
    with pytest.raises(UserError, match=message):
        start(where, small_mlp(dataset, where), dataset, given)


def test_a_schedule_of_keras_and_one_of_ones_own_follow_the_warm_up() -> None:
    keras_cosine = CustomScheduleSettings(
        _target_="keras.optimizers.schedules.CosineDecay", arguments={"alpha": 0.1}, warmup_epochs=1
    )
    ours = CosineSettings(final_share=0.1, warmup_epochs=1)
    rates = [learning_rate(0.2, schedule, 10, 4) for schedule in (keras_cosine, ours)]
    assert callable(rates[0])
    assert callable(rates[1])
    assert [float(rates[0](step)) for step in range(40)] == [float(rates[1](step)) for step in range(40)]
    half = learning_rate(0.2, HALVING, 10, 4)
    assert callable(half)
    assert [float(half(step)) for step in (0, 5, 40)] == pytest.approx([0.04, 0.2, 0.02])
    assert float(build_optimizer(SgdSettings(), half).learning_rate) == pytest.approx(0.04)
    with pytest.raises(UserError, match="Absent cannot be created"):
        learning_rate(0.2, CustomScheduleSettings(_target_="keras.Absent"), 10, 4)
