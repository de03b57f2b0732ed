"""`python -m benchmarks.scaling_worker FILE`: a worker of the cluster in `TF_CONFIG` that times steps and reductions.

Each process computes on one core. Worker 0 writes seconds of a step, of a reduction of one number, and of one of the
gradients' size.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

import stages.strategy
from benchmarks.cases import Case, build, engine_of, real_digits
from stages.collectives import sum_over_workers
from stages.optimization.optimizers import build_optimizer
from stages.results import Strategy
from stages.settings.model import MlpSettings
from stages.settings.strategy import MultiWorkerSettings
from stages.settings.train import SgdSettings, TrainSettings

STEPS, CALLS = 8, 5
"""Steps of a call; calls, the first of which traces."""


def main() -> None:
    """Measures, and writes what was measured."""
    parser = argparse.ArgumentParser("python -m benchmarks.scaling_worker", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--widths", type=int, nargs="+", default=[1024, 1024], help="of the dense layers")
    parser.add_argument("--batch", type=int, default=256, help="examples of each replica")
    parser.add_argument("--at-once", action="store_true", help="sums all gradients at once, not in packs")
    options = parser.parse_args()
    if options.at_once:
        stages.strategy.PACK_BYTES = 0
    tf.config.threading.set_intra_op_parallelism_threads(1)
    # A host's thread that sends shares its one core with the one that computes; without hosts there is one thread.
    tf.config.threading.set_inter_op_parallelism_threads(2 if len(os.sched_getaffinity(0)) == 1 else 1)
    where = stages.strategy.strategy(MultiWorkerSettings(deterministic=False))
    task = json.loads(os.environ["TF_CONFIG"])
    workers = len(task["cluster"]["worker"])
    measured = measure(where, workers, options.widths, options.batch)
    if where.record.on_exit:
        where.record.on_exit()
    if task["task"]["index"] == 0:
        options.file.write_text(json.dumps(measured))


def measure(where: Strategy, workers: int, widths: list[int], batch: int) -> dict[str, float]:
    """Return the bytes of the gradients and the medians of seconds. batch: examples of each replica."""
    dataset = real_digits(batch * workers * STEPS)
    built = build(Case(network=MlpSettings(hidden=widths)), where, dataset)
    settings = TrainSettings(
        epochs=100, seed=1, steps_per_call=STEPS, batch_size=batch * workers, optimizer=SgdSettings()
    )
    with where.distribution.scope():
        optimizer = build_optimizer(settings.optimizer, 0.01)
    loop = engine_of(where, built, dataset, optimizer, settings)
    calls = iter(range(CALLS))
    call = _median(lambda: loop.run(next(calls) * STEPS, STEPS), CALLS)
    gradients = sum(int(np.prod(variable.shape)) for variable in built.network.trainable_variables) * 4
    one, many = np.zeros(1, np.float32), np.zeros(gradients // 4, np.float32)
    return {
        "bytes": gradients,
        "step": call / STEPS,
        "one": _median(lambda: sum_over_workers(where, one), 40),
        "many": _median(lambda: sum_over_workers(where, many), 40),
    }


def _median(function: Callable[[], object], times: int) -> float:
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


if __name__ == "__main__":
    main()
