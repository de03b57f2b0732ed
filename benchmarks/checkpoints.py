"""`python -m benchmarks.checkpoints`: time that checkpoints take from training.

The convnet of `experiment=mnist_cnn` on images of MNIST's size, batch 64, Adam, one device. Segments of training
with a checkpoint at their beginning, which is read while training waits and written while it goes on, take turns with
segments without; the cost of one is the median difference. Its share is that at the default interval.
"""

import statistics
import tempfile
import time
from pathlib import Path

import keras

from benchmarks.cases import step_of
from benchmarks.loop import WHERE, fresh
from stages.load.synthetic import synthetic
from stages.normalize import normalize
from stages.settings.data import SyntheticSettings
from stages.settings.images import NormalizeSettings
from stages.settings.optimizer import AdamSettings, ScheduleSettings
from stages.settings.train import TrainSettings
from stages.training.checkpoints import Checkpoints
from stages.training.loop import Loop
from stages.training.progress import Progress
from stages.training.state import State

STEPS, ROUNDS = 60, 15


def main() -> None:
    """Prints the cost of a checkpoint in milliseconds, and as a share of the default interval."""
    data = SyntheticSettings(examples=7000, height=28, width=28, channels=1, split_seed=1)
    dataset = normalize(synthetic(data), NormalizeSettings())
    settings = TrainSettings(
        epochs=10_000, batch_size=64, steps_per_call=10, optimizer=AdamSettings(), schedule=ScheduleSettings(), seed=1
    )
    model = fresh(dataset)
    with WHERE.distribution.scope():
        optimizer = keras.optimizers.Adam()
    model.network.compile(optimizer)
    step = step_of(WHERE, model, optimizer, settings)
    state, engine, progress = State(WHERE, model, dataset, settings, (), step), None, Progress()
    engine = Loop(WHERE, step, dataset, settings)
    times: dict[bool, list[float]] = {True: [], False: []}
    waits = []
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder), settings)
        for index in range(2 * ROUNDS + 2):
            with_one = index % 2 == 0
            began = time.perf_counter()
            if with_one:
                checkpoints.save(state.read(progress))
                waits.append(time.perf_counter() - began)
            for _ in range(STEPS // 10):
                engine.run(progress.step, 10)
                progress.step += 10
            checkpoints.wait()
            times[with_one].append(time.perf_counter() - began)
        size = max(path.stat().st_size for path in Path(folder).iterdir())
    plain, saved = (statistics.median(times[one][1:]) for one in (False, True))
    cost, wait = saved - plain, statistics.median(waits[1:])
    print(
        f"checkpoint of {size / 1e6:.1f} MB: training waits {wait * 1000:.1f} ms; it costs {cost * 1000:.1f} ms in all"
    )
    share = cost / settings.checkpoint_every_seconds
    print(f"every {settings.checkpoint_every_seconds:g} s: {share:.2%} of the training time")


if __name__ == "__main__":
    main()
