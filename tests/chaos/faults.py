"""`python -m tests.chaos.faults`: kill real commands by SIGKILL, repeat them, and compare their results.

A case is a command, and moments at which all of its processes are killed. Its results must equal those of an
uninterrupted command. For runs, these are the weights, the optimizer's state and the history in MLflow: exactly on one
or several devices, within 1e-6 on several workers. For sweeps and searches, they are the metrics of each job. MLflow
must have each run once, FINISHED, without a repeated step of a metric, and a FINISHED run must not be trained again.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import optuna
import psutil
from mlflow.entities import Run

from pipeline.config.schemas import TrackingSettings
from pipeline.runs.journal import Journal
from pipeline.runs.summary import NAME, Summary
from pipeline.search.study import STUDY, open_storage
from pipeline.sweep.index import INDEX, read_index
from pipeline.tracking.store import Store
from stages.checkpoints.names import AVERAGES
from tests import commands
from tests.conftest import outputs_in
from tests.pipeline.experiments import BARE, TRAINED

LIMIT_SECONDS = 600.0
EPOCHS, STEPS, EVERY_STEPS = 5, 7, 3
JOBS = 3

RUN = (
    f"train.epochs={EPOCHS}",
    "train.batch_size=192",
    "model.network.filters=[8,16]",
    "model.network.dropout=0.2",
    "augment=flip_rotate",
    "optimizer.ema_momentum=0.9",
    "optimizer.clip_norm=1.0",
    "schedule=plateau",
    "schedule.patience=1",
    "train.early_stopping_patience=4",
    "train.steps_per_call=1",
    f"train.checkpoint_every_steps={EVERY_STEPS}",
    "train.callbacks=[{_target_: tests.chaos.killer.Kill}]",
    "pipeline.inspect=null",
    "deterministic=true",
)
SWEEP = (
    "-m", "seed=1,2,3", "train.epochs=6", "model.network.filters=[8,16]", "deterministic=true",
    "train.checkpoint_every_steps=20",
)  # fmt: skip
SEARCH = (
    "sweep=tpe", f"sweep.trials={JOBS}", "sweep.startup_trials=2", "sweep.seed=1",
    "optimizer.learning_rate=tag(log,interval(1e-4,1))", "train.batch_size=64,96", "model=mlp", "train.epochs=3",
    "deterministic=true", "train.checkpoint_every_steps=10", *BARE,
)  # fmt: skip


def never(outputs: Path, seconds: float) -> bool:
    return False


@dataclass(frozen=True)
class Kill:
    """A moment.

    is_due: is asked every few milliseconds, with the seconds since the start. variables: of the command's environment,
    by which a process kills itself (`tests.chaos.killer`). sync_seconds: after these a `python -m pipeline sync` in
    between is killed as well.
    """

    name: str
    is_due: Callable[[Path, float], bool] = never
    variables: Mapping[str, str] = field(default_factory=dict)
    sync_seconds: float | None = None


def by_itself(kind: str, number: int, worker: int = 0) -> Kill:
    """After a `step`, in the `epoch_end` of an epoch, or while `writing` the checkpoint of a step."""
    fault = {"FAULT": f"{kind}:{number}", "FAULT_WORKER": str(worker)}
    return Kill(f"{kind} {number}, worker {worker}", variables=fault)


def after(seconds: float) -> Kill:
    return Kill(f"after {seconds:.1f} s", lambda outputs, passed: passed >= seconds)


def after_training(seconds: float, sync_seconds: float | None = None) -> Kill:
    """While the run is evaluated, exported, sent and closed."""

    def is_due(outputs: Path, passed: float) -> bool:
        made = outputs.glob("runs/*/*/results/train/trained.npz")
        return any(time.time() - path.stat().st_mtime >= seconds for path in made)

    return Kill(f"{seconds:.1f} s after training", is_due, sync_seconds=sync_seconds)


@dataclass(frozen=True)
class Case:
    """A command, what reads (and asserts) its results, and where it may be killed. tolerance: of arrays."""

    arguments: tuple[str, ...]
    results: Callable[[Path], dict[str, Any]]
    workers: int = 1
    tolerance: float = 0.0

    def kill(self, chance: random.Random, index: int, usual_seconds: float) -> Kill:
        """Return a moment of each kind in turn."""
        worker, anywhere = chance.randrange(self.workers), after(usual_seconds * chance.random())
        if self.results is not of_run:
            return anywhere
        return (
            by_itself("step", chance.randint(1, EPOCHS * STEPS - 1), worker),
            anywhere,
            after_training(usual_seconds / 2 * chance.random(), sync_seconds=chance.random()),
            by_itself("writing", EVERY_STEPS * chance.randint(1, EPOCHS * STEPS // EVERY_STEPS)),
            by_itself("epoch_end", chance.randint(1, EPOCHS), worker),
        )[index % 5]

    def run(self, outputs: Path, kill: Kill | None = None) -> int:
        return run(outputs, *self.arguments, f"outputs={outputs}", kill=kill)


def run(outputs: Path, *arguments: str, module: str = "pipeline", kill: Kill | None = None) -> int:
    """Run `python -m <module> <arguments>`; return its exit code: -9 where it was killed, children included."""
    kill = kill or Kill("never")
    with printed(outputs).open("a") as log:
        variables = {**os.environ, **kill.variables}
        process = commands.start(*arguments, module=module, env=variables, stdout=log, stderr=log)
    began = time.monotonic()
    while process.poll() is None:
        passed = time.monotonic() - began
        if passed > LIMIT_SECONDS or kill.is_due(outputs, passed):
            kill_all(process.pid)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.005)
        assert passed <= LIMIT_SECONDS, "the command has not ended"
    return process.wait()


def kill_all(pid: int) -> None:
    """Kill a process and all that it has started."""
    with suppress(psutil.NoSuchProcess):
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        for process in processes:
            process.kill()
        psutil.wait_procs(processes, 10)


def printed(outputs: Path) -> Path:
    return outputs.parent / "printed.txt"


def trial(case: Case, outputs: Path, kills: Sequence[Kill], expected: Mapping[str, Any]) -> int:
    """Kill the command at each of `kills`, and repeat it to its end; return how many of them have hit it.

    Raises:
        AssertionError: where it has not survived.
    """
    hits = 0
    for kill in kills:
        hits += not is_over(outputs) and case.run(outputs, kill) != 0
        if kill.sync_seconds is not None:
            run(outputs, "sync", f"--outputs={outputs}", kill=after(kill.sync_seconds))
    if not is_over(outputs):
        has_finished = any(Summary.read(path.parent).status == "FINISHED" for path in outputs.glob(f"runs/*/*/{NAME}"))
        before = len(printed(outputs).read_text())
        code = case.run(outputs)
        told = printed(outputs).read_text()[before:]
        assert code == 0, f"exit code {code}: {told[-2000:]}"
        assert not (has_finished and re.search(r"^epoch ", told, re.MULTILINE)), "trained again"
    found = case.results(outputs)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_allclose(found[name], value, rtol=0, atol=case.tolerance, err_msg=name)
        else:
            assert found[name] == value, name
    return hits


def is_over(outputs: Path) -> bool:
    """Whether the command has done everything: typed again, it would begin anew."""
    runs = [path.parent for path in outputs.glob(f"runs/*/*/{NAME}")]
    sweeps = [path.parent for path in outputs.glob(f"sweeps/*/{INDEX}")]
    is_closed = any(Summary.read(folder).status == "FINISHED" and Journal(folder).is_closed for folder in runs)
    return is_closed or any(read_index(folder).status == "FINISHED" for folder in sweeps)


def recorded(outputs: Path, count: int = 1) -> tuple[mlflow.MlflowClient, list[Run]]:
    """Return the store and its runs; assert that each is there once, FINISHED, with no step of a metric twice."""
    client = mlflow.MlflowClient(f"sqlite:///{outputs}/mlflow.db")
    [own] = client.search_experiments(filter_string="name != 'Default'")
    runs: list[Run] = list(client.search_runs([own.experiment_id]))
    assert [run.info.status for run in runs] == ["FINISHED"] * count, [run.info.run_name for run in runs]
    for run in runs:
        for name in run.data.metrics:
            steps = [point.step for point in client.get_metric_history(run.info.run_id, name)]
            assert len(steps) == len(set(steps)), (run.info.run_name, name, steps)
    return client, runs


def assert_whole_run(outputs: Path) -> Summary:
    """Asserts that the store and the only run's folder tell the same whole story; returns the summary."""
    client, [run] = recorded(outputs)
    [path] = outputs.glob(f"runs/*/*/{NAME}")
    summary = Summary.read(path.parent)
    assert (summary.status, summary.run_id) == ("FINISHED", run.info.run_id)
    epochs = range(1, int(summary.metrics["train/last_epoch"]) + 1)
    for name in ("train/loss", "val/loss", "train/accuracy", "val/accuracy"):
        assert [point.step for point in client.get_metric_history(run.info.run_id, name)] == [*epochs], name
    for name in ("train/loss", "val/loss", "test/loss", "test/accuracy", "export/max_abs_diff"):
        assert run.data.metrics.get(name) == summary.metrics.get(name), name
    models = client.search_logged_models([run.info.experiment_id])
    assert [str(model.status) for model in models] == ["READY"] * bool(summary.exported), models
    files = {entry.path for entry in client.list_artifacts(run.info.run_id)}
    assert {"config.yaml", "summary.json", "pipeline.log", "plots"} <= files
    assert Journal(path.parent).is_closed
    return summary


def is_of_machine(name: str) -> bool:
    """Whether a metric depends on the machine and its load, not on the training."""
    is_time = name.endswith(("seconds", "_per_second", "_wait_fraction", "_mib"))
    return is_time or name.startswith(("memory/", "system/"))


def of_run(outputs: Path) -> dict[str, Any]:
    """Return weights, states and history of the only run."""
    folder = assert_whole_run(outputs).folder
    with np.load(sorted((folder / "checkpoints").glob("step-*.npz"))[-1], allow_pickle=False) as file:
        found = {name: file[name] for name in file.files if name.split(".")[0] in ("model", "optimizer", AVERAGES)}
    client, [run] = recorded(outputs)
    for name in run.data.metrics:
        if not is_of_machine(name):
            points = client.get_metric_history(run.info.run_id, name)
            found[name] = np.array(sorted((point.step, point.value) for point in points))
    return found


def of_sweep(outputs: Path) -> dict[str, Any]:
    """Return each job's metrics."""
    _, runs = recorded(outputs, 1 + JOBS)
    summaries = [Summary.read(path.parent) for path in outputs.glob(f"sweeps/*/*/{NAME}")]
    jobs = {run.info.run_id for run in runs if "mlflow.parentRunId" in run.data.tags}
    assert {summary.run_id for summary in summaries} == jobs
    return {
        summary.overrides[0]: {name: value for name, value in summary.metrics.items() if not is_of_machine(name)}
        for summary in summaries
    }


def of_search(outputs: Path) -> dict[str, Any]:
    """Return the trials and the best of them, of which the store has one more run: that which tests it."""
    recorded(outputs, 2 + JOBS)
    [file] = outputs.glob(f"sweeps/*/{STUDY}")
    study = optuna.load_study(study_name="search", storage=open_storage(file))
    trials = [(trial.params, trial.state.name, trial.values, trial.intermediate_values) for trial in study.trials]
    assert len(trials) == JOBS, trials
    return {"trials": trials, "best": read_index(file.parent).facts["search"]}


CASES = {
    "one_device": Case(RUN, of_run),
    "mirrored": Case((*RUN, "strategy=mirrored", *TRAINED), of_run),
    "multi_worker": Case(
        (*RUN, "strategy=multi_worker", "model.network.dropout=0", *TRAINED), of_run, workers=2, tolerance=1e-6
    ),
    "sweep": Case(SWEEP, of_sweep),
    "sweep_at_once": Case((*SWEEP, "sweep.n_jobs=2"), of_sweep),
    "search": Case(SEARCH, of_search),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.chaos.faults", description=__doc__)
    parser.add_argument("--case", choices=CASES, action="append", help="all of them if left out")
    parser.add_argument("--kills", type=int, default=10, help="of each; some trials have a second one")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    lost = 0
    with tempfile.TemporaryDirectory() as folder:
        Store(TrackingSettings(kind="local"), Path(folder)).client()

        def fresh() -> Path:
            return outputs_in(Path(tempfile.mkdtemp(dir=folder)), Path(folder) / "mlflow.db")

        for name in given.case or CASES:
            case, chance, seconds = CASES[name], random.Random(given.seed), []
            for _ in range(2):  # the first one pays for imports
                outputs, began = fresh(), time.monotonic()
                assert case.run(outputs) == 0, printed(outputs).read_text()
                seconds.append(time.monotonic() - began)
            expected = case.results(outputs)
            print(f"{name}: {seconds[-1]:.1f} s, seed {given.seed}", flush=True)
            for index in range(given.kills):
                kills = [case.kill(chance, index, seconds[-1]), after(seconds[-1] * chance.random())][: 1 + index % 2]
                try:
                    told = f"survived {trial(case, fresh(), kills, expected)}"
                except AssertionError as error:
                    lost += 1
                    told = f"LOST: {error}"
                print(f"  {'; '.join(kill.name for kill in kills)}: {told}", flush=True)
    print(f"{lost} lost", flush=True)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
