"""Errors that a stage raises, as its runner passes them on."""

import functools
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from pipeline.console import Console
from pipeline.planning.job import Turn
from pipeline.planning.plan import PlannedStage
from pipeline.run.runner import BoundStage, StageRunner
from pipeline.run_folder.summary import Summary
from pipeline.tracking.tracker import Tracker
from stages.errors import UserError
from stages.exporters import fresh_process


def lose_a_worker() -> None:
    raise tf.errors.DeadlineExceededError(None, None, "Collective ops is aborted by: Deadline Exceeded\nRPC: Heartbeat")


def test_a_worker_that_is_lost_anywhere_in_a_stage_is_one_line(tmp_path: Path) -> None:
    summary = Summary(None, "RUNNING", "own", "", {})
    stage = BoundStage(PlannedStage("own", "x.y", "", (), "own_result"), lose_a_worker, None)
    with pytest.raises(UserError, match=r"^another worker of the cluster was lost \(Deadline Exceeded\)"):
        StageRunner(tmp_path, tmp_path, Tracker(), Console(), summary).run([stage])
    assert summary.failed_stage == "own"


def test_a_run_that_fails_leaves_no_process(tmp_path: Path) -> None:
    """In a notebook, which lives on."""
    started: list[Any] = []

    def fail() -> None:
        fresh_process.prestart()
        started.append(fresh_process._prestarted)
        raise UserError("it fails", "that it does not")

    stage = BoundStage(PlannedStage("own", "x.y", "", (), "own_result"), fail, None)
    with pytest.raises(UserError, match="it fails"):
        StageRunner(tmp_path, tmp_path, Tracker(), Console(), Summary(None, "RUNNING", "own", "", {})).run([stage])
    assert started[0].returncode is not None


def test_a_job_of_a_sweep_trains_in_its_turn(tmp_path: Path) -> None:
    """It loads its data before, and the next one begins as soon as it has trained."""
    events: list[str] = []

    class Noted(Turn):
        def wait(self) -> None:
            events.append("wait")

        def has_trained(self) -> None:
            events.append("next")

    names = ("load", "train", "evaluate")
    functions = {name: functools.partial(events.append, name) for name in names}
    stages = [BoundStage(PlannedStage(name, "x.y", "", (), name), functions[name], None) for name in names]
    summary = Summary(None, "RUNNING", "own", "", {})
    StageRunner(tmp_path, tmp_path, Tracker(), Console(), summary, turn=Noted(Pipe()[0])).run(stages)
    assert events == ["load", "wait", "train", "next", "evaluate"]
