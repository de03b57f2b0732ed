"""The loop's laws: two replicas equal one, weights are exact, overflow and NaN are seen."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from stages.batches import training_input
from stages.errors import UserError
from stages.loop import Loop
from stages.optimizers import build_optimizer
from stages.results import Dataset, Model, Split, Strategy
from stages.settings.train import OptimizerSettings, SgdSettings
from stages.train import train
from tests.stages.experiments import adam, flat, mirrored, one_device, real_digits, settings, small_cnn

STEPS = 50


def after_steps(
    where: Strategy,
    dataset: Dataset,
    optimizer: OptimizerSettings,
    batch_size: int,
    steps: int = STEPS,
    dropout: float = 0.0,
) -> tuple[Model, dict[str, float]]:
    """Returns the model and the mean loss and accuracy after `steps` steps."""
    model = small_cnn(dataset, where, dropout=dropout)
    with where.distribution.scope():
        built = build_optimizer(optimizer, optimizer.learning_rate)
    loop = Loop(where, model, built, batch_size, seed=1)
    source = training_input(dataset, batch_size, 1, epochs=100)
    batches = iter(where.distribution.distribute_datasets_from_function(source))
    return model, loop.run(batches, 0, steps)


@pytest.mark.parametrize("optimizer", [SgdSettings(), adam()], ids=["sgd", "adam"])
@pytest.mark.parametrize(
    ("examples", "batch_size"),
    [(896, 64), (900, 64), (897, 64), (900, 63)],
    ids=["even", "last batch of 4", "last batch of 1: an empty replica", "batch of 63: shares of 31 and 32"],
)
def test_two_replicas_equal_one_device(optimizer: OptimizerSettings, examples: int, batch_size: int) -> None:
    dataset = real_digits(examples)
    one, one_means = after_steps(one_device(), dataset, optimizer, batch_size)
    two, two_means = after_steps(mirrored(2), dataset, optimizer, batch_size)
    start = flat(small_cnn(dataset, one_device()).network)
    assert np.abs(flat(one.network) - start).max() > 0.01  # it has learnt something to be equal in
    assert np.abs(flat(one.network) - flat(two.network)).max() <= 1e-5
    assert one_means["loss"] == pytest.approx(two_means["loss"], abs=1e-5)
    assert one_means["accuracy"] == pytest.approx(two_means["accuracy"], abs=2 / (STEPS * batch_size))


def test_three_replicas_equal_one_device_where_no_batch_divides() -> None:
    """The last batch has two examples, so that one replica has none and fills up with the example of another."""
    dataset = real_digits(194)
    one, _ = after_steps(one_device(), dataset, SgdSettings(), 64, steps=20)
    three, _ = after_steps(mirrored(3), dataset, SgdSettings(), 64, steps=20)
    assert np.abs(flat(one.network) - flat(three.network)).max() <= 1e-5


def test_a_step_is_that_of_plain_gradient_descent() -> None:
    """One step on a batch of 5 over 2 replicas equals NumPy's own arithmetic on Keras' gradient of the mean loss."""
    dataset = real_digits(5)
    where = mirrored(2)
    model = small_cnn(dataset, where)
    before = [weight.copy() for weight in model.network.get_weights()]
    variables = model.network.trainable_variables
    with tf.GradientTape() as tape:
        outputs = model.network(tf.cast(dataset.train.images, tf.float32))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(dataset.train.labels, outputs)
    gradients = tape.gradient(loss, [variable.value for variable in variables])
    with where.distribution.scope():
        optimizer = build_optimizer(SgdSettings(learning_rate=0.1, momentum=0.0), 0.1)
    loop = Loop(where, model, optimizer, 64, seed=1)
    source = training_input(dataset, 5, 1, epochs=1)
    means = loop.run(iter(where.distribution.distribute_datasets_from_function(source)), 0, 1)
    for old, gradient, new in zip(before, gradients, model.network.get_weights(), strict=True):
        np.testing.assert_allclose(new, old - 0.1 * gradient.numpy(), atol=1e-6)
    assert means["loss"] == pytest.approx(float(loss), abs=1e-6)


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_loss_and_accuracy_equal_numpy_over_the_same_predictions(replicas: int) -> None:
    """With a learning rate of nearly nothing the model stays the same, so an epoch's means are those of one pass."""
    dataset = real_digits(133)
    where = one_device() if replicas == 1 else mirrored(replicas)
    model, means = after_steps(where, dataset, SgdSettings(learning_rate=1e-12), 32, steps=5)
    outputs = model.network(tf.cast(dataset.train.images, tf.float32)).numpy().astype(np.float64)
    log_sum = np.log(np.exp(outputs).sum(axis=1))
    losses = log_sum - outputs[np.arange(133), dataset.train.labels]
    assert means["loss"] == pytest.approx(losses.mean(), abs=1e-6)
    assert means["accuracy"] == pytest.approx((outputs.argmax(axis=1) == dataset.train.labels).mean(), abs=1e-12)


def test_a_weight_penalty_counts_once_whatever_the_replicas() -> None:
    dataset = real_digits(100)

    def penalised(where: Strategy) -> np.ndarray:
        keras.utils.set_random_seed(1)
        with where.distribution.scope():
            network = keras.Sequential(
                [
                    keras.layers.Input((8, 8, 1)),
                    keras.layers.Rescaling(1 / 16),
                    keras.layers.Flatten(),
                    keras.layers.Dense(10, kernel_regularizer=keras.regularizers.L2(0.1)),
                ]
            )
            optimizer = build_optimizer(SgdSettings(learning_rate=0.1), 0.1)
        loop = Loop(where, Model(network, "logits", "float32"), optimizer, 33, seed=1)
        source = training_input(dataset, 33, 1, epochs=5)
        loop.run(iter(where.distribution.distribute_datasets_from_function(source)), 0, 15)
        return flat(network)

    one, two = penalised(one_device()), penalised(mirrored(2))
    np.testing.assert_allclose(one, two, atol=1e-6)

    network = keras.Sequential([keras.layers.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
    assert np.abs(one).mean() < np.abs(flat(network)).mean()  # the penalty has shrunk the weights


@pytest.mark.parametrize("replicas", [1, 2])
def test_constraints_of_layers_hold(replicas: int) -> None:
    where = one_device() if replicas == 1 else mirrored(replicas)
    dataset = real_digits(64)
    with where.distribution.scope():
        bounded = keras.layers.Dense(10, kernel_constraint=keras.constraints.MaxNorm(0.1))
        network = keras.Sequential([keras.layers.Input((8, 8, 1)), keras.layers.Flatten(), bounded])
        optimizer = build_optimizer(SgdSettings(), 0.01)
    loop = Loop(where, Model(network, "logits", "float32"), optimizer, 32, seed=1)
    source = training_input(dataset, 32, 1, epochs=5)
    loop.run(iter(where.distribution.distribute_datasets_from_function(source)), 0, 10)
    for copy in where.distribution.experimental_local_results(bounded.kernel.value):
        assert np.linalg.norm(copy.numpy(), axis=0).max() <= 0.1 + 1e-6


def test_k_steps_in_one_call_equal_single_steps() -> None:
    dataset = real_digits(200)
    whole, _ = after_steps(one_device(), dataset, adam(), 64, steps=12, dropout=0.3)
    where = one_device()
    model = small_cnn(dataset, where, dropout=0.3)
    with where.distribution.scope():
        optimizer = build_optimizer(adam(), 0.001)
    loop = Loop(where, model, optimizer, 64, seed=1)
    batches = iter(where.distribution.distribute_datasets_from_function(training_input(dataset, 64, 1, epochs=100)))
    for step in range(12):
        loop.run(batches, step, 1)
    np.testing.assert_array_equal(flat(whole.network), flat(model.network))


@pytest.mark.parametrize("replicas", [1, 2])
def test_dropout_is_a_function_of_seed_step_and_replica(replicas: int) -> None:
    """A loop that starts at step 7 drops what the one from the start drops at step 7."""
    dataset = real_digits(200)
    where = one_device() if replicas == 1 else mirrored(replicas)

    def loss_of(first_step: int) -> float:
        model = small_cnn(dataset, where, dropout=0.5)
        with where.distribution.scope():
            optimizer = build_optimizer(SgdSettings(learning_rate=1e-12), 1e-12)
        loop = Loop(where, model, optimizer, 64, seed=1)
        source = training_input(dataset, 64, 1, epochs=10, first_step=first_step)
        batches = iter(where.distribution.distribute_datasets_from_function(source))
        for step in range(first_step, 7):
            loop.run(batches, step, 1)
        loop.totals.reset()
        return loop.run(batches, 7, 1)["loss"]

    assert loss_of(0) == pytest.approx(loss_of(7), abs=1e-7)


def test_replicas_drop_different_units() -> None:
    dropped = []
    where = mirrored(2)
    dataset = real_digits(64)
    model = small_cnn(dataset, where, dropout=0.5)
    with where.distribution.scope():
        optimizer = build_optimizer(SgdSettings(), 0.01)
    loop = Loop(where, model, optimizer, 64, seed=1)

    @tf.function
    def masks(step: tf.Tensor) -> tf.Tensor:
        def mask() -> tf.Tensor:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            loop._seed_dropout(step, replica)
            layer = next(layer for layer in model.network._flatten_layers() if isinstance(layer, keras.layers.Dropout))
            return layer(tf.ones([1, 64]), training=True)

        return where.distribution.run(mask)

    for step in (0, 0, 1):
        dropped.append(
            [part.numpy() for part in where.distribution.experimental_local_results(masks(tf.constant(step, tf.int64)))]
        )
    assert np.array_equal(dropped[0][0], dropped[1][0])
    assert not np.array_equal(dropped[0][0], dropped[0][1])
    assert not np.array_equal(dropped[0][0], dropped[2][0])


def overflowing(dataset: Dataset, example: int) -> Dataset:
    """Returns the data set with one picture so bright that float16 cannot hold what the network makes of it."""
    images = dataset.train.images.astype(np.float32)
    images[example] = 1e30
    return replace(dataset, train=Split(images, dataset.train.labels))


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_overflow_in_one_replica_skips_one_step_everywhere(replicas: int) -> None:
    dataset = overflowing(real_digits(640), 17)
    where = one_device() if replicas == 1 else mirrored(replicas)
    model = small_cnn(dataset, where, policy="mixed_float16")
    with where.distribution.scope():
        optimizer = build_optimizer(SgdSettings(), 0.01)
    loop = Loop(where, model, optimizer, 64, seed=1)
    batches = iter(where.distribution.distribute_datasets_from_function(training_input(dataset, 64, 1, epochs=1)))
    means = loop.run(batches, 0, 10)
    assert loop.loss_scale is not None
    assert int(loop.loss_scale.skipped_steps.numpy()) == 1
    assert float(loop.loss_scale.value.numpy()) == 2.0**14
    assert int(optimizer.iterations.numpy()) == 9
    assert float(loop.totals.read()["examples"]) == 640 - 64
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
    images = np.full_like(real_digits(64).train.images, 1.0, dtype=np.float32) * 1e30
    dataset = real_digits(64)
    dataset = replace(dataset, train=Split(images, dataset.train.labels))
    where = one_device()
    with pytest.raises(UserError, match="float16 overflows however small the loss is scaled"):
        train(small_cnn(dataset, where, policy="mixed_float16"), dataset, where, settings(epochs=60, batch_size=32))
