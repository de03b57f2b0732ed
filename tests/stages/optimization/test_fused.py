"""An update in one operation equals Keras' own of a dozen."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from stages.networks.precision import cast_exactly
from stages.optimization.exact_apply import update_step_of
from stages.results import Strategy
from tests.stages.experiments import mirrored, one_device

OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.05, beta_1=0.8, epsilon=1e-3),
    "adamw": lambda: keras.optimizers.AdamW(0.05),
}


def updated(where: Strategy, name: str, dtype: str, is_fused: bool) -> np.ndarray:
    """Return a variable after five updates by gradients of its own."""
    cast_exactly()  # as the stage `model` does for float64
    with where.distribution.scope():
        optimizer = OPTIMIZERS[name]()
        variable = keras.Variable(np.linspace(-1, 1, 6), dtype=dtype)
        optimizer.build([variable])

    @tf.function(autograph=False)
    def take() -> None:
        def update(distribution: tf.distribute.Strategy) -> None:
            rate = tf.convert_to_tensor(optimizer.learning_rate)
            update_step = update_step_of(optimizer) if is_fused else optimizer.update_step
            gradient = tf.sin(3.0 * tf.convert_to_tensor(variable.value))
            distribution.extended.update(
                variable.value, lambda copy, values: update_step(values, copy, rate), args=(gradient,), group=False
            )
            optimizer.iterations.value.assign_add(1)

        where.distribution.run(lambda: tf.distribute.get_replica_context().merge_call(update))

    for _ in range(5):
        take()
    copies = where.distribution.experimental_local_results(variable.value)
    for copy in copies:
        np.testing.assert_array_equal(copy.numpy(), copies[0].numpy())
    return copies[0].numpy()


@pytest.mark.smoke
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_in_one_operation_is_keras_own(name: str, dtype: str) -> None:
    bound = {"float32": 3e-6, "float64": 1e-7, "bfloat16": 0.0}[dtype]  # Keras' own constants have 24 bits
    own = updated(one_device(), name, dtype, is_fused=False)
    if (dtype, name[:4]) != ("bfloat16", "adam"):  # whose beta_2 is 1 there: the project refuses it
        assert np.abs(own - np.linspace(-1, 1, 6)).max() > 0.01
    for where in (one_device(), mirrored()):
        np.testing.assert_allclose(updated(where, name, dtype, is_fused=True), own, rtol=0, atol=bound)


class Halved(keras.optimizers.Adam):
    """An Adam whose updates are half as large."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, learning_rate * 0.5)


@pytest.mark.parametrize(
    "optimizer", [Halved(), keras.optimizers.Adam(amsgrad=True), keras.optimizers.SGD(), keras.optimizers.Lion()]
)
def test_every_other_optimizer_keeps_its_own(optimizer: keras.optimizers.Optimizer) -> None:
    assert update_step_of(optimizer) == optimizer.update_step
