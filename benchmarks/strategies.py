"""`python -m benchmarks.strategies [FILE]`: difference of every strategy from one device, over precisions and features.

Each cell is a training of 50 steps on real digits: the largest difference of any weight. In FILE, such as
docs/strategies.md, the table replaces what is between its two marks. Takes about four minutes on two cores.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from benchmarks.cases import CASES, STEPS, Case, build, flat, real_digits, run
from benchmarks.clusters import run_chief, run_workers
from stages.errors import UserError
from stages.results import Strategy
from stages.settings.strategy import (
    CentralStorageSettings,
    DefaultSettings,
    MirroredSettings,
    ModelParallelSettings,
    OneDeviceSettings,
)
from stages.strategy import strategy

MARKS = ("<!-- python -m benchmarks.strategies docs/strategies.md -->", "<!-- end -->")
REFUSED = {("bfloat16", "multi_worker"), ("XLA (mlp)", "model_parallel")}
Cells = dict[tuple[str, str], str]


def in_process() -> Mapping[str, Callable[[], Strategy]]:
    """Returns the strategies that one process can hold."""
    return {
        "default": lambda: strategy(DefaultSettings(deterministic=True)),
        "mirrored ×2": lambda: strategy(MirroredSettings(deterministic=True)),
        "mirrored ×4": lambda: strategy(MirroredSettings(deterministic=True, cpu_replicas=4)),
        "central_storage ×2": lambda: strategy(CentralStorageSettings(deterministic=True)),
        "model_parallel ×2": lambda: strategy(ModelParallelSettings(deterministic=True)),
    }


def table() -> str:
    """Runs everything and returns the table as Markdown."""
    cells: Cells = {}
    strategy(MirroredSettings(deterministic=True, cpu_replicas=4))  # makes the logical devices
    device = OneDeviceSettings(deterministic=True, device="/cpu:0")
    one = {name: run(case, strategy(device)) for name, case in CASES.items()}
    for name, case in CASES.items():
        start = build(case, strategy(device), real_digits(64)).network
        cells[name, "moved by"] = f"{np.abs(one[name][0] - flat(start)).max():.2f}"
        for where, make in in_process().items():
            cells[name, where] = _difference(name, where, one, partial(_weights, case, make))
    with tempfile.TemporaryDirectory() as folder:
        names = [name for name in CASES if (name, "multi_worker") not in REFUSED]
        codes, printed = run_workers(2, "benchmarks.worker", f"{folder}/workers.npz", str(STEPS), *names)
        assert codes == [0, 0], printed
        code, printed = run_chief("benchmarks.worker", f"{folder}/chief.npz", str(STEPS), *CASES)
        assert code == 0, printed
        workers, chief = dict(np.load(f"{folder}/workers.npz")), dict(np.load(f"{folder}/chief.npz"))
    for name in CASES:
        there = name in names
        found = partial(workers.__getitem__, f"{name}/weights")
        cells[name, "multi_worker ×2"] = _difference(name, "multi_worker", one, found) if there else "refused"
        cells[name, "parameter_server 2+2"] = f"{chief[f'{name}/loss']:.2f} ({one[name][1]['loss']:.2f})"
    return _markdown(cells)


def _weights(case: Case, make: Callable[[], Strategy]) -> np.ndarray:
    """Returns all weights of the case, trained under the strategy that `make` makes, as one vector."""
    return run(case, make())[0]


def _difference(
    name: str, where: str, one: Mapping[str, tuple[np.ndarray, dict[str, float]]], weights: Callable[[], np.ndarray]
) -> str:
    if (name, where.partition(" ")[0]) in REFUSED:
        return "refused"
    try:
        return f"{np.abs(weights() - one[name][0]).max():.0e}".replace("0e+00", "0")
    except UserError:
        return "refused"


def _markdown(cells: Cells) -> str:
    columns = list(dict.fromkeys(column for _, column in cells))
    lines = ["| 50 steps of | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(cells[name, column] for column in columns) + " |" for name in CASES]
    versions = (
        f"TensorFlow {tf.__version__}, Keras {keras.__version__}, CPUs, {STEPS} steps of 64 examples, deterministic"
    )
    return "\n".join([*lines, "", versions])


def main() -> None:
    """Prints the table, and puts it into the file that is named."""
    began = time.perf_counter()
    found = table()
    print(found)
    print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr)
    if sys.argv[1:]:
        path = Path(sys.argv[1])
        before, _, rest = path.read_text().partition(MARKS[0])
        _, _, after = rest.partition(MARKS[1])
        path.write_text(f"{before}{MARKS[0]}\n\n{found}\n\n{MARKS[1]}{after}")


if __name__ == "__main__":
    main()
