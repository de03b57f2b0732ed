"""From the command to its answer, and to the first step of training."""

import tempfile
from functools import partial
from pathlib import Path

from benchmarks.measuring import Samples, interleave
from benchmarks.processes import pipeline, python


def commands(rounds: int) -> Samples:
    """Measure commands that train nothing beside python's own start with `import hydra`."""
    ways = {
        "import hydra": partial(python, "-c", "import hydra"),
        "--help": partial(python, "-m", "pipeline", "--help"),
        "a wrong key": partial(python, "-m", "pipeline", "trian.epochs=5", expect=2),
        "dry_run=true": partial(python, "-m", "pipeline", "dry_run=true"),
    }
    return interleave(ways, rounds, warm_up=1)


def first_step(rounds: int) -> Samples:
    """Measure the time to the first step: imports, store, tracing; beside TensorFlow's import and a bare step."""
    stop = "train.callbacks=[{_target_: benchmarks.callbacks.FirstStep}]"
    with tempfile.TemporaryDirectory() as outputs:
        ways = {
            "pipeline": partial(pipeline, Path(outputs), stop),
            "TensorFlow's import, a step": partial(python, "-m", "benchmarks.baselines.first_step"),
        }
        return interleave(ways, rounds, warm_up=1)
