"""A run that is ended by a signal: its status, and its record."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.console import Console
from pipeline.planning.job import Job
from pipeline.run import executor as work_module
from pipeline.run.executor import begin as begin_run
from pipeline.run.launch import run_job
from tests import commands
from tests.pipeline.experiments import QUICK, experiment, only_folder, only_run

pytestmark = pytest.mark.slow


def slow(settings: object) -> None:
    print("sleeping", flush=True)
    time.sleep(600)


def test_a_signal_while_the_run_is_started_leaves_no_running_run(
    outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: Any) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        return begin_run(*given)

    monkeypatch.setattr(work_module, "begin", interrupted)
    assert run_job(Job(experiment(*QUICK, outputs=outputs)), Console()) == 143
    assert only_run(outputs)[1].info.status == "KILLED"
    assert json.loads((only_folder(outputs) / "summary.json").read_text())["status"] == "KILLED"


def test_a_second_signal_does_not_cost_the_record(outputs: Path) -> None:
    with commands.start(f"model._target_={__name__}.slow", f"outputs={outputs}", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert any("sleeping" in line for line in iter(process.stdout.readline, ""))
        os.kill(process.pid, signal.SIGINT)
        assert any(line.startswith("run ") for line in iter(process.stdout.readline, ""))
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(300) == 130
    assert only_run(outputs)[1].info.status == "KILLED"
    assert json.loads((only_folder(outputs) / "summary.json").read_text())["status"] == "KILLED"
