"""The same command, started while the first still runs: it ends with 2, and the living run stays as it is.

`python -m tests.pipeline.run.test_two_commands 20` starts the second one at as many moments of the first.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

from pipeline.exit_codes import DONE, WRONG_CONFIGURATION
from tests import commands
from tests.pipeline.experiments import SMALL, TRAINED

pytestmark = pytest.mark.slow

SHORT = (*SMALL, *TRAINED, "train.epochs=40")

SEARCH = ("sweep=random", "sweep.trials=2", "optimizer.learning_rate=interval(0.01,0.1)")

CASES = {
    "single": ("runs/*/*/summary.json", SHORT),
    "sweep": ("sweeps/*/sweep.json", (*SHORT, "-m", "seed=1,2")),
    "search": (
        "sweeps/*/sweep.json",
        (*SHORT, "sweep=random", "sweep.trials=2", "optimizer.learning_rate=interval(0.01,0.1)"),
    ),
    "cluster": ("runs/*/*/summary.json", (*SHORT, "strategy=multi_worker", "strategy.workers=2")),
}
"""By kind: the file with the status, and the command."""


@pytest.mark.parametrize(("kind", "seconds"), [*((kind, 0.0) for kind in CASES), ("single", 1.5), ("cluster", 4.0)])
def test_a_second_command_leaves_the_living_run_as_it_is(kind: str, seconds: float, outputs: Path) -> None:
    assert code_of_second(kind, seconds, outputs) == WRONG_CONFIGURATION


def code_of_second(kind: str, seconds: float, outputs: Path) -> int | None:
    """Starts a command, and again `seconds` after its run has begun; returns the exit code of the second.

    None: the first had ended before the second looked.
    """
    pattern, words = CASES[kind]
    with commands.start(*words, f"outputs={outputs}", stdout=subprocess.DEVNULL) as first:
        file = _begun(outputs, pattern)
        time.sleep(seconds)
        second = commands.run(*words, f"outputs={outputs}")
        assert first.wait(300) == DONE
    printed = second.stdout + second.stderr
    for path in [file, *file.parent.rglob("summary.json")]:
        values = json.loads(path.read_text())
        assert values["status"] == "FINISHED", (path, printed)
        assert path == file or "val/loss" in values["metrics"], (path, printed)
    store = MlflowClient(f"sqlite:///{outputs / 'mlflow.db'}")
    runs = store.search_runs([found.experiment_id for found in store.search_experiments()])
    assert {run.info.status for run in runs} == {"FINISHED"}, printed
    if second.returncode == DONE:
        assert len([*outputs.glob(pattern)]) == 2, printed  # a run of its own
        return None
    assert [*outputs.glob(pattern)] == [file], printed
    assert "another process works on" in printed or "has finished meanwhile" in printed, printed
    return second.returncode


def _begun(outputs: Path, pattern: str) -> Path:
    deadline = time.monotonic() + commands.HEARD_SECONDS
    while time.monotonic() < deadline:
        for path in outputs.glob(pattern):
            return path
        time.sleep(0.01)
    raise AssertionError("nothing has begun")


def _main(moments: int) -> None:
    """Prints, for each kind, how the second of two commands ended, at moments from the first's beginning to its end."""
    for kind, (pattern, words) in CASES.items():
        with tempfile.TemporaryDirectory() as outputs:
            with commands.start(*words, f"outputs={outputs}", stdout=subprocess.DEVNULL) as alone:
                _begun(Path(outputs), pattern)
                began = time.monotonic()
                assert alone.wait(300) == DONE
            length = time.monotonic() - began
        codes = []
        for moment in range(moments):
            with tempfile.TemporaryDirectory() as outputs:
                codes.append(code_of_second(kind, length * moment / moments, Path(outputs)))
        print(f"{kind}: {length:.1f} s, {codes}: nothing overwritten", flush=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
