"""A command that is started again while it still runs exits with 2 and does not change the run."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from pipeline.exit_codes import DONE, WRONG_CONFIGURATION
from pipeline.system.signals import until
from tests import commands
from tests.pipeline.experiments import SMALL, TRAINED, tracked

pytestmark = pytest.mark.slow

SHORT = (*SMALL, *TRAINED, "train.epochs=40")

CASES = {
    "single": ("runs/*/*/summary.json", SHORT),
    "sweep": ("sweeps/*/sweep.json", (*SHORT, "-m", "seed=1,2")),
    "cluster": ("runs/*/*/summary.json", (*SHORT, "strategy=multi_worker", "strategy.workers=2")),
}
"""By kind: the file with the status, and the command. A search behaves like a sweep."""


@pytest.mark.parametrize(("kind", "seconds"), [("single", 0.0), ("sweep", 0.0), ("cluster", 4.0)])
def test_a_second_command_does_not_change_the_run_that_is_in_progress(kind: str, seconds: float, outputs: Path) -> None:
    pattern, words = CASES[kind]
    with commands.start(*words, f"outputs={outputs}", stdout=subprocess.DEVNULL) as first:
        assert until(lambda: any(outputs.glob(pattern)), commands.HEARD_SECONDS)
        [file] = outputs.glob(pattern)
        time.sleep(seconds)
        second = commands.run(*words, f"outputs={outputs}")
        assert first.wait(300) == DONE
    printed = second.stdout + second.stderr
    for path in [file, *file.parent.rglob("summary.json")]:
        values = json.loads(path.read_text())
        assert values["status"] == "FINISHED", (path, printed)
        assert path == file or "val/loss" in values["metrics"], (path, printed)
    _, runs = tracked(outputs)
    assert {run.info.status for run in runs} == {"FINISHED"}, printed
    assert [*outputs.glob(pattern)] == [file], printed
    assert "another process is using" in printed or "was finished by another process" in printed, printed
    assert second.returncode == WRONG_CONFIGURATION, printed
