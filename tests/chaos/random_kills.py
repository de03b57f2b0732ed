"""`python -m tests.chaos.random_kills`: kills real runs at any moment of their life, and repeats the same command.

A run is a process of its own, killed by SIGKILL: half of them anywhere between the start of the process and its last
line, half of them after training has ended, while the run is evaluated, exported, uploaded and closed. Every fourth
time `python -m pipeline.sync` is run in between, and killed as well. A run has survived where the same command then
leaves one run in the store: FINISHED, with every epoch of every metric once, one model that is READY, and what
`summary.json` says; and where nothing is trained again once that file has said FINISHED.
"""

import argparse
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient

from pipeline.config.schemas import TrackingSettings
from pipeline.run_folder.summary import NAME, Summary
from pipeline.tracking.journal import Journal
from pipeline.tracking.store import Store
from tests.chaos.command import command, prepared, printed
from tests.pipeline.experiments import SMALL

EPOCHS = 2
GIVEN = (
    *SMALL,
    f"train.epochs={EPOCHS}",
    "train.checkpoint_every_steps=2",
    "deterministic=true",
    "pipeline.inspect=null",
)
LAST_EPOCH = re.compile(rf"^epoch +{EPOCHS}/{EPOCHS} ", re.MULTILINE)


@dataclass(frozen=True)
class Moment:
    """When to kill: `share` of the usual time since the start, or since the end of training."""

    after_training: bool
    share: float
    kill_sync: bool = False

    def __str__(self) -> str:
        since = "training ended" if self.after_training else "the start"
        return f"{self.share:4.0%} of the time since {since}{', then sync' if self.kill_sync else ''}"


@dataclass(frozen=True)
class Usual:
    """Seconds that a run takes that nobody kills: in all, and after training."""

    whole: float
    end: float


def moments(seed: int, count: int) -> list[Moment]:
    chance = random.Random(seed)
    return [Moment(index % 2 == 1, chance.random(), index % 4 == 3) for index in range(count)]


def usual(outputs: Path) -> Usual:
    """Measures a run that nobody kills."""
    began = time.monotonic()
    trained: list[float] = []

    def watch(seconds: float) -> bool:
        if not trained and LAST_EPOCH.search(printed(outputs)):
            trained.append(seconds)
        return False

    assert train(outputs, watch) == 0, printed(outputs)
    whole = time.monotonic() - began
    return Usual(whole, whole - trained[0])


def trial(outputs: Path, moment: Moment, usually: Usual) -> str:
    """Kills a run and repeats the command; returns in what state the kill left it.

    Raises:
        AssertionError: where it has not survived.
    """
    trained: list[float] = []

    def due(seconds: float) -> bool:
        if not moment.after_training:
            return seconds >= moment.share * usually.whole
        if not trained and LAST_EPOCH.search(printed(outputs)):
            trained.append(seconds)
        return bool(trained) and seconds - trained[0] >= moment.share * usually.end

    train(outputs, due)
    state = state_of(outputs)
    if moment.kill_sync:
        limit = random.Random(str(moment)).random()
        command(outputs, f"--outputs={outputs}", module="pipeline.sync", kill=lambda seconds: seconds >= limit)
    had_finished = "FINISHED" in state
    if state_of(outputs) != "FINISHED, closed":
        before = len(printed(outputs))
        code = train(outputs)
        assert code == 0, f"exit code {code}: {printed(outputs)[-2000:]}"
        again = re.findall(r"^epoch .*$", printed(outputs)[before:], re.MULTILINE)
        assert not (had_finished and again), f"trained again: {again}"
    assert_one_whole_run(outputs)
    return state


def state_of(outputs: Path) -> str:
    """Returns what a kill has left: no run, its status, and whether the store has all of it."""
    found = list(outputs.glob(f"runs/*/*/{NAME}"))
    if not found:
        return "no run"
    status = Summary.read(found[0].parent).status
    return f"{status}, {'closed' if Journal(found[0].parent).is_closed else 'open'}"


def assert_one_whole_run(outputs: Path) -> None:
    """Asserts that the store and the only run's folder tell the same whole story."""
    [path] = outputs.glob(f"runs/*/*/{NAME}")
    summary = Summary.read(path.parent)
    client = MlflowClient(f"sqlite:///{outputs}/mlflow.db")
    [own] = client.search_experiments(filter_string="name != 'Default'")
    [run] = client.search_runs([own.experiment_id])
    assert (run.info.status, summary.status, run.info.run_id) == ("FINISHED", "FINISHED", summary.run_id)
    for name in run.data.metrics:
        steps = [point.step for point in client.get_metric_history(run.info.run_id, name)]
        assert len(steps) == len(set(steps)), f"{name} is doubled: {steps}"
    for name in ("train/loss", "val/loss", "train/accuracy", "val/accuracy"):
        steps = [point.step for point in client.get_metric_history(run.info.run_id, name)]
        assert steps == list(range(1, EPOCHS + 1)), f"{name}: {steps}"
    for name in ("train/loss", "val/loss", "test/loss", "test/accuracy", "export/max_abs_diff"):
        assert run.data.metrics[name] == summary.metrics[name], name
    models = client.search_logged_models([own.experiment_id])
    assert [str(model.status) for model in models] == ["READY"], models
    assert run.data.tags["model_uri"] == f"models:/{models[0].model_id}"
    files = {entry.path for entry in client.list_artifacts(run.info.run_id)}
    assert {"config.yaml", "summary.json", "pipeline.log", "plots"} <= files
    assert Journal(path.parent).is_closed


def train(outputs: Path, kill: Callable[[float], bool] | None = None) -> int:
    """Runs the command, and returns its exit code."""
    return command(outputs, *GIVEN, f"outputs={outputs}", kill=kill)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.chaos.random_kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        Store(TrackingSettings(kind="local"), Path(folder)).client()
        store = Path(folder) / "mlflow.db"
        usual(prepared(Path(tempfile.mkdtemp(dir=folder)), store))  # the first pays for the server's imports
        usually = usual(prepared(Path(tempfile.mkdtemp(dir=folder)), store))
        print(f"usually {usually.whole:.1f} s, {usually.end:.1f} s after training; seed {given.seed}", flush=True)
        for moment in moments(given.seed, given.kills):
            outputs = prepared(Path(tempfile.mkdtemp(dir=folder)), store)
            try:
                told = f"survived; the kill left: {trial(outputs, moment, usually)}"
                survived += 1
            except Exception as error:
                told = f"LOST: {type(error).__name__}: {error}"
            print(f"  {moment}: {told}", flush=True)
    print(f"survived {survived} of {given.kills} kills", flush=True)
    return 0 if survived == given.kills else 1


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    sys.exit(main())
