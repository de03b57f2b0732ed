"""`python -m benchmarks.strategies [FILE]`: difference of every strategy from one device, over precisions and features.

Each cell is a training of 50 steps on real digits: the largest difference of any weight. In FILE, such as
docs/how-it-works/exactness.md, the table replaces what is between its marks. Takes about four minutes on two cores.
"""

import sys
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from benchmarks.cases import CASES, STEPS, Case, build, flat, real_digits, run
from benchmarks.clusters import run_chief, run_workers
from benchmarks.page import markdown, put
from stages.errors import UserError
from stages.settings.strategy import (
    CentralStorageSettings,
    DefaultSettings,
    MirroredSettings,
    ModelParallelSettings,
    OneDeviceSettings,
    StrategySettings,
)
from stages.strategy import strategy

REFUSED = {("bfloat16", "multi_worker ×2"), ("XLA (mlp)", "model_parallel ×2")}

IN_PROCESS = {
    "default": DefaultSettings(deterministic=True),
    "mirrored ×2": MirroredSettings(deterministic=True),
    "mirrored ×4": MirroredSettings(deterministic=True, cpu_replicas=4),
    "central_storage ×2": CentralStorageSettings(deterministic=True),
    "model_parallel ×2": ModelParallelSettings(deterministic=True),
}
"""The strategies that one process can hold."""


def table() -> str:
    """Run everything and return the table as Markdown."""
    strategy(MirroredSettings(deterministic=True, cpu_replicas=4))  # makes the logical devices
    device = OneDeviceSettings(deterministic=True, device="/cpu:0")
    one = {name: run(case, strategy(device)) for name, case in CASES.items()}
    with tempfile.TemporaryDirectory() as folder:
        names = [name for name in CASES if (name, "multi_worker ×2") not in REFUSED]
        codes, printed = run_workers(2, "benchmarks.worker", f"{folder}/workers.npz", str(STEPS), *names)
        assert codes == [0, 0], printed
        code, printed = run_chief("benchmarks.worker", f"{folder}/chief.npz", str(STEPS), *CASES)
        assert code == 0, printed
        workers, chief = dict(np.load(f"{folder}/workers.npz")), dict(np.load(f"{folder}/chief.npz"))
    rows = []
    for name, case in CASES.items():
        weights, means = one[name]
        start = flat(build(case, strategy(device), real_digits(64)).network)
        cells = [f"{np.abs(weights - start).max():.2f}"]
        for where, settings in IN_PROCESS.items():
            cells.append(_difference(None if (name, where) in REFUSED else _trained(case, settings), weights))
        cells.append(_difference(workers.get(f"{name}/weights"), weights))
        rows.append([name, *cells, f"{chief[f'{name}/loss']:.2f} ({means['loss']:.2f})"])
    columns = ["50 steps of", "moved by", *IN_PROCESS, "multi_worker ×2", "parameter_server 2+2"]
    versions = (
        f"TensorFlow {tf.__version__}, Keras {keras.__version__}, CPUs, {STEPS} steps of 64 examples, deterministic"
    )
    return f"{markdown(columns, rows)}\n\n{versions}"


def _trained(case: Case, settings: StrategySettings) -> np.ndarray | None:
    """Return all weights of the case, trained under a strategy, as one vector; None where the two are refused."""
    try:
        return run(case, strategy(settings))[0]
    except UserError:
        return None


def _difference(weights: np.ndarray | None, expected: np.ndarray) -> str:
    return "refused" if weights is None else f"{np.abs(weights - expected).max():.0e}".replace("0e+00", "0")


def main() -> None:
    """Print the table, and put it into the page that the command line names."""
    began = time.perf_counter()
    found = table()
    print(found)
    print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr)
    if sys.argv[1:]:
        put(Path(sys.argv[1]), "strategies", found)


if __name__ == "__main__":
    main()
