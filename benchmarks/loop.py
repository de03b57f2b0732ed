"""`python -m benchmarks.loop`: the training loop against the bare computation and Keras' `Model.fit`.

The same convnet of 34,826 parameters on 28×28 images, batch 128, one device. The bare computation is the same step,
in one function, on one batch that stays where it is: no input, no metrics, no loss reported. All ways take turns in one
process, five rounds; the figures are medians, and only their ratios mean anything on a shared machine.
"""

import statistics
import time
from collections.abc import Callable

import keras
import tensorflow as tf

from benchmarks.cases import step_of
from stages.load.synthetic import synthetic
from stages.model import model
from stages.normalize import normalize
from stages.results import Dataset, Model
from stages.settings.data import SyntheticSettings
from stages.settings.images import NormalizeSettings
from stages.settings.model import CnnSettings, ModelSettings, PrecisionSettings
from stages.settings.optimizer import AdamSettings, ScheduleSettings
from stages.settings.strategy import OneDeviceSettings
from stages.settings.train import TrainSettings
from stages.strategy import strategy
from stages.training.loop import Loop

BATCH, STEPS, CALLS, ROUNDS = 128, 16, 4, 5

WHERE = strategy(OneDeviceSettings(deterministic=False, device="/cpu:0"))


def fresh(dataset: Dataset) -> Model:
    precision = PrecisionSettings(policy="float32")
    return model(dataset, WHERE, ModelSettings(network=CnnSettings(), precision=precision, seed=1))


def bare(dataset: Dataset) -> Callable[[], None]:
    network = fresh(dataset).network
    with WHERE.distribution.scope():
        optimizer = keras.optimizers.Adam()
        optimizer.build(network.trainable_variables)
    images = tf.cast(dataset.train.images[:BATCH], tf.float32)
    labels = tf.constant(dataset.train.labels[:BATCH])
    variables = [variable.value for variable in network.trainable_variables]

    def steps() -> None:
        for _ in tf.range(STEPS * CALLS):
            with tf.GradientTape() as tape:
                outputs = network(images, training=True)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs))
            optimizer.apply(tape.gradient(loss, variables), network.trainable_variables)

    @tf.function
    def run() -> None:
        WHERE.distribution.run(steps)

    return run


def loop(dataset: Dataset, jit: bool = False) -> Callable[[], None]:
    with WHERE.distribution.scope():
        optimizer = keras.optimizers.Adam()
    settings = TrainSettings(
        epochs=10_000,
        batch_size=BATCH,
        steps_per_call=STEPS,
        optimizer=AdamSettings(),
        schedule=ScheduleSettings(),
        seed=1,
    )
    engine = Loop(WHERE, step_of(WHERE, fresh(dataset), optimizer, settings, jit), dataset, settings)
    done = 0

    def run() -> None:
        nonlocal done
        for _ in range(CALLS):
            engine.run(done, STEPS)
            done += STEPS

    return run


def fit(dataset: Dataset, steps_per_execution: int) -> Callable[[], None]:
    network = fresh(dataset).network
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with WHERE.distribution.scope():
        network.compile("adam", loss, metrics=["accuracy"], jit_compile=False, steps_per_execution=steps_per_execution)
    source = tf.data.Dataset.from_tensor_slices((dataset.train.images, dataset.train.labels))
    source = source.shuffle(8192).repeat().batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    batches = source.map(lambda images, labels: (tf.cast(images, tf.float32), labels))
    return lambda: network.fit(batches, steps_per_epoch=STEPS * CALLS, verbose=0)


def main() -> None:
    given = SyntheticSettings(examples=10_240, height=28, width=28, channels=1, split_seed=1)
    dataset = normalize(synthetic(given), NormalizeSettings())
    ways = {
        "bare computation": bare(dataset),
        "train=loop, with input and metrics": loop(dataset),
        "train=loop train.jit=on": loop(dataset, jit=True),
        "Model.fit": fit(dataset, 1),
        f"Model.fit, steps_per_execution={STEPS}": fit(dataset, STEPS),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for round_number in range(ROUNDS + 1):
        for name, run in ways.items():
            began = time.perf_counter()
            run()
            if round_number:  # the first one traces
                seconds[name].append((time.perf_counter() - began) / (STEPS * CALLS))
    base = statistics.median(seconds["bare computation"])
    print(f"{'way':38} ms/step (least to most)   speed against bare")
    for name, times in seconds.items():
        middle = statistics.median(times)
        spread = f"{middle * 1000:6.2f} ({min(times) * 1000:.2f} to {max(times) * 1000:.2f})"
        print(f"{name:38} {spread:26} {base / middle:.2f}")


if __name__ == "__main__":
    main()
