"""The loop's laws: weights are exact, overflow and NaN are seen, dropout repeats itself.

That replicas equal one device, and skip one step together, stands in tests/stages/distribution/test_strategies.py; that
both are what NumPy computes in tests/stages/networks/test_float64.py; that k steps in a call are single ones in
test_training.py.
"""

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from stages.augmentations.transforms import Example
from stages.checkpoints.progress import Clock
from stages.data.batches import share_of_replica
from stages.data.columns import Streamed
from stages.errors import UserError
from stages.evaluation.eval_step import Scorer
from stages.optimization.xla import for_usual_rows, rows_for_xla
from stages.results import Dataset, Model, Strategy
from stages.settings.model import MlpSettings
from stages.settings.train import SgdSettings
from stages.train import train
from tests.stages.experiments import (
    adam,
    after_steps,
    assert_replicas_equal_one_device,
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


def test_constraints_of_layers_hold_in_every_replica() -> None:
    dataset, where = real_digits(64), mirrored(2)
    with where.distribution.scope():
        bounded = keras.layers.Dense(10, kernel_constraint=keras.constraints.MaxNorm(0.1))
        network = keras.Sequential([keras.layers.Input((8, 8, 1)), keras.layers.Flatten(), bounded])
    model = Model(network, dataset.task, "float32")
    start(where, model, dataset, settings(batch_size=32, epochs=5)).run(0, 10)
    for copy in where.distribution.experimental_local_results(bounded.kernel.value):
        assert np.linalg.norm(copy.numpy(), axis=0).max() <= 0.1 + 1e-6


def test_batches_whose_examples_all_weigh_nothing_train_nothing() -> None:
    dataset = real_digits(64)
    dataset = replace(dataset, train=replace(dataset.train, weights=np.eye(64)[5]))
    assert_replicas_equal_one_device(dataset, settings(batch_size=8, optimizer=SgdSettings()), 12, small_cnn)


def test_parts_of_a_batch_drop_what_the_whole_one_does() -> None:
    dataset = real_digits(200)  # batches of 64, the last of 8
    build = partial(small_cnn, dropout=0.5)
    whole, parts = (
        after_steps(one_device(), dataset, settings(optimizer=adam(accumulation=count)), 12, build=build)[0]
        for count in (1, 3)
    )
    np.testing.assert_allclose(flat(whole.network), flat(parts.network), atol=1e-6)


def test_other_rows_and_steps_drop_other_units_and_the_same_ones_the_same() -> None:
    dataset, where = real_digits(64), mirrored(2)
    loop = start(where, small_cnn(dataset, where, dropout=0.5), dataset, settings())
    pixels = tf.cast(dataset.train.images, tf.float32)
    batch = Example({"images": pixels}, tf.constant(dataset.train.targets), tf.ones([64]))

    def loss(step: int, row: int) -> float:
        first_row = tf.constant(row, tf.int64)
        result = loop.step.gradients(batch, tf.constant(step, tf.int64), first_row, tf.constant(1.0))
        return float(result.sums["loss"])

    assert loss(0, 0) == loss(0, 0)
    assert len({loss(0, 0), loss(0, 64), loss(1, 0), loss(1, 64)}) == 4


def overflowing(dataset: Dataset, example: int) -> Dataset:
    """Return the data set with one image so bright that float16 cannot hold what the network makes of it."""
    images = np.array(dataset.train.images[:], np.float32)
    images[example] = 1e30
    return with_bright_images(dataset, images)


def test_nan_stops_the_run_with_a_clear_error() -> None:
    dataset = real_digits(200)
    where = mirrored(2)
    said = r"diverged by step \d+ \(epoch \d\): the loss is (nan|inf).*optimizer.learning_rate="
    with pytest.raises(UserError, match=said):
        train(small_cnn(dataset, where), dataset, where, settings(epochs=20, optimizer=SgdSettings(learning_rate=1e30)))


def test_with_float16_the_scale_of_weights_changes_nothing_and_the_finite_loss_of_a_skipped_step_counts() -> None:
    digits, where = real_digits(64), mirrored(2)
    given, results = settings(batch_size=16, optimizer=SgdSettings(ema_momentum=0.9)), []
    for weight in (1.0, 2.0**17):
        dataset = replace(digits, train=replace(digits.train, weights=weight * (1 + np.arange(64.0) % 3)))
        model = built_of(MlpSettings(hidden=[4]), dataset, where, "mixed_float16")
        loop = start(where, model, dataset, given)
        scale = loop.state.loss_scale
        assert scale is not None
        before = flat(model.network)
        scale.value.assign(2.0**100)
        skipped = loop.run(0, 4)["loss"]
        np.testing.assert_array_equal(flat(model.network), before)
        for variable, average in zip(model.network.trainable_variables, loop.state.ema.values, strict=True):
            np.testing.assert_array_equal(variable, average)
        scale.value.assign(2.0**10)
        assert skipped > 1
        results.append((skipped, loop.run(4, 4)["loss"], int(scale.skipped_steps.numpy()), *flat(model.network)))
    assert (results[0][2], results[0]) == (4, results[1])


def test_means_of_no_finite_loss_are_none() -> None:
    digits, where = real_digits(64), one_device()
    dataset = with_bright_images(digits, np.full_like(digits.train.images, 1e30, dtype=np.float32))
    means = start(where, small_cnn(digits, where, policy="mixed_float16"), dataset, settings()).run(0, 1)
    assert np.isnan([means["loss"], means["accuracy"]]).all()


def test_hopeless_float16_stops_the_run() -> None:
    digits, where = real_digits(64), one_device()
    images = np.full_like(digits.train.images, 1e30, dtype=np.float32)  # made for others, the network seems to fit
    dataset = with_bright_images(digits, images)
    with pytest.raises(UserError, match="float16 overflows even at the smallest loss scale"):
        train(small_cnn(digits, where, policy="mixed_float16"), dataset, where, settings(epochs=60, batch_size=32))


def test_the_time_that_training_waits_for_its_input_is_measured() -> None:
    """Of images that take 50 ms a batch to read, whatever the step takes."""
    dataset = real_digits(640)
    held = dataset.train.images

    def slowly(rows: np.ndarray) -> np.ndarray:
        time.sleep(0.05)
        return held[rows]

    slow = replace(dataset.train, features={"images": Streamed(slowly, held.shape, held.dtype)})
    where = mirrored(2)
    shares = {}
    for name, data in {"slow": replace(dataset, train=slow), "held": dataset}.items():
        loop = start(where, small_cnn(data, where), data, settings(epochs=9, steps_per_call=8))
        loop.run(0, 8)  # traces
        began = time.perf_counter()
        loop.run(8, 24)
        assert loop.waited is not None
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


def compared_in_loops(graph: tf.Graph) -> list[tf.DType]:
    """Return the dtypes that the conditions of a traced function's loops compare."""
    definition = graph.as_graph_def()
    functions = {function.signature.name: function.node_def for function in definition.library.function}
    nodes = [*definition.node, *itertools.chain(*functions.values())]
    loops = [node.attr["cond"].func.name for node in nodes if node.op in ("While", "StatelessWhile")]
    return [tf.DType(node.attr["T"].type) for name in loops for node in functions[name] if node.op == "Less"]


@pytest.mark.parametrize("where", [one_device, mirrored], ids=["one device", "mirrored"])
def test_loops_count_their_steps_in_int32(where: Callable[[], Strategy]) -> None:
    """On a GPU an int64 counter would be copied to the host at each step, for the loop's condition."""
    place, dataset = where(), real_digits(64)
    model = built_of(MlpSettings(hidden=[4]), dataset, place)
    loop = start(place, model, dataset, settings(batch_size=16))
    scorer: Any = Scorer(place, model)
    four = tf.constant(4)
    traced = [loop._compiled.get_concrete_function(loop._batches, tf.constant(0, tf.int64), four)]
    for compiled in (scorer._compiled, scorer._predicting):
        traced.append(compiled.get_concrete_function(scorer._input(dataset.val, 64), four))
    loop.run(0, 4)  # with arguments of the same dtypes, so it is not traced again
    scorer.score(dataset.val, 64)
    assert [compared_in_loops(one.graph) for one in traced] == [[tf.int32]] * 3
    assert loop._compiled.experimental_get_tracing_count() == 1
    assert scorer._compiled.experimental_get_tracing_count() == 1


def recurrent(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    inputs = keras.Input(input_shape)
    outputs = keras.layers.LSTM(8)(keras.layers.Reshape(input_shape[:2])(inputs))
    return keras.Model(inputs, keras.layers.Dense(num_classes)(keras.layers.BatchNormalization()(outputs)))


def normalized(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    layers = [keras.layers.Flatten(), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    return keras.Sequential([keras.Input(input_shape), *layers, keras.layers.Dense(num_classes)])


@pytest.mark.parametrize(
    ("where", "network", "parts", "examples", "usual"),
    [
        (one_device, "recurrent", 1, 39, 16), (one_device, "normalized", 3, 39, 5), (mirrored, "normalized", 3, 39, 2),
    ],
)  # fmt: skip
def test_xla_compiles_parts_of_usual_sizes_and_a_smaller_last_batch_gives_the_same(
    where: Callable[[], Strategy], network: str, parts: int, examples: int, usual: int
) -> None:
    """Batches of 16, the last one of 7 examples: padding it would change the statistics of BatchNorm."""
    dataset, place = real_digits(examples), where()
    optimizer = SgdSettings(accumulation=parts, learning_rate=0.1, ema_momentum=0.5)
    given = settings(batch_size=16, epochs=9, optimizer=optimizer)
    weights, rows = [], []
    for jit in (True, False):
        model = built_of({"_target_": f"{__name__}.{network}"}, dataset, place)
        loop = start(place, model, dataset, given, jit)
        loop.run(0, 6)
        weights.append(np.concatenate([flat(model.network), *(np.ravel(one) for one in loop.state.ema.values)]))
        gradients: Any = loop.step.gradients
        rows.append(gradients.xla_rows)
    np.testing.assert_allclose(weights[0], weights[1], rtol=0, atol=2e-6)
    assert rows == [usual, None]


def test_xla_is_left_out_for_fewer_rows_than_usual() -> None:
    chosen = for_usual_rows(lambda batch: tf.constant("compiled"), lambda batch: tf.constant("plain"), 16)
    for count, expected in ((17, b"compiled"), (16, b"compiled"), (15, b"plain")):
        batch = Example({}, tf.zeros([count], tf.int32), tf.ones([count]))
        assert chosen(batch).numpy() == expected


def compiled_by_xla(graph: tf.Graph) -> set[str]:
    """Return the types of the operations in the functions that XLA compiles."""
    functions = {function.signature.name: function for function in graph.as_graph_def().library.function}
    found: set[str] = set()
    pending = [function for function in functions.values() if function.attr["_XlaMustCompile"].b]
    seen = {function.signature.name for function in pending}
    while pending:
        for node in pending.pop().node_def:
            found.add(node.op)
            called = {value.func.name for value in node.attr.values() if value.func.name} - seen
            seen |= called
            pending += [functions[name] for name in called]
    return found


@pytest.mark.parametrize(
    ("where", "policy", "parts", "whole"),
    [
        (one_device, "float32", 1, True), (one_device, "float32", 2, False), (one_device, "mixed_float16", 1, False),
        (mirrored, "float32", 1, False),
    ],
)  # fmt: skip
def test_xla_compiles_the_whole_step_of_one_replica(
    where: Callable[[], Strategy], policy: str, parts: int, whole: bool
) -> None:
    """Elsewhere it compiles the gradients: between replicas, in parts, or with a loss scale, which is on the host."""
    dataset, place = real_digits(64), where()
    model = built_of(MlpSettings(hidden=[4]), dataset, place, policy)
    loop = start(place, model, dataset, settings(batch_size=16, optimizer=adam(accumulation=parts)), jit=True)
    traced = loop._compiled.get_concrete_function(loop._batches, tf.constant(0, tf.int64), tf.constant(4))
    operations = compiled_by_xla(traced.graph)
    assert "MatMul" in operations
    assert ("ResourceApplyAdam" in operations) == whole


@pytest.mark.parametrize(
    ("batch", "examples", "replicas", "parts", "expected"),
    [
        (64, 640, 1, 1, 0), (64, 641, 1, 1, 64), (64, 40, 2, 3, 0), (63, 100, 2, 1, 31), (63, 100, 2, 4, 7),
        (3, 10, 4, 1, 3), (5, 11, 2, 4, 2),
    ],
)  # fmt: skip
def test_usual_parts_of_batches_are_never_smaller(
    batch: int, examples: int, replicas: int, parts: int, expected: int
) -> None:
    given = settings(batch_size=batch, optimizer=SgdSettings(accumulation=parts))
    assert rows_for_xla(given, examples, replicas) == expected
    count = tf.constant(min(batch, examples), tf.int64)
    sizes = set()
    for replica in range(replicas):
        first, end, _ = share_of_replica(count, replica, replicas)
        for part in range(parts):
            begin, until, _ = share_of_replica(end - first, part, parts)
            sizes.add(int(until - begin))
    assert not expected or min(sizes) == expected
