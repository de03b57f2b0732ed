"""The EMA averages what belongs to the weights: also the statistics that a network keeps beside them."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from stages.evaluation.eval_step import Scorer
from stages.networks.batch_norm import BatchNormalization
from stages.settings.train import FitSettings, SgdSettings
from stages.train import fit, train
from tests.stages.experiments import built_of, mirrored, one_device, real_digits, settings, start

DIGITS = real_digits(96)


class Stateful(keras.layers.Layer):
    """Keeps the largest input that it has seen, how many examples, in two dtypes, and how often it was called."""

    def build(self, input_shape: Any) -> None:
        self.largest = self.add_weight(shape=(), initializer="zeros", trainable=False, name="largest")
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen", aggregation="sum")
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls", dtype="int32")
        self.table = self.add_weight(shape=(3,), initializer="uniform", trainable=False, name="table")

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.largest.assign(keras.ops.maximum(self.largest, keras.ops.cast(keras.ops.max(inputs), "float32")))
            self.seen.assign_add(keras.ops.cast(keras.ops.shape(inputs)[0], "float32"))
            self.calls.assign_add(1)
        return inputs + keras.ops.cast(0 * self.largest * keras.ops.sum(self.table), inputs.dtype)


def network(input_shape: tuple[int, ...], num_classes: int, dropout: float = 0.0) -> keras.Model:
    inputs = keras.Input(input_shape)
    frozen = BatchNormalization(momentum=0.5, name="frozen")
    outputs = keras.layers.Flatten()(inputs)
    outputs = frozen(keras.layers.Dense(8, use_bias=False, name="first")(outputs))
    frozen.trainable = False
    outputs = BatchNormalization(momentum=0.5, name="normal")(Stateful(name="stateful")(outputs))
    outputs = keras.layers.Dropout(dropout, name="dropout")(outputs)
    return keras.Model(inputs, keras.layers.Dense(num_classes, dtype="float32", name="last")(outputs))


def whole_state(model: Any) -> dict[str, np.ndarray]:
    """Return the values of all weights by their paths, and of seeds."""
    return {variable.path: np.array(tf.convert_to_tensor(variable.value)) for variable in model.network.variables}


RAW = ("seen", "calls", "table", "seed_generator_state", "frozen")
"""Parts of paths of what is not averaged: counts, constants, seeds, what does not change."""


@pytest.mark.parametrize(("place", "policy"), [("one", "float32"), ("two", "mixed_float16")])
def test_the_ema_is_that_of_weights_and_statistics(place: str, policy: str) -> None:
    """By its formula, from the values after each step; what is no statistic stays as it is, as does a skipped step."""
    where = one_device() if place == "one" else mirrored(2)
    model = built_of({"_target_": f"{__name__}.network", "dropout": 0.2}, DIGITS, where, policy)
    loop = start(where, model, DIGITS, settings(batch_size=16, optimizer=SgdSettings(ema_momentum=0.7)))
    expected = whole_state(model)
    for step in range(4):
        if loop.state.loss_scale is not None:
            loop.state.loss_scale.value.assign(2.0**100 if step == 2 else 2.0**10)
        loop.run(step, 1)
        if loop.state.loss_scale is not None and step == 2:
            continue
        for path, value in whole_state(model).items():
            kept = 0 if step == 0 or any(part in path for part in RAW) else 0.7
            expected[path] = kept * expected[path] + (1 - kept) * value
    raw = whole_state(model)
    with loop.state.ema.as_weights():
        averages = whole_state(model)
    assert any("moving_variance" in path and "frozen" not in path for path in expected)
    for path, value in averages.items():
        if any(part in path for part in RAW):
            np.testing.assert_array_equal(value, raw[path], path)
        else:
            np.testing.assert_allclose(value, expected[path], 1e-5, 1e-6, err_msg=path)
            assert "largest" in path or np.abs(value - raw[path]).max() > 1e-4, path
    for path, value in whole_state(model).items():
        np.testing.assert_array_equal(value, raw[path], path)


def test_training_ends_with_the_same_ema_by_fit_and_by_the_loop() -> None:
    """On two replicas and on one device. Counts that both replicas add to are added twice by Keras."""
    given: dict[str, Any] = {
        "epochs": 2, "batch_size": 16, "optimizer": SgdSettings(ema_momentum=0.7, ema_use=True), "restore_best": False,
    }  # fmt: skip
    found = []
    for engine, where in ((train, one_device()), (fit, mirrored(2))):
        model = built_of({"_target_": f"{__name__}.network"}, DIGITS, where)
        told = settings(**given) if engine is train else FitSettings(**vars(settings(**given)) | {"_target_": ""})
        trained = engine(model, DIGITS, where, told)  # type: ignore[arg-type]
        measured = trained.history[-1]["val/loss"]
        assert Scorer(where, trained.model).score(DIGITS.val, 256).loss == pytest.approx(measured, rel=1e-6)
        found.append((whole_state(trained.model), measured))
    (loop, loss), (by_fit, other_loss) = found
    for path, value in loop.items():
        if not any(part in path for part in ("seed", "calls", "seen")):
            np.testing.assert_allclose(by_fit[path], value, 1e-5, 1e-6, err_msg=path)
    np.testing.assert_array_equal(by_fit["frozen/moving_variance"], loop["frozen/moving_variance"])
    assert other_loss == pytest.approx(loss, abs=1e-5)
