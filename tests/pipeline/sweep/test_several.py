"""Sweeps of several jobs at a time: the same numbers to the bit, retries that resume."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.run_folder.summary import Summary
from pipeline.sweep.index import compare, latest
from stages.load.digits import digits
from tests.pipeline.experiments import QUICK, TRAINED

pytestmark = pytest.mark.slow

Command = Callable[..., subprocess.CompletedProcess[str]]


def metrics(folder: Path) -> list[dict[str, float]]:
    """Returns losses and scores of each job of a sweep."""
    summaries = [Summary.read(path.parent) for path in sorted(folder.glob("*/summary.json"))]
    return [{name: run.metrics[name] for name in run.metrics if "loss" in name or "acc" in name} for run in summaries]


def test_several_at_a_time_give_the_same_to_the_bit(pipeline_command: Command, tmp_path: Path) -> None:
    """Convolutions and dense layers, in one and in two replicas; then the first sweep's command again, with more jobs
    at a time: there is nothing left to run, so it is a new sweep."""
    given = ["-m", "strategy=one_device,mirrored", "seed=1", *QUICK, *TRAINED, "deterministic=true", "tracking=off"]
    done = pipeline_command(*given, f"outputs={tmp_path}/one")
    assert done.returncode == 0, done.stdout + done.stderr
    done = pipeline_command(*given, "sweep.n_jobs=2", f"outputs={tmp_path}/two")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 jobs, 2 at a time" in done.stdout
    assert metrics(latest(tmp_path / "one")) == metrics(latest(tmp_path / "two"))
    assert [len(values) > 4 for values in metrics(latest(tmp_path / "two"))] == [True, True]


def kill_itself_once(settings: Any, folder: Path) -> object:
    if not (folder.parent / "was_killed").exists():
        (folder.parent / "was_killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return digits(settings)


def test_a_job_that_died_is_run_again(pipeline_command: Command, outputs: Path) -> None:
    target = f"data._target_={__name__}.kill_itself_once"
    done = pipeline_command("-m", "seed=1", "sweep.retries=1", target, *QUICK, *TRAINED, f"outputs={outputs}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "it is run again" in done.stdout
    assert [job.status for job in compare(latest(outputs)).runs] == ["FINISHED"]
