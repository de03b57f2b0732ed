"""Slots in which jobs run at the same time: the GPUs that each sees, and its part of the processor."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.config.cluster import JoinedCluster
from pipeline.config.experiment import Experiment
from pipeline.config.sweep import SweepSettings
from pipeline.system import machine
from pipeline.system.environment import thread_variables
from stages.errors import UserError

GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Slot:
    """A part of the machine."""

    visible: str | None = None  # the GPUs that a job sees there, as CUDA_VISIBLE_DEVICES has it; None: as they are
    threads: int | None = None  # its part of the processor's; None: as they are

    def environment(self, experiment: Experiment) -> dict[str, str]:
        """Return the variables of a process that runs `experiment` there."""
        variables = {} if self.visible is None else {GPUS: self.visible}
        threads = {} if self.threads is None else thread_variables(self.threads, experiment.deterministic)
        return variables | threads


def deal_out(settings: SweepSettings, experiments: Sequence[Experiment]) -> list[Slot]:
    """Return the slots of `settings.n_jobs` jobs, of which all of `experiments` can run in any.

    A single slot with all devices is left as it is. Several divide the GPUs among them, which TensorFlow takes whole,
    and the processor's cores.

    Raises:
        UserError: where there are too few GPUs, or jobs cannot run beside each other.
    """
    count, each = settings.n_jobs, settings.devices_per_job
    for experiment in experiments if count > 1 else ():
        if isinstance(experiment.cluster, JoinedCluster) or experiment.choices.get("strategy") == "tpu":
            own = " ".join(f"{name}={experiment.choices.get(name)}" for name in ("strategy", "cluster"))
            raise UserError(f"sweep.n_jobs with {own}: each job takes the whole of it", "", "sweep.n_jobs=1")
    if any(experiment.cluster.submits_jobs for experiment in experiments):
        _refuse_own_devices(settings, experiments)
        return [Slot()] * count
    if count == 1 and each is None:
        return [Slot()]
    visible = _visible_gpus()
    if each is None:
        each = max(len(visible) // count, 1) if visible else 0
    if each * count > len(visible):
        raise UserError(
            f"{count} jobs at a time with {each} GPUs each: {each * count} GPUs, {len(visible)} are there",
            "as many as there are, or sweep.devices_per_job=0 for the processor alone",
            f"sweep.n_jobs={max(len(visible) // each, 1)}" if visible else "sweep.devices_per_job=0",
        )
    threads = max(machine.usable_cores() // count, 1) if count > 1 else None
    shares = [",".join(visible[number * each : (number + 1) * each]) or "-1" for number in range(count)]
    return [Slot(share if visible else None, threads) for share in shares]


def _refuse_own_devices(settings: SweepSettings, experiments: Sequence[Experiment]) -> None:
    """Refuse devices of this machine, other engines, or no end that is waited for, where an engine places the jobs."""
    cluster, option = experiments[0].cluster, experiments[0].choices.get("cluster")
    if settings.devices_per_job is not None:
        problem, fix = "jobs get their GPUs from it", f"cluster.gpus={settings.devices_per_job}"
        raise UserError(f"sweep.devices_per_job with cluster={option}: {problem}", "the GPUs of each job", fix)
    if any(experiment.cluster != cluster for experiment in experiments):
        raise UserError("jobs of a sweep with different clusters", "the same for all of them", f"cluster={option}")
    if not getattr(cluster, "wait", True):
        problem = "cluster.wait=false with a sweep, which compares its jobs at their end"
        raise UserError(problem, "", "cluster.wait=true")


def _visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    count = len(machine.gpus())
    visible = [part.strip() for part in os.environ.get(GPUS, "").split(",") if part.strip() not in ("", "-1")]
    return visible[:count] if visible else [str(number) for number in range(count)]
