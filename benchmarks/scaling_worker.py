"""`python -m benchmarks.scaling_worker FILE [WIDTHS [BATCH [PACK_BYTES]]]`: a worker of the cluster in `TF_CONFIG`.

It times steps of dense layers of WIDTHS ("1024,1024"), and reductions. Each process computes on one core. Worker 0
writes seconds of a step, of a reduction of one number, and of one of the gradients' size.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.cases import Case, build, real_digits, step_of
from stages.distribution import cluster_strategies
from stages.distribution.collectives import sum_over_workers
from stages.optimization.optimizers import build_optimizer
from stages.results import Strategy
from stages.settings.model import MlpSettings
from stages.settings.optimizer import SgdSettings
from stages.settings.strategy import MultiWorkerSettings
from stages.settings.train import TrainSettings
from stages.strategy import strategy
from stages.training.loop import Loop

STEPS, CALLS = 8, 5
"""Steps of a call; calls, the first of which traces."""


def main() -> None:
    """Measures, and writes what was measured."""
    defaults = ["1024,1024", "256", str(cluster_strategies.PACK_BYTES)]
    path, widths, batch, pack_bytes = [*sys.argv[1:], *defaults[len(sys.argv) - 2 :]]
    cluster_strategies.PACK_BYTES = int(pack_bytes)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    # A host's thread that sends shares its one core with the one that computes; without hosts there is one thread.
    tf.config.threading.set_inter_op_parallelism_threads(2 if len(os.sched_getaffinity(0)) == 1 else 1)
    where = strategy(MultiWorkerSettings(deterministic=False))
    task = json.loads(os.environ["TF_CONFIG"])
    workers = len(task["cluster"]["worker"])
    measured = measure(where, workers, [int(width) for width in widths.split(",")], int(batch))
    if where.record.on_exit:
        where.record.on_exit()
    if task["task"]["index"] == 0:
        Path(path).write_text(json.dumps(measured))


def measure(where: Strategy, workers: int, widths: list[int], batch: int) -> dict[str, float]:
    """Returns the bytes of the gradients and the medians of seconds. batch: examples of each replica."""
    dataset = real_digits(batch * workers * STEPS)
    built = build(Case(network=MlpSettings(hidden=widths)), where, dataset)
    settings = TrainSettings(
        epochs=100, seed=1, steps_per_call=STEPS, batch_size=batch * workers, optimizer=SgdSettings()
    )
    with where.distribution.scope():
        optimizer = build_optimizer(settings.optimizer, 0.01, built.policy)
    loop = Loop(where, step_of(where, built, dataset, optimizer, settings), dataset, settings)
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
