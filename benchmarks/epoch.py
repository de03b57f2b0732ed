"""An epoch of tf_flowers at 96 px through the cache, against the same training steps on one constant batch.

    python -m benchmarks.epoch [--dir <where TFDS keeps tf_flowers>]

Both take turns in one process; figures are images per second, medians, without the first (tracing) calls.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from pipeline.system import environment

environment.prepare()

import tensorflow as tf  # noqa: E402

from benchmarks.cases import step_of  # noqa: E402
from stages.load.tfds import tfds  # noqa: E402
from stages.model import model  # noqa: E402
from stages.normalize import normalize  # noqa: E402
from stages.optimization.optimizers import build_optimizer  # noqa: E402
from stages.optimization.train_step import Step  # noqa: E402
from stages.results import Dataset  # noqa: E402
from stages.settings.data import TfdsSettings  # noqa: E402
from stages.settings.images import NormalizeSettings  # noqa: E402
from stages.settings.model import CnnPhotoSettings, ModelSettings, PrecisionSettings  # noqa: E402
from stages.settings.optimizer import AdamSettings, ScheduleSettings  # noqa: E402
from stages.settings.strategy import OneDeviceSettings  # noqa: E402
from stages.settings.train import TrainSettings  # noqa: E402
from stages.strategy import strategy  # noqa: E402
from stages.training.loop import Loop  # noqa: E402

BATCH, ROUNDS, STEPS = 32, 7, 20

WHERE = strategy(OneDeviceSettings(deterministic=False, device="/cpu:0"))


def _step(dataset: Dataset, settings: TrainSettings) -> Step:
    chosen = ModelSettings(network=CnnPhotoSettings(), precision=PrecisionSettings(policy="float32"), seed=1)
    built = model(dataset, WHERE, chosen)
    with WHERE.distribution.scope():
        optimizer = build_optimizer(settings.optimizer, settings.optimizer.learning_rate)
    return step_of(WHERE, built, optimizer, settings)


def main() -> None:
    """Prints both rates and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", default=os.environ.get("TFDS_DATA_DIR", "../shared/data/tfds"))
    folder = str(Path(parser.parse_args().dir).resolve())
    settings = TrainSettings(
        epochs=100,
        batch_size=BATCH,
        optimizer=AdamSettings(),
        schedule=ScheduleSettings(),
        seed=1,
        steps_per_call=STEPS,
    )
    with tempfile.TemporaryDirectory() as cache:
        given = TfdsSettings(name="tf_flowers", dir=folder, size=96, split_seed=1)
        dataset = normalize(tfds(given, cache=Path(cache)), NormalizeSettings())
    loop, step = Loop(WHERE, _step(dataset, settings), dataset, settings), _step(dataset, settings)
    images = tf.cast(dataset.train.images[:BATCH], tf.float32)
    constant = (images, tf.constant(dataset.train.labels[:BATCH]), tf.ones([BATCH]))

    @tf.function
    def on_constant() -> None:
        for number in tf.range(STEPS, dtype=tf.int64):
            WHERE.distribution.run(step, args=(constant, number))

    done, rates = 0, {"cache": [0.0], "constant batch": [0.0]}
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        loop.run(done, STEPS)
        rates["cache"].append(STEPS * BATCH / (time.perf_counter() - began))
        done += STEPS
        began = time.perf_counter()
        on_constant()
        step.means()
        rates["constant batch"].append(STEPS * BATCH / (time.perf_counter() - began))
    medians = {way: statistics.median(rate[2:]) for way, rate in rates.items()}
    ratio = statistics.median(a / b for a, b in zip(rates["cache"][2:], rates["constant batch"][2:], strict=True))
    for way, rate in medians.items():
        print(f"{way:15} {rate:,.0f} images/s")
    print(f"{'ratio':15} {ratio:.3f}")


if __name__ == "__main__":
    main()
