"""Resumption from another machine: what has finished there, by the server that both record in, is not run again."""

import json
import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient

from pipeline.sweep.comparison import compare, latest
from tests import commands
from tests.pipeline.experiments import BARE, SMALL
from tests.servers import mlflow_server

pytestmark = pytest.mark.slow


def test_jobs_that_have_finished_elsewhere_are_not_run_again(tmp_path: Path, migrated_store: Path) -> None:
    """Two folders of results stand for two machines; of the two jobs one fails on both."""
    shutil.copy(migrated_store, tmp_path / "server.db")
    here, there = tmp_path / "here", tmp_path / "there"
    with mlflow_server(f"sqlite:///{tmp_path}/server.db", tmp_path / "kept") as address:
        given = ("-m", "strategy.device=/cpu:0,/gpu:7", *SMALL, *BARE,
                 "tracking=server", f"tracking.uri={address}")  # fmt: skip
        first = commands.run(*given, f"outputs={there}")
        assert first.returncode == 3, first.stdout + first.stderr
        assert "finished elsewhere" not in first.stdout
        second = commands.run(*given, f"outputs={here}")
        assert second.returncode == 3, second.stdout + second.stderr
        assert "1 of the jobs have finished elsewhere" in second.stdout
        runs = compare(latest(here)).runs
        assert [run.status for run in runs] == ["FINISHED", "FAILED"]
        assert runs[0].metrics["test/loss"] == compare(latest(there)).runs[0].metrics["test/loss"]
        assert not list(latest(here).glob("1_*/checkpoints"))
        entry = json.loads((latest(here) / "sweep.json").read_text())["jobs"][0]
        assert f"strategy.device=/cpu:0  finished elsewhere (run {entry['elsewhere']}), skipped" in second.stdout
        run = MlflowClient(address).get_run(entry["elsewhere"])
        assert run.info.status == "FINISHED"
        assert len(MlflowClient(address).search_runs([run.info.experiment_id])) == 5  # two sweeps, three jobs
