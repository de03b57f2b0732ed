"""Resumption from another machine: what has finished there, by the server that both record in, is not run again."""

import json
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from mlflow import MlflowClient

from pipeline.sweep.comparison import compare, latest
from tests import commands
from tests.pipeline.experiments import QUICK
from tests.pipeline.sweep.test_sweep import wait_for_log
from tests.pipeline.tracking.test_tracking import free_port, running_server

pytestmark = pytest.mark.slow


def test_jobs_that_have_finished_elsewhere_are_not_run_again(tmp_path: Path, migrated_store: Path) -> None:
    """Stopped on one machine in its second job; the rest runs on another; the first machine then has nothing to do."""
    shutil.copy(migrated_store, tmp_path / "server.db")
    here, there = tmp_path / "here" / "outputs", tmp_path / "there" / "outputs"
    with running_server(tmp_path, free_port()) as address:
        given = ("-m", "seed=1,2", *QUICK, "train.epochs=8", "tracking=server", f"tracking.uri={address}")
        with commands.start(*given, f"outputs={there}", stdout=subprocess.DEVNULL) as process:
            wait_for_log(there, "epoch 1/8", job=2)
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 143
        done = commands.run(*given, f"outputs={here}")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 of the jobs have finished elsewhere" in done.stdout
        assert "seed=1  finished elsewhere (run " in done.stdout
        first, second = compare(latest(here)).runs
        assert (first.status, second.status) == ("FINISHED", "FINISHED")
        assert first.metrics["test/loss"] == compare(latest(there)).runs[0].metrics["test/loss"]
        assert not list(latest(here).glob("1_*/checkpoints"))
        listed = json.loads((latest(here) / "sweep.json").read_text())["jobs"]
        client = MlflowClient(address)
        assert client.get_run(listed[0]["elsewhere"]).info.status == "FINISHED"
        runs = client.search_runs([client.get_run(listed[0]["elsewhere"]).info.experiment_id])
        assert len(runs) == 5  # two sweeps, three jobs: one of them was stopped
        again = commands.run(*given, f"outputs={there}")
        assert again.returncode == 0, again.stdout + again.stderr
        assert "seed=2  finished" in again.stdout or "resuming sweep" in again.stdout
