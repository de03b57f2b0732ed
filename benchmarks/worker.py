"""`python -m benchmarks.worker FILE CASE…`: a worker of `TF_CONFIG`; the first writes what came of the cases."""

import json
import os
import sys

import numpy as np

from benchmarks.cases import CASES, run
from stages.settings.strategy import MultiWorkerSettings
from stages.strategy import strategy


def main() -> None:
    """Runs the cases under MultiWorkerMirroredStrategy, each worker in its own process."""
    path, *names = sys.argv[1:]
    where = strategy(MultiWorkerSettings(deterministic=True))
    results = {}
    for name in names:
        weights, means = run(CASES[name], where)
        results[f"{name}/weights"] = weights
        for key, value in means.items():
            results[f"{name}/{key}"] = np.float64(value)
    where.leave()
    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
        np.savez(path, **results)


if __name__ == "__main__":
    main()
