"""`python -m tests.chaos.faults`: kills real runs at random moments, repeats the command, compares the results.

A run is a process of its own (a cluster of them under `multi_worker`), killed by SIGKILL: after a step, in the end
of an epoch, or while a checkpoint is being written. It has survived where the second command ends with the weights, the
optimizer's state and the metric history in MLflow of a run that nobody killed: to the bit on one device and several,
within 1e-6 on several workers.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import mlflow
import numpy as np

from pipeline.config.schemas import TrackingSettings
from pipeline.run_folder.summary import NAME, Summary
from pipeline.tracking.store import Store
from stages.checkpoints.state import EMA
from stages.storage.atomic import PARTIAL
from tests.chaos.command import command, prepared
from tests.pipeline.experiments import TRAINED

EPOCHS, STEPS = 5, 7
EVERY_STEPS = 3
GIVEN = (
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
    *TRAINED,
)
STRATEGIES = {
    "one_device": ("strategy=one_device", "deterministic=true"),
    "mirrored": ("strategy=mirrored", "deterministic=true"),
    "multi_worker": ("strategy=multi_worker", "deterministic=true", "model.network.dropout=0"),
}
OF_MACHINE = ("memory/", "system/")
"""Prefixes of metrics that the machine decides, not the training."""

TOLERANCE = {"one_device": 0.0, "mirrored": 0.0, "multi_worker": 1e-6}


@dataclass(frozen=True)
class Fault:
    """kind: `step`, `epoch_end` or `writing`; number: which of them; worker: of the process that is killed."""

    kind: str
    number: int
    worker: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.number:3}, worker {self.worker}"


@dataclass(frozen=True)
class Outcome:
    """What a command left behind. history: of each metric that is no time, (step, value); seconds: that it took."""

    code: int
    seconds: float
    summary: Summary
    weights: np.ndarray
    history: dict[str, list[tuple[int, float]]]

    def difference(self, other: "Outcome") -> float:
        """Returns the largest difference between the weights and states, or infinity where shapes differ."""
        if self.weights.shape != other.weights.shape:
            return float("inf")
        return float(np.max(np.abs(self.weights - other.weights)))


def faults(seed: int, count: int, workers: int) -> Iterator[Fault]:
    """Yields `count` faults, of which every fifth is in a checkpoint's writing and every fifth in an epoch's end."""
    chance = random.Random(seed)
    for index in range(count):
        worker = chance.randrange(workers)
        if index % 5 == 3:
            yield Fault("writing", chance.randint(1, EPOCHS * STEPS // EVERY_STEPS - 2))
        elif index % 5 == 4:
            yield Fault("epoch_end", chance.randint(1, EPOCHS), worker)
        else:
            yield Fault("step", chance.randint(1, EPOCHS * STEPS - 1), worker)


def run(strategy: str, outputs: Path, fault: Fault | None = None) -> tuple[int, float]:
    """Runs the command and returns its exit code (-9: killed) and the seconds that it took."""
    given = (*STRATEGIES[strategy], *GIVEN, f"outputs={outputs}")
    variables = {}
    if fault is not None and fault.kind != "writing":
        variables = {"FAULT": f"{fault.kind}:{fault.number}", "FAULT_WORKER": str(fault.worker)}
    began = time.monotonic()
    code = command(outputs, *given, variables=variables, kill=lambda seconds: _is_writing(outputs, fault))
    return code, time.monotonic() - began


def outcome(strategy: str, outputs: Path, code: int, seconds: float) -> Outcome:
    """Returns what the only run in `outputs` came to."""
    [path] = outputs.glob(f"runs/*/*/{NAME}")
    summary = Summary.read(path.parent)
    last = sorted((path.parent / "checkpoints").glob("step-*.npz"))[-1]
    with np.load(last, allow_pickle=False) as file:
        kept = [file[name] for name in sorted(file.files) if name.split(".")[0] in ("model", "optimizer", EMA)]
    client = mlflow.MlflowClient(f"sqlite:///{outputs}/mlflow.db")
    [own] = client.search_experiments(filter_string="name != 'Default'")
    [tracked] = client.search_runs([own.experiment_id])
    assert (tracked.info.status, tracked.info.run_id) == (summary.status, summary.run_id)
    history = {}
    for name in tracked.data.metrics:
        if name.startswith(OF_MACHINE) or name.endswith("/seconds"):  # short stages have none
            continue
        is_of_machine = name.endswith(("seconds", "_per_second", "_wait_fraction", "_mib"))
        points = client.get_metric_history(tracked.info.run_id, name)
        history[name] = sorted((point.step, 0.0 if is_of_machine else point.value) for point in points)
    weights = np.concatenate([array.ravel().astype(np.float64) for array in kept])
    return Outcome(code, seconds, summary, weights, history)


def trial(strategy: str, kills: Sequence[Fault], store: Path, expected: Outcome) -> tuple[str | None, Outcome, float]:
    """Kills a run at each of `kills` and runs it to its end; returns what is wrong (None: nothing), the outcome and
    all seconds it took.
    """
    before = 0.0
    with tempfile.TemporaryDirectory() as folder:
        outputs = prepared(Path(folder), store)
        for fault in kills:
            code, seconds = run(strategy, outputs, fault)
            before += seconds
            if code == 0:  # the moment was missed
                return f"nobody was killed: {fault}", outcome(strategy, outputs, code, before), before
        code, after = run(strategy, outputs)
        found = outcome(strategy, outputs, code, after)
    if code or found.summary.status != "FINISHED":
        return f"exit code {code}, {found.summary.status}", found, before + after
    difference = found.difference(expected)
    if difference > TOLERANCE[strategy]:
        return f"weights differ by {difference}", found, before + after
    wrong = [name for name in expected.history if not _alike(strategy, found.history[name], expected.history[name])]
    return (f"other histories: {', '.join(wrong)}" if wrong else None), found, before + after


def _alike(strategy: str, found: list[tuple[int, float]], expected: list[tuple[int, float]]) -> bool:
    same_steps = [step for step, _ in found] == [step for step, _ in expected]
    tolerance = TOLERANCE[strategy]
    return same_steps and all(abs(a - b) <= tolerance for (_, a), (_, b) in zip(found, expected, strict=True))


def _is_writing(outputs: Path, fault: Fault | None) -> bool:
    """Returns whether the run writes its checkpoint of the fault's number, or a later one that is seen in time.

    Its temporary name, `.partial-step-00000048.npz`, is there then.
    """
    if fault is None or fault.kind != "writing":
        return False
    names = [path.name for path in outputs.glob(f"runs/*/*/checkpoints/{PARTIAL}*step-*.npz")]
    return any(int(name[-12:-4]) >= fault.number * EVERY_STEPS for name in names)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.chaos.faults", description=__doc__)
    parser.add_argument("--strategy", choices=list(STRATEGIES), action="append", help="all of them if left out")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    lost = 0
    with tempfile.TemporaryDirectory() as folder:
        Store(TrackingSettings(kind="local"), Path(folder)).client()
        store = Path(folder) / "mlflow.db"
        for strategy in given.strategy or STRATEGIES:
            whole = []
            for _ in range(3):
                outputs = prepared(Path(tempfile.mkdtemp(dir=folder)), store)
                whole.append(outcome(strategy, outputs, *run(strategy, outputs)))
            expected, usual = whole[0], statistics.median(one.seconds for one in whole)
            print(f"{strategy}: {expected.summary.status} in {usual:.1f} s, seed {given.seed}", flush=True)
            survived, seconds, again = 0, [], []
            for fault in faults(given.seed, given.kills, 2 if strategy == "multi_worker" else 1):
                wrong, found, took = trial(strategy, [fault], store, expected)
                survived += wrong is None
                seconds.append(took - usual)
                step = found.summary.resumed_from_step
                if fault.kind == "step":
                    again.append(fault.number - (step or 0))
                print(f"  {fault}: {wrong or f'survived, resumed after step {step}'}, {seconds[-1]:+.1f} s", flush=True)
            cost, repeated = statistics.median(seconds), statistics.median(again)
            print(
                f"{strategy}: survived {survived} of {given.kills} kills; medians: {cost:.1f} s lost a kill, with the "
                f"second command's start, and {repeated:g} steps taken again",
                flush=True,
            )
            lost += given.kills - survived
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
