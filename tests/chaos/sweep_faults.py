"""`python -m tests.chaos.sweep_faults`: kills all processes of real sweeps at random moments, repeats the command.

A sweep has survived where, after any number of kills, the same command ends with exit code 0, every job FINISHED once
in MLflow, and the metrics of each job to the bit those of a sweep that nobody killed.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import mlflow

from pipeline.config.schemas import TrackingSettings
from pipeline.tracking.store import open_client
from tests.chaos.command import LIMIT_SECONDS, kill_all, prepared
from tests.conftest import ROOT

JOBS = 3
GIVEN = (
    "-m",
    "seed=1,2,3",
    "train.epochs=6",
    "model.network.filters=[8,16]",
    "deterministic=true",
    "train.checkpoint_every_steps=20",
)


def run(outputs: Path, at_once: int, kill_after: float | None = None) -> tuple[int, float]:
    """Runs the sweep, `at_once` jobs at a time, and returns its exit code and its seconds.

    kill_after: seconds after which all its processes are killed at once.
    """
    began = time.monotonic()
    with (outputs.parent / "printed.txt").open("a") as log:
        command = [sys.executable, "-m", "pipeline", *GIVEN, f"sweep.n_jobs={at_once}", f"outputs={outputs}"]
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        try:
            return process.wait(LIMIT_SECONDS if kill_after is None else kill_after), time.monotonic() - began
        except subprocess.TimeoutExpired:
            kill_all(process.pid)
            process.wait(10)
            if kill_after is None:
                raise
            return -9, time.monotonic() - began


def results(outputs: Path) -> dict[str, dict[str, float]]:
    """Returns each job's metrics that are no times; asserts that the store has every job once, and FINISHED."""
    client = mlflow.MlflowClient(f"sqlite:///{outputs}/mlflow.db")
    [own] = client.search_experiments(filter_string="name != 'Default'")
    found = client.search_runs([own.experiment_id])
    assert len(found) == 1 + JOBS, [run.info.run_name for run in found]
    assert {run.info.status for run in found} == {"FINISHED"}, [(run.info.run_name, run.info.status) for run in found]
    summaries = [json.loads(path.read_text()) for path in outputs.glob("sweeps/*/*/summary.json")]
    assert sorted(summary["run_id"] for summary in summaries) == sorted(
        run.info.run_id for run in found if "mlflow.parentRunId" in run.data.tags
    )
    for run in found:
        for name in run.data.metrics:
            steps = [point.step for point in client.get_metric_history(run.info.run_id, name)]
            assert len(steps) == len(set(steps)), (run.info.run_name, name)
    return {
        summary["overrides"][0]: {
            name: value
            for name, value in summary["metrics"].items()
            if not name.startswith("memory/")
            and not name.endswith(("seconds", "_per_second", "_wait_fraction", "_mib"))
        }
        for summary in summaries
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.chaos.sweep_faults", description=__doc__)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=1, help="jobs that run at the same time")
    given = parser.parse_args(arguments)
    chance, survived, done = random.Random(given.seed), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        open_client(TrackingSettings(kind="local"), Path(folder))
        outputs = prepared(Path(tempfile.mkdtemp(dir=folder)), Path(folder) / "mlflow.db")
        code, seconds = run(outputs, at_once=1)  # also what several at once are compared with
        expected = results(outputs)
        if given.at_once > 1:
            outputs = prepared(Path(tempfile.mkdtemp(dir=folder)), Path(folder) / "mlflow.db")
            code, seconds = run(outputs, given.at_once)
            assert results(outputs) == expected
        how = f"{JOBS} jobs, {given.at_once} at once"
        print(f"sweep of {how}: exit code {code} in {seconds:.1f} s, seed {given.seed}", flush=True)
        while done < given.kills:
            outputs = prepared(Path(tempfile.mkdtemp(dir=folder)), Path(folder) / "mlflow.db")
            code, moments = -9, []
            while code == -9:
                moment = chance.uniform(1, seconds) if done < given.kills else None
                code, took = run(outputs, given.at_once, moment)
                if code == -9:
                    done += 1
                    moments.append(f"{took:.1f}")
            try:
                assert code == 0, (outputs.parent / "printed.txt").read_text()[-2000:]
                assert results(outputs) == expected
                survived += len(moments)
                print(f"  killed after {', '.join(moments) or 'none'} s: survived", flush=True)
            except AssertionError as error:
                print(f"  killed after {', '.join(moments)} s: {error}", flush=True)
    print(f"sweep: survived {survived} of {done} kills", flush=True)
    return 0 if survived == done else 1


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    sys.exit(main())
