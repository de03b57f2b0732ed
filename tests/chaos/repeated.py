"""A command of several jobs, all of whose processes are killed at random moments, and which is then repeated."""

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities import Run

from pipeline.config.schemas import TrackingSettings
from pipeline.sweep.index import INDEX, sweep_status
from pipeline.tracking.store import Store
from tests.chaos.command import command, prepared, printed


def parser(module: str, description: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(f"python -m {module}", description=description)
    made.add_argument("--kills", type=int, default=8)
    made.add_argument("--seed", type=int, default=1)
    return made


def run(outputs: Path, arguments: Sequence[str], kill_after: float | None = None) -> tuple[int, float]:
    """Runs `python -m pipeline <arguments>` and returns its exit code and its seconds.

    kill_after: seconds after which all its processes are killed at once.
    """
    began = time.monotonic()
    kill = None if kill_after is None else (lambda seconds: seconds >= kill_after)
    code = command(outputs, *arguments, f"outputs={outputs}", kill=kill)
    return code, time.monotonic() - began


def recorded(outputs: Path, jobs: int) -> list[Run]:
    """Returns the runs in the store; asserts that each is there once, FINISHED, with no step of a metric twice."""
    client = mlflow.MlflowClient(f"sqlite:///{outputs}/mlflow.db")
    [own] = client.search_experiments(filter_string="name != 'Default'")
    found: list[Run] = list(client.search_runs([own.experiment_id]))
    assert len(found) == 1 + jobs, [run.info.run_name for run in found]
    assert {run.info.status for run in found} == {"FINISHED"}, [(run.info.run_name, run.info.status) for run in found]
    for run in found:
        for name in run.data.metrics:
            steps = [point.step for point in client.get_metric_history(run.info.run_id, name)]
            assert len(steps) == len(set(steps)), (run.info.run_name, name)
    return found


def has_finished(outputs: Path) -> bool:
    """Returns whether the sweep or search is FINISHED by its own account, the last thing that it writes."""
    return any(sweep_status(path.parent) == "FINISHED" for path in outputs.glob(f"sweeps/*/{INDEX}"))


def count_survived(
    given: argparse.Namespace,
    arguments: Sequence[str],
    results: Callable[[Path], Any],
    uninterrupted: Sequence[str] | None = None,
) -> tuple[int, int]:
    """Kills and repeats the command; returns how many kills it has survived, and how many there were.

    Args:
        given: what `parser` has read.
        results: reads what the command must come to, and asserts what the store must have.
        uninterrupted: arguments of the command that it is compared with; None: the same.
    """
    chance, survived, done = random.Random(given.seed), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        Store(TrackingSettings(kind="local"), Path(folder)).client()

        def fresh() -> Path:
            return prepared(Path(tempfile.mkdtemp(dir=folder)), Path(folder) / "mlflow.db")

        outputs = fresh()
        code, seconds = run(outputs, uninterrupted or arguments)
        expected = results(outputs)
        if uninterrupted is not None:
            outputs = fresh()
            code, seconds = run(outputs, arguments)
            assert results(outputs) == expected
        print(f"uninterrupted: exit code {code} in {seconds:.1f} s, seed {given.seed}", flush=True)
        while done < given.kills:
            outputs = fresh()
            code, moments = -9, []
            while code == -9:
                moment = chance.uniform(1, seconds) if done < given.kills else None
                code, took = run(outputs, arguments, moment)
                if code == -9 and has_finished(outputs):
                    code = 0  # its process was ending: the same command would begin anew
                elif code == -9:
                    done += 1
                    moments.append(f"{took:.1f}")
            if not moments:
                seconds = min(seconds, took)  # the first one read files that were not in memory yet
            try:
                assert code == 0, printed(outputs)[-2000:]
                assert results(outputs) == expected
                survived += len(moments)
                how = f"killed after {', '.join(moments)} s: survived" if moments else "ended before it was killed"
                print(f"  {how}", flush=True)
            except AssertionError as error:
                print(f"  killed after {', '.join(moments)} s: {error}", flush=True)
    return survived, done
