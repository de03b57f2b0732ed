"""Slots in which jobs run at the same time: the GPUs that each sees, and its part of the processor."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pipeline.config.experiment import Experiment
from pipeline.config.sweep_settings import SweepSettings
from pipeline.console import Console
from pipeline.run.engine import engine_of
from pipeline.system import machine
from pipeline.system.environment import thread_variables
from pipeline.system.processes import LocalProcess, Start
from stages.errors import UserError

GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Slot:
    """visible: the GPUs that a job sees there, as CUDA_VISIBLE_DEVICES has it; threads: its part of the processor's.

    None leaves either as it is. start: starts a process there.
    """

    visible: str | None = None
    threads: int | None = None
    start: Start = LocalProcess

    def environment(self, experiment: Experiment) -> dict[str, str]:
        """Returns the variables of a process that runs `experiment` there."""
        variables = {} if self.visible is None else {GPUS: self.visible}
        threads = {} if self.threads is None else thread_variables(self.threads, experiment.deterministic)
        return variables | threads


def deal_out(settings: SweepSettings, experiments: Sequence[Experiment]) -> list[Slot]:
    """Returns the slots of `settings.n_jobs` jobs, of which all of `experiments` can run in any.

    A single slot with all devices is left as it is. Several divide the GPUs among them, which TensorFlow takes whole,
    and the processor's cores.

    Raises:
        UserError: where there are too few GPUs, or an experiment names one that it would not see.
    """
    count = settings.n_jobs
    each = settings.devices_per_job
    if count > 1:
        _refuse_clusters(experiments)
    if any(experiment.cluster.places_jobs for experiment in experiments):
        _refuse_own_devices(settings, experiments)
        if not all(getattr(experiment.cluster, "wait", True) for experiment in experiments):
            raise UserError(
                "cluster.wait=false with a sweep, which compares its jobs at their end", "", "cluster.wait=true"
            )
        return [Slot(threads=_cores(experiments))] * count
    if count == 1 and each is None:
        return [Slot()]
    visible = _visible_gpus()
    if each is None:
        each = len(visible) // count
        if visible and not each:
            raise UserError(
                f"sweep.n_jobs={count}: there are {len(visible)} GPUs, and a job takes one at least",
                "as many jobs as GPUs, or jobs on the processor",
                f"sweep.n_jobs={len(visible)}",
            )
    if each * count > len(visible):
        raise UserError(
            f"sweep.devices_per_job={each} sweep.n_jobs={count}: {each * count} GPUs, {len(visible)} are there",
            "as many as there are, or 0 for the processor alone",
            f"sweep.n_jobs={max(len(visible) // each, 1)}" if visible else "sweep.devices_per_job=0",
        )
    for experiment in experiments:
        _refuse_unseen(experiment, each, bool(visible))
    threads = max(machine.usable_cores() // count, 1) if count > 1 else None
    shares = [",".join(visible[number * each : (number + 1) * each]) or "-1" for number in range(count)]
    return [Slot(share if visible else None, threads) for share in shares]


@contextmanager
def opened(slots: Sequence[Slot], experiments: Sequence[Experiment], console: Console) -> Iterator[Sequence[Slot]]:
    """Yields `slots` ready for processes, by the engine of the jobs, which keeps them for the time of the block.

    Raises:
        UserError: where the engine has no room for them.
    """
    if experiments[0].cluster.submits_jobs:
        yield slots
        return
    with engine_of(experiments[0]).starts(len(slots), experiments, console) as starts:
        yield [replace(slot, start=start) for slot, start in zip(slots, starts, strict=True)]


def _cores(experiments: Sequence[Experiment]) -> int | None:
    """Returns the cores that an engine gives each of its slots, which any of the jobs may have."""
    each = [experiment.cluster.cores(experiment.members.get("worker", 1)) for experiment in experiments]
    return max((cores for cores in each if cores is not None), default=None)


def _refuse_own_devices(settings: SweepSettings, experiments: Sequence[Experiment]) -> None:
    """Refuses devices of this machine, and different engines, for jobs that an engine places."""
    cluster = experiments[0].choices.get("cluster")
    if settings.devices_per_job is not None:
        raise UserError(
            f"sweep.devices_per_job with cluster={cluster}: jobs get their GPUs from it",
            "the GPUs of each job",
            f"cluster.gpus={settings.devices_per_job}",
        )
    if any(experiment.cluster != experiments[0].cluster for experiment in experiments):
        raise UserError("jobs of a sweep with different clusters", "the same for all of them", f"cluster={cluster}")


def _visible_gpus() -> list[str]:
    """Returns the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    count = len(machine.gpus())
    visible = [part.strip() for part in os.environ.get(GPUS, "").split(",") if part.strip() not in ("", "-1")]
    return visible[:count] if visible else [str(number) for number in range(count)]


def _refuse_unseen(experiment: Experiment, each: int, are_there: bool) -> None:
    for path, name in _devices(experiment):
        gpu = re.fullmatch(r"/?(?:device:)?gpu:(\d+)", name, re.IGNORECASE)
        if gpu and int(gpu.group(1)) >= each and are_there:
            seen = "no GPU" if not each else f"/gpu:0 to /gpu:{each - 1}"
            raise UserError(
                f"{path}={name}: with sweep.n_jobs and sweep.devices_per_job each job sees {seen}",
                "GPUs counted from 0 within the job",
                f"sweep.devices_per_job={int(gpu.group(1)) + 1}",
            )


def _devices(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yields the devices that an experiment's strategy names, each with the setting that names it."""
    settings: Any = experiment.settings.get("strategy")
    for setting in ("device", "devices", "parameter_device"):
        named = getattr(settings, setting, None) or []
        for name in [named] if isinstance(named, str) else named:
            yield f"strategy.{setting}", name


def _refuse_clusters(experiments: Sequence[Experiment]) -> None:
    for experiment in experiments:
        is_whole = not experiment.cluster.takes_several
        if is_whole or experiment.choices.get("strategy") == "tpu":
            setting = f"cluster={experiment.choices.get('cluster')}" if is_whole else "strategy=tpu"
            raise UserError(
                f"sweep.n_jobs with {setting}: each job takes the whole of it", "one at a time", "sweep.n_jobs=1"
            )
