"""Slots: the parts of a machine in which the jobs of a sweep run at the same time."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.config.cluster import JoinedCluster
from pipeline.config.experiment import Experiment
from pipeline.config.schemas import SweepSettings
from pipeline.system import machine
from pipeline.system.environment import thread_variables
from stages.errors import UserError


@dataclass(frozen=True)
class Slot:
    """A part of the machine, for one job."""

    visible: str | None = None
    """The GPUs that the job sees, as the value of CUDA_VISIBLE_DEVICES. None leaves the variable unchanged."""
    threads: int | None = None
    """The number of threads of the job. None leaves the variables that limit threads unchanged."""

    def environment(self, experiment: Experiment) -> dict[str, str]:
        """Return the environment variables of a process that runs `experiment` in this slot."""
        variables = {} if self.visible is None else {machine.GPUS: self.visible}
        threads = {} if self.threads is None else thread_variables(self.threads, experiment.deterministic)
        return variables | threads


def deal_out(settings: SweepSettings, experiments: Sequence[Experiment]) -> list[Slot]:
    """Return a slot for each of `settings.n_jobs` jobs. Every experiment can run in every slot.

    A single slot has all devices. Several slots divide the GPUs and the cores of the machine among them. If there are
    more jobs than GPUs, jobs share GPUs, which works because TensorFlow allocates memory as needed. `devices_per_job`
    gives each job GPUs that no other job uses.

    Raises:
        UserError: If there are too few GPUs, or if the jobs cannot run at the same time.
    """
    count, each = settings.n_jobs, settings.devices_per_job
    for experiment in experiments if count > 1 else ():
        if _takes_all(experiment):
            own = " ".join(f"{name}={experiment.choices.get(name)}" for name in ("strategy", "cluster"))
            raise UserError(f"sweep.n_jobs is not supported with {own}: each job uses all of it", "", "sweep.n_jobs=1")
    if any(experiment.cluster.submits_jobs for experiment in experiments):
        if each is not None:
            fix = f"cluster.{'gpus' if hasattr(experiments[0].cluster, 'gpus') else 'gpus_per_task'}={each}"
            raise UserError("sweep.devices_per_job has no effect: jobs get their GPUs from the cluster", "", fix)
        if not all(getattr(experiment.cluster, "wait", True) for experiment in experiments):
            raise UserError(
                "cluster.wait=false is not supported in a sweep, which compares its jobs at the end",
                "",
                "cluster.wait=true",
            )
        return [Slot()] * count
    if count == 1 and each is None:
        return [Slot()]
    visible = machine.visible_gpus()
    threads = max(machine.usable_cores() // count, 1) if count > 1 else None
    if each is None and 0 < len(visible) < count:
        return [Slot(visible[number % len(visible)], threads) for number in range(count)]
    if each is None:
        each = len(visible) // count
    if each * count > len(visible):
        problem = (
            f"{count} jobs at a time with {each} GPUs each need {each * count} GPUs, but {len(visible)} are visible"
        )
        fix = f"sweep.n_jobs={max(len(visible) // each, 1)}" if visible else "sweep.devices_per_job=0"
        raise UserError(problem, "at most as many as are visible, or sweep.devices_per_job=0 to use CPUs only", fix)
    shares = [",".join(visible[number * each : (number + 1) * each]) or "-1" for number in range(count)]
    return [Slot(share if visible else None, threads) for share in shares]


def _takes_all(experiment: Experiment) -> bool:
    return isinstance(experiment.cluster, JoinedCluster) or experiment.choices.get("strategy") == "tpu"


def may_overlap(slots: Sequence[Slot], experiments: Sequence[Experiment]) -> bool:
    """Return whether a job may begin while the previous job, which holds its devices, is evaluated and exported."""
    fits = len(slots) == 1 and machine.usable_cores() > 1 and not machine.gpus()
    return fits and not any(job.members or job.cluster.submits_jobs or _takes_all(job) for job in experiments)
