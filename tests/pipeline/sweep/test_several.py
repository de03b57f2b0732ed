"""Jobs of a sweep that run at the same time, one of them twice, equal a single run to the bit."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pipeline.runs.summary import Summary
from pipeline.sweep.index import compare, latest
from stages.load.digits import digits
from tests import commands
from tests.pipeline.experiments import QUICK, TRAINED, last

pytestmark = pytest.mark.slow


def kill_itself_once(settings: Any, folder: Path) -> object:
    if not (folder.parent / "was_killed").exists():
        (folder.parent / "was_killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return digits(settings)


def scores(run: Summary) -> dict[str, float]:
    return {name: value for name, value in run.metrics.items() if "loss" in name or "accuracy" in name}


def test_several_jobs_at_a_time_and_one_that_died_equal_single_runs_to_the_bit(tmp_path: Path) -> None:
    """The network has convolutions and dense layers, in two replicas."""
    given = ("strategy=mirrored", *QUICK, *TRAINED, "deterministic=true", "tracking=off", f"outputs={tmp_path}")
    target = f"data._target_={__name__}.kill_itself_once"
    done = commands.succeed("-m", "seed=1,2", "sweep.n_jobs=2", "sweep.retries=1", target, *given)
    assert "2 jobs, 2 at a time" in done.stdout
    assert "; retrying" in done.stdout
    assert [job.status for job in compare(latest(tmp_path)).runs] == ["FINISHED"] * 2
    done = commands.succeed("seed=1", *given)
    [first] = latest(tmp_path).glob("1_*")
    assert scores(Summary.read(first)) == scores(last(tmp_path))
    assert len(scores(last(tmp_path))) > 4
