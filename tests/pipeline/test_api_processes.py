"""Runs from Python, one after another in one process, whose TensorFlow has started with the first."""

from pathlib import Path

import pytest

from tests import commands

SCRIPT = """
import sys
import tensorflow as tf
from pipeline.api import run_experiment
from stages.errors import UserError
from tests.pipeline.experiments import SMALL, TRAINED

if __name__ == "__main__":
    place = f"outputs={sys.argv[1]}"
    tf.constant(1.0) + 1.0  # a notebook has used it
    for strategy in ("mirrored", "central_storage", "model_parallel"):
        try:
            run_experiment([*SMALL, *TRAINED, place, f"strategy={strategy}"])
        except UserError as error:
            print("refused:", error)
    few = {"multi_worker": [], "parameter_server": ["strategy.workers=1", "strategy.servers=1"]}
    for strategy, of_each in few.items():
        given = [*SMALL, *TRAINED, place, f"strategy={strategy}", *of_each, "tracking=off", "train.epochs=1"]
        run = run_experiment(given)
        print("ended:", strategy, run.status)
"""


@pytest.mark.slow
def test_a_process_that_has_used_tensorflow_runs_clusters_and_refuses_more_devices(tmp_path: Path) -> None:
    """Members of a cluster are processes of their own; refusals come before anything is recorded."""
    (tmp_path / "notebook.py").write_text(SCRIPT)
    done = commands.run(str(tmp_path / "outputs"), module="notebook", cwd=tmp_path, timeout=400)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert sum("2 logical CPU devices are wanted, but TensorFlow has started with 1" in line for line in lines) == 3
    assert [line for line in lines if line.startswith("ended")] == [
        "ended: multi_worker FINISHED",
        "ended: parameter_server FINISHED",
    ]
    assert len([*(tmp_path / "outputs").glob("runs/*/*")]) == 2
