"""The loop's laws: weights are exact, overflow and NaN are seen, dropout repeats itself.

That replicas equal one device stands in tests/stages/distribution/test_strategies.py; that both are what NumPy
computes, penalties included, in tests/stages/networks/test_float64.py.
"""

import time
from dataclasses import replace
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from stages.checkpoints.progress import Clock
from stages.data.columns import Streamed
from stages.data.examples import Batch
from stages.errors import UserError
from stages.evaluation.eval_step import Scorer
from stages.results import Dataset, Model
from stages.settings.optimizer import SgdSettings
from stages.train import train
from tests.stages.experiments import (
    adam,
    after_steps,
    built_of,
    flat,
    mirrored,
    one_device,
    real_digits,
    settings,
    small_cnn,
    start,
    with_bright_images,
)

pytestmark = pytest.mark.slow


@pytest.mark.smoke
def test_a_step_is_that_of_plain_gradient_descent() -> None:
    """One step on a batch of 5 over 2 replicas equals NumPy's own arithmetic on Keras' gradient of the mean loss."""
    dataset = real_digits(5)
    where = mirrored(2)
    model = small_cnn(dataset, where)
    before = [weight.copy() for weight in model.network.get_weights()]
    variables = model.network.trainable_variables
    with tf.GradientTape() as tape:
        outputs = model.network(tf.cast(dataset.train.images, tf.float32))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(dataset.train.targets, outputs)
    gradients = tape.gradient(loss, [variable.value for variable in variables])
    given = settings(optimizer=SgdSettings(learning_rate=0.1, momentum=0.0), batch_size=5)
    means = start(where, model, dataset, given).run(0, 1)
    for old, gradient, new in zip(before, gradients, model.network.get_weights(), strict=True):
        np.testing.assert_allclose(new, old - 0.1 * gradient.numpy(), atol=1e-6)
    assert means["loss"] == pytest.approx(float(loss), abs=1e-6)


def test_constraints_of_layers_hold_in_every_replica() -> None:
    dataset, where = real_digits(64), mirrored(2)
    with where.distribution.scope():
        bounded = keras.layers.Dense(10, kernel_constraint=keras.constraints.MaxNorm(0.1))
        network = keras.Sequential([keras.layers.Input((8, 8, 1)), keras.layers.Flatten(), bounded])
    start(
        where,
        Model(network, dataset.task, "float32"),
        dataset,
        settings(batch_size=32, epochs=5),
    ).run(0, 10)
    for copy in where.distribution.experimental_local_results(bounded.kernel.value):
        assert np.linalg.norm(copy.numpy(), axis=0).max() <= 0.1 + 1e-6


def test_k_steps_in_one_call_equal_single_steps() -> None:
    dataset = real_digits(200)
    given = settings(optimizer=adam(), epochs=100)
    whole, _ = after_steps(one_device(), dataset, given, 12, build=partial(small_cnn, dropout=0.3))
    where = one_device()
    model = small_cnn(dataset, where, dropout=0.3)
    loop = start(where, model, dataset, given)
    for step in range(12):
        loop.run(step, 1)
    np.testing.assert_array_equal(flat(whole.network), flat(model.network))


def test_parts_of_a_batch_drop_what_the_whole_one_does() -> None:
    dataset = real_digits(200)  # batches of 64, the last of 8
    build = partial(small_cnn, dropout=0.5)
    whole, parts = (
        after_steps(one_device(), dataset, settings(optimizer=adam(accumulation=count)), 12, build=build)[0]
        for count in (1, 3)
    )
    np.testing.assert_allclose(flat(whole.network), flat(parts.network), atol=1e-6)


def test_dropout_is_a_function_of_seed_step_and_row() -> None:
    """A loop that starts at step 7 drops what the one from the start drops at step 7."""
    dataset, where = real_digits(200), mirrored(2)

    def loss_of(first_step: int) -> float:
        model = small_cnn(dataset, where, dropout=0.5)
        given = settings(optimizer=SgdSettings(learning_rate=1e-12), epochs=10)
        loop = start(where, model, dataset, given, first_step=first_step)
        for step in range(first_step, 7):
            loop.run(step, 1)
        loop.step.reset()
        return loop.run(7, 1)["loss"]

    assert loss_of(0) == pytest.approx(loss_of(7), abs=1e-7)


def test_other_rows_and_steps_drop_other_units_and_the_same_ones_the_same() -> None:
    dataset, where = real_digits(64), mirrored(2)
    loop = start(where, small_cnn(dataset, where, dropout=0.5), dataset, settings())
    pixels = tf.cast(dataset.train.images, tf.float32)
    batch = Batch({"images": pixels}, tf.constant(dataset.train.targets), tf.ones([64]))

    def loss(step: int, row: int) -> float:
        first_row = tf.constant(row, tf.int64)
        result = loop.step.gradients(batch, tf.constant(step, tf.int64), first_row, tf.constant(1.0))
        return float(result.sums["loss"])

    assert loss(0, 0) == loss(0, 0)
    assert len({loss(0, 0), loss(0, 64), loss(1, 0), loss(1, 64)}) == 4


def overflowing(dataset: Dataset, example: int) -> Dataset:
    """Returns the data set with one image so bright that float16 cannot hold what the network makes of it."""
    images = np.array(dataset.train.images[:], np.float32)
    images[example] = 1e30
    return with_bright_images(dataset, images)


def test_an_overflow_in_one_replica_skips_one_step_everywhere() -> None:
    dataset, where = overflowing(real_digits(640), 17), mirrored(2)
    model = small_cnn(dataset, where, policy="mixed_float16")
    loop = start(where, model, dataset, settings())
    means = loop.run(0, 10)
    step = loop.step
    assert step.loss_scale is not None
    assert int(step.loss_scale.skipped_steps.numpy()) == 1
    assert float(step.loss_scale.dynamic_scale.numpy()) == 2.0**14
    assert int(step.optimizer.iterations.numpy()) == 9
    assert float(step.totals.read()["examples"]) == 640 - 64
    assert np.isfinite(means["loss"])
    for variable in model.network.trainable_variables:
        copies = [copy.numpy() for copy in where.distribution.experimental_local_results(variable.value)]
        assert all(np.isfinite(copy).all() and np.array_equal(copy, copies[0]) for copy in copies)


def test_nan_stops_the_run_with_a_clear_error() -> None:
    dataset = real_digits(200)
    where = mirrored(2)
    with pytest.raises(
        UserError, match=r"diverged by step \d+ \(epoch \d\): the loss is (nan|inf).*optimizer.learning_rate="
    ):
        train(small_cnn(dataset, where), dataset, where, settings(epochs=20, optimizer=SgdSettings(learning_rate=1e30)))


def test_hopeless_float16_stops_the_run() -> None:
    digits, where = real_digits(64), one_device()
    images = np.full_like(digits.train.images, 1e30, dtype=np.float32)  # made for others, the network seems to fit
    dataset = with_bright_images(digits, images)
    with pytest.raises(UserError, match="float16 overflows however small the loss is scaled"):
        train(small_cnn(digits, where, policy="mixed_float16"), dataset, where, settings(epochs=60, batch_size=32))


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_time_that_training_waits_for_its_input_is_measured(replicas: int) -> None:
    """Of images that take 50 ms a batch to read, whatever the step takes."""
    dataset = real_digits(640)
    held = dataset.train.images

    def slowly(rows: np.ndarray) -> np.ndarray:
        time.sleep(0.05)
        return held[rows]

    slow = replace(dataset.train, features={"images": Streamed(slowly, np.arange(held.shape[0]), held.shape[1:])})
    where = one_device() if replicas == 1 else mirrored(replicas)
    shares = {}
    for name, data in {"slow": replace(dataset, train=slow), "held": dataset}.items():
        loop = start(where, small_cnn(data, where), data, settings(epochs=9, steps_per_call=8))
        loop.run(0, 8)  # traces
        began = time.perf_counter()
        loop.run(8, 24)
        shares[name] = loop.waited / (time.perf_counter() - began)
    assert 0 <= shares["held"] < shares["slow"] < 1
    assert shares["slow"] > 0.3


def test_who_waits_long_is_told() -> None:
    clock = Clock()
    clock.add(30.0, 10, 320, waited=2.9)
    assert clock.rates()["train/input_wait_fraction"] == pytest.approx(2.9 / 30)
    assert not clock.advice()
    clock.add(0.2, 1, 32, waited=0.2)
    assert "10% of the time" in clock.advice()
    assert "train/input_wait_fraction" not in Clock(1.0, 2, 3).rates()


class Branching(keras.Model):
    """A subclassed network with Python's control flow on tensors, which `tf.function` converts."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(num_classes)

    @tf.function
    def scaled(self, outputs: tf.Tensor) -> tf.Tensor:
        while tf.reduce_max(tf.abs(outputs)) > 1.0:
            outputs = outputs / 2.0
        return outputs if tf.reduce_mean(outputs) > 100.0 else outputs + 1.0

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        return self.scaled(self.dense(tf.reshape(inputs, [tf.shape(inputs)[0], 64])))


def branching(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    network = Branching(num_classes)
    network(tf.zeros((1, *input_shape)))
    return network


def test_a_network_may_branch_on_tensors() -> None:
    """The loop rewrites no Python; what a network's own `tf.function` rewrites stays as it is."""
    dataset, where = real_digits(64), mirrored(2)
    network = {"_target_": f"{__name__}.branching"}
    built = built_of(network, dataset, where)
    means = start(where, built, dataset, settings(batch_size=32, steps_per_call=20, epochs=10)).run(0, 20)
    assert 0 < means["loss"] < 2.4
    outputs = built.network(tf.cast(dataset.val.images, tf.float32)).numpy()
    assert outputs.max() <= 2.0
    expected = (outputs.argmax(axis=1) == dataset.val.targets).mean()
    assert Scorer(where, built).score(dataset.val, 200).metrics["accuracy"] == pytest.approx(expected)
