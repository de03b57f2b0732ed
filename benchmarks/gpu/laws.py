"""Rows of laws on real runs of the pipeline: repeated, killed and resumed, with two strategies, and exported."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.answering import Answerer, Budget, Failed, OutOfTime
from benchmarks.gpu.machine import Machine, worker
from benchmarks.gpu.plan import Plan
from benchmarks.gpu.report import FAILED, LAWS, Report, Row
from benchmarks.gpu.speeds import cost_of_determinism
from benchmarks.processes import ROOT
from pipeline.system.machine import GPUS

LIMIT_SECONDS = 180.0
"""Time after which a run on a GPU counts as hanging. On a CPU it has the whole budget."""

KILLED = -9
NAMES = ("deterministic", "resumed", "strategies", "exports", "overflow")
STATE = ("model", "optimizer", "ema")
"""Parts of a checkpoint: weights, the optimizer's state, averages of weights."""

STRATEGIES = ("one_device", "mirrored")
LARGEST_DIFFERENCE = 1e-5
"""Between the weights of two strategies after about 30 steps. Later, training amplifies rounding: 1e-3 after 135."""

RELOAD = ROOT / "stages" / "exporters" / "reload.py"
EXAMPLES = 64


@dataclass
class Process:
    """A running command. printed: the file with what it printed."""

    handle: subprocess.Popen[bytes]
    printed: Path
    budget: Budget
    limit: float

    def wait(self, expect: int = 0) -> None:
        """Wait for its end.

        Raises:
            OutOfTime: if the budget ends earlier. The process is killed.
            Failed: if it does not end within its limit, or ends with a different exit code.
        """
        try:
            code = self.handle.wait(max(min(self.budget.left, self.limit), 0.0))
        except subprocess.TimeoutExpired:
            self.kill()
            if self.budget.left <= 0:
                raise OutOfTime from None
            raise Failed(f"{self.printed.name}: no end after {self.limit:g} seconds") from None
        if code != expect:
            lines = [line for line in self.printed.read_text(errors="replace").splitlines() if line.strip()]
            error = next((line for line in lines if line.startswith("error:")), lines[-1] if lines else "no message")
            raise Failed(f"{self.printed.name}: exit code {code}: {error[:200]}")

    def kill(self) -> None:
        self.handle.kill()
        self.handle.wait()


class Runs:
    """Runs of the pipeline in `folder`, started when they are first needed, several at the same time."""

    def __init__(self, folder: Path, plan: Plan, budget: Budget, gpus: int) -> None:
        self.folder, self._plan, self._budget, self._gpus = folder, plan, budget, gpus
        self._processes: dict[str, Process] = {}
        self._problems: dict[str, Failed] = {}
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def start_all(self, names: set[str]) -> None:
        """Start runs, those that do not depend on each other at the same time."""
        for name in sorted(names - {"resumed"}):
            self.start(name)
        if "resumed" in names:
            with suppress(Failed, OutOfTime):  # the row of the law reports it
                self.ended("killed")
                self.start("resumed")

    def start(self, name: str) -> None:
        """Start a run, unless it has been started."""
        if name in self._processes:
            return
        plan, outputs = self._plan, self.outputs(name)
        export = () if name == "first" else ("pipeline.export=null",)
        arguments = (*plan.run, *export, f"outputs={outputs}", "strategy=one_device")
        variables = {}
        match name:
            case "killed":
                variables["FAULT"] = f"step:{plan.kill_step}"
            case "sweep":
                jobs = f"strategy={','.join(STRATEGIES)}", "sweep.n_jobs=2"  # which share the GPU if there is one
                arguments = ("-m", *arguments[:-1], *jobs)
        self._processes[name] = self.command(name, "-m", "pipeline", *arguments, variables=variables)

    def command(
        self, name: str, *arguments: str, stdin: bytes = b"", variables: Mapping[str, str] | None = None
    ) -> Process:
        """Start a process of this Python. variables: of its environment, in addition to this one's."""
        path = self.folder / f"{name}.txt"
        source = self.folder / f"{name}.json"
        source.write_bytes(stdin)
        with path.open("wb") as printed, source.open("rb") as lines:
            handle = subprocess.Popen(
                (sys.executable, *arguments), cwd=ROOT, stdin=lines, stdout=printed, stderr=subprocess.STDOUT,
                env={**os.environ, **(variables or {})},
            )  # fmt: skip
        return Process(handle, path, self._budget, LIMIT_SECONDS if self._gpus else self._budget.seconds)

    def ended(self, name: str) -> Path:
        """Wait for the end of a run, and return its outputs.

        Raises:
            OutOfTime: if the budget ends earlier.
            Failed: if the run does not end as it should.
        """
        self.start(name)
        if name in self._problems:
            raise self._problems[name]
        try:
            self._processes[name].wait(KILLED if name == "killed" else 0)
        except Failed as error:
            self._problems[name] = error
            raise
        return self.outputs(name)

    def outputs(self, name: str) -> Path:
        """Return the outputs of a run; those of the resumed run are those of the killed one."""
        return self.folder / ("killed" if name == "resumed" else name)

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()


def check(chosen: Collection[str], machine: Machine, plan: Plan, report: Report, folder: Path, budget: Budget) -> None:
    """Check the chosen laws, one row each."""
    runs = Runs(folder / "runs", plan, budget, len(machine.gpus))
    laws: dict[str, Law] = {
        "deterministic": Law(
            "deterministic=true, twice: equal weights", ("first", "sweep"), lambda row: _deterministic(row, runs)
        ),
        "resumed": Law(
            "killed and resumed: equal weights", ("first", "killed", "resumed"), lambda row: _resumed(row, runs)
        ),
        "strategies": Law("strategy=mirrored: weights", ("sweep",), lambda row: _strategies(row, runs)),
        "exports": Law(
            "the SavedModel, reloaded on the CPU: predictions", ("first",),
            lambda row: _exports(row, runs, machine.worker, plan),
        ),
    }  # fmt: skip
    wanted = [law for name, law in laws.items() if name in chosen]
    try:
        if budget.left > 0:
            runs.start_all({run for law in wanted for run in law.runs})
        for law in wanted:
            with report.row(LAWS, law.title) as row:
                budget.need()
                law.check(row)
    finally:
        runs.close()
    if "overflow" in chosen:
        with report.row(LAWS, "mixed_float16: a step that overflows is skipped") as row:
            _overflow(row, machine)
    if "deterministic" in chosen:
        with report.row(LAWS, "deterministic=true: time per step, relative to false") as row:
            budget.need()
            other = worker(folder, budget, "--deterministic")
            try:
                network = list(plan.rows)[1 if machine.gpus else 0]
                row.values["compared"] = network.name
                row.values["value"] = cost_of_determinism(machine, other, plan, network)
            finally:
                other.close()


@dataclass(frozen=True)
class Law:
    """A law on runs of the pipeline."""

    title: str
    runs: tuple[str, ...]
    check: Callable[[Row], None]


def _deterministic(row: Row, runs: Runs) -> None:
    _equal(row, runs.ended("first"), job(runs.ended("sweep"), "one_device"))
    row.values["compared"] += ", of a run and of a job of a sweep"


def _equal(row: Row, a: Path, b: Path) -> None:
    row.values |= {"compared": "weights and the optimizer's state at the end", "tolerance": 0.0}
    row.values["value"] = value = largest_difference(a, b)
    if value != 0:
        row.status = FAILED


def _resumed(row: Row, runs: Runs) -> None:
    runs.ended("killed")
    expected, outputs = runs.ended("first"), runs.ended("resumed")
    [summary, *others] = summaries(outputs)
    if others or summary["status"] != "FINISHED" or summary.get("resumed_from_step") is None:
        raise Failed("the killed run was not resumed (resumed.txt)")
    row.values["resumed_from_step"] = summary["resumed_from_step"]
    _equal(row, expected, outputs)


def _strategies(row: Row, runs: Runs) -> None:
    outputs = runs.ended("sweep")
    jobs = summaries(outputs)
    finished = [one for one in jobs if one["status"] == "FINISHED"]
    if len(finished) < len(STRATEGIES):
        raise Failed(f"{len(finished)} of {len(STRATEGIES)} jobs of the sweep are FINISHED")
    losses = [one["metrics"]["val/loss"] for one in jobs]
    row.values |= {
        "compared": "weights at the end, of two jobs of a sweep",
        "tolerance": LARGEST_DIFFERENCE,
        "difference_of_val_loss": abs(losses[0] - losses[1]),
        "replicas": [one["replicas"] for one in jobs],
        "value": largest_difference(job(outputs, "one_device"), job(outputs, "mirrored"), kinds=("model",)),
    }
    if not row.values["value"] <= LARGEST_DIFFERENCE:
        row.status = FAILED


def _exports(row: Row, runs: Runs, steps: Answerer, plan: Plan) -> None:
    outputs = runs.ended("first")
    [summary] = summaries(outputs)
    checked = summary["metrics"].get("export/max_abs_diff")
    if checked is None:
        raise Failed("the run has not compared its export with the model")
    [model] = outputs.glob("runs/*/*/export/saved_model")
    images = np.random.default_rng(1).integers(0, 256, (EXAMPLES, *plan.run_shape), dtype=np.uint8)
    features = runs.folder / "images.npz"
    np.savez(features, images)
    order: dict[str, Any] = {"loader": str(RELOAD), "path": str(model), "batch": EXAMPLES}
    order["features"] = {"path": str(features), "names": ["images"], "texts": {}}
    answers = {name: str(runs.folder / f"answers_{name}.npz") for name in ("cpu", "here")}
    on_cpu = json.dumps([{**order, "answers": answers["cpu"]}]).encode()
    process = runs.command("reload", "-I", str(RELOAD), stdin=on_cpu, variables={GPUS: "-1"})
    try:
        steps.ask("predict", order={**order, "answers": answers["here"]})
        process.wait()
    finally:
        process.kill()
    rows = {name: np.load(path)["rows"] for name, path in answers.items()}
    row.values |= {
        "compared": f"probabilities of {EXAMPLES} images, in a process without this project",
        "tolerance": LARGEST_PROBABILITY,
        "compared_by_the_run": checked,
        "value": float(np.max(np.abs(rows["cpu"] - rows["here"]))),
    }
    if not row.values["value"] <= LARGEST_PROBABILITY:
        row.status = FAILED


LARGEST_PROBABILITY = 1e-4
"""Largest difference of a probability between the GPU and the CPU, in float32 without TF32."""


def _overflow(row: Row, machine: Machine) -> None:
    found = machine.worker.ask("overflow", jit=bool(machine.gpus))
    row.values |= {"compared": "weights before and after the step", "tolerance": 0.0, **found}
    if not found["skipped"]:
        raise Failed("no step was skipped")
    before, after = found["scales"]
    row.values["value"] = found["moved"]
    is_right = found["moved"] == 0 and after == before / 2 and found["moved_later"] > 0 and found["finite"]
    if not is_right:
        row.status, row.reason = FAILED, f"loss scale {before:g} → {after:g}, next step {found['moved_later']:.1e}"


def summaries(outputs: Path) -> list[Mapping[str, Any]]:
    """Return `summary.json` of each run or job in `outputs`, in the order of their folders."""
    found = [*outputs.glob("runs/*/*/summary.json"), *outputs.glob("sweeps/*/*/summary.json")]
    return [json.loads(path.read_text()) for path in sorted(found)]


def job(outputs: Path, strategy: str) -> Path:
    """Return the folder of the job with a strategy."""
    return next(outputs.glob(f"sweeps/*/*strategy={strategy}*"))


def largest_difference(a: Path, b: Path, kinds: Collection[str] = STATE) -> float:
    """Return the largest difference of any number in the last checkpoints below two folders."""
    first, second = final_state(a, kinds), final_state(b, kinds)
    if first.keys() != second.keys():
        raise Failed("the checkpoints do not have the same variables")
    differences = [
        np.max(np.abs(value.astype(np.float64) - second[name].astype(np.float64)), initial=0.0)
        for name, value in first.items()
    ]
    return float(np.max(differences))


def final_state(folder: Path, kinds: Collection[str]) -> dict[str, np.ndarray]:
    """Return the arrays of the last checkpoint below a folder."""
    paths = sorted(folder.rglob("checkpoints/step-*.npz"))
    if not paths:
        raise Failed(f"no checkpoint below {folder.name}")
    with np.load(paths[-1], allow_pickle=False) as file:
        return {name: file[name] for name in file.files if name.split(".")[0] in kinds}
