"""Rows of speeds: a network in a precision, with and without XLA, against Keras' `fit` and PyTorch."""

import statistics
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from benchmarks.gpu.answering import Answerer, Budget, Failed, OutOfTime
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.plan import STEPS_COMPARED, TOLERANCES, Network, Plan, Precision
from benchmarks.gpu.report import FAILED, LAWS, Report, Row, Skipped
from benchmarks.measuring import Figures, interleave, ratios

LEAST_BATCH = 4
ROW_SECONDS = 120.0
"""Limit of a row: float16 on a CPU, or a compilation that does not end, would use up the whole budget."""

MARGIN_SECONDS = 5.0
"""Time that a row leaves for writing results."""


class Speeds:
    """Measures the networks of a plan."""

    def __init__(self, machine: Machine, plan: Plan, budget: Budget, report: Report) -> None:
        self._machine, self._plan, self._budget, self._report = machine, plan, budget, report
        self._needed: dict[tuple[str, bool], float] = {}

    def measure(self, network: Network, weights: bool, speed: bool) -> None:
        """Measure all rows of a network: how its weights differ from the CPU's, and its speed, or one of them."""
        weights = weights and network.name in ("cnn", "resnet20")
        for precision, jit in self._plan.rows[network]:
            chosen = Chosen(self._machine.worker, network, precision, jit)
            name = f"{precision.name}, XLA {'on' if jit else 'off'}"
            if weights:
                with self._report.row(LAWS, f"{network.name}: weights, {name}") as row:
                    self._refuse(precision)
                    self._compare(row, chosen)
            if speed:
                with self._report.row(network.name, name) as row, self._budget.row(ROW_SECONDS):
                    row.values |= {"precision": precision.name, "jit": "on" if jit else "off"}
                    self._refuse(precision)
                    self._time(row, chosen)

    def _refuse(self, precision: Precision) -> None:
        self._budget.need(MARGIN_SECONDS)
        if precision.policy == "float32" and precision.tf32 and self._machine.why_no_tf32:
            raise Skipped(self._machine.why_no_tf32)

    def _compare(self, row: Row, chosen: "Chosen") -> None:
        tolerance = TOLERANCES[chosen.precision]
        compared = f"weights after {STEPS_COMPARED} steps against the CPU in float32"
        row.values |= {"compared": compared, "tolerance": tolerance.value, "reason": tolerance.reason}
        row.values["value"] = value = chosen.ask("compare_weights", steps=STEPS_COMPARED)
        if not value <= tolerance.value:
            row.status = FAILED

    def _time(self, row: Row, chosen: "Chosen") -> None:
        """Time a row in rounds in which all ways take turns, as many rounds as fit."""
        kind = (chosen.network.name, chosen.jit)
        self._budget.need(self._needed.get(kind, 0.0) + MARGIN_SECONDS)
        began = self._budget.used
        first = chosen.warm_up("ours")
        network = chosen.network  # its batch may be smaller now
        per_step = {"ours": first["seconds_per_step"]}
        row.values |= {"batch": network.batch, "peak_mib": first["peak_mib"] or "n/a"}
        row.values["size"] = f"{network.side}×{network.side}×{network.channels}, batch {network.batch}"
        starts: dict[str, Callable[[], Any]] = {"keras": lambda: chosen.warm_up("keras")}
        if self._machine.why_no_pytorch:
            row.values["pytorch_images_per_second"] = self._machine.why_no_pytorch
        else:
            starts["pytorch"] = lambda: self._machine.pytorch.ask("warm_up", **self._for_pytorch(chosen))
        for way, start in starts.items():
            try:
                per_step[way] = start()["seconds_per_step"]
            except Failed as error:
                row.values[f"{way}_images_per_second"] = str(error)
        self._needed[kind] = max(self._needed.get(kind, 0.0), self._budget.used - began)
        steps = {way: max(int(self._plan.round_seconds / seconds), 1) for way, seconds in per_step.items()}
        round_seconds = sum(steps[way] * seconds for way, seconds in per_step.items()) * 1.2
        rounds = min(int((self._budget.left - MARGIN_SECONDS) / round_seconds), self._plan.rounds)
        if rounds < 1:
            raise OutOfTime
        samples = interleave({way: self._way(chosen, way, count) for way, count in steps.items()}, rounds)
        row.values |= summarized(samples, network.batch) | {"rounds": rounds}

    def _way(self, chosen: "Chosen", way: str, steps: int) -> Callable[[], Figures]:
        def run() -> Figures:
            if way == "pytorch":
                figures = self._machine.pytorch.ask("take_steps", steps=steps)
            else:
                figures = chosen.ask("take_steps", way=way, steps=steps)
            return {"step": figures["seconds"] / steps, "waited": figures.get("waited", 0.0) / figures["seconds"]}

        return run

    def _for_pytorch(self, chosen: "Chosen") -> dict[str, Any]:
        precision = chosen.precision
        return {"network": asdict(chosen.network), "policy": precision.policy, "tf32": precision.tf32}


class Chosen:
    """A network in a precision, with or without XLA, that the worker builds when it is first needed."""

    def __init__(self, worker: Answerer, network: Network, precision: Precision, jit: bool) -> None:
        self.network, self.precision, self.jit = network, precision, jit
        self._worker = worker
        self._is_built = False

    def ask(self, name: str, **arguments: object) -> Any:
        """Return what the worker answers, with this network built. After an error it is built again."""
        try:
            if not self._is_built:
                precision = self.precision
                self._worker.ask(
                    "choose", network=asdict(self.network), policy=precision.policy, tf32=precision.tf32, jit=self.jit
                )
                self._is_built = True
            return self._worker.ask(name, **arguments)
        except Failed:
            self._is_built = False
            raise

    def warm_up(self, way: str) -> dict[str, Any]:
        """Take the first steps; if memory runs out, with half the batch."""
        while True:
            try:
                result: dict[str, Any] = self.ask("warm_up", way=way)
                return result
            except Failed as error:
                if way != "ours" or "ResourceExhausted" not in str(error) or self.network.batch < 2 * LEAST_BATCH:
                    raise
                self.network = replace(self.network, batch=self.network.batch // 2)


def summarized(samples: Any, batch: int) -> dict[str, Any]:
    """Return the medians of the rounds, and the median of each round's ratio to Keras and PyTorch."""
    ours = samples["ours"]["step"]
    step = statistics.median(ours)
    values: dict[str, Any] = {
        "images_per_second": batch / step,
        "milliseconds": 1000 * step,
        "input_wait": f"{statistics.median(samples['ours']['waited']):.0%}",
    }
    for way in samples.keys() - {"ours"}:
        theirs = samples[way]["step"]
        values[f"{way}_images_per_second"] = batch / statistics.median(theirs)
        values[f"against_{way}"] = statistics.median(ratios(theirs, ours))
    return values


def cost_of_determinism(machine: Machine, other: Answerer, plan: Plan, network: Network) -> float:
    """Return the median time of a step with `deterministic=true`, divided by that without, in float32."""
    precision = plan.rows[network][0][0]
    jit = bool(machine.gpus)  # as train.jit=auto
    per_step = {}
    for name, worker in (("without", machine.worker), ("with", other)):
        chosen = Chosen(worker, network, precision, jit)
        per_step[name] = chosen.warm_up("ours")["seconds_per_step"]
    steps = max(int(plan.round_seconds / max(per_step.values())), 1)

    def way(worker: Answerer) -> Callable[[], Figures]:
        return lambda: {"step": worker.ask("take_steps", way="ours", steps=steps)["seconds"] / steps}

    samples = interleave({"without": way(machine.worker), "with": way(other)}, plan.rounds)
    return statistics.median(ratios(samples["with"]["step"], samples["without"]["step"]))
