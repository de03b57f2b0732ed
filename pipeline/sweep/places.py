"""Places where jobs run at the same time: the GPUs that each sees, and its part of the processor."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.config.experiment import Experiment
from pipeline.config.sweep_settings import SweepSettings
from pipeline.system import machine
from stages.errors import UserError

THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
"""Read by TensorFlow's first operation in a process."""

GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Place:
    """visible: the GPUs that a job sees there, as CUDA_VISIBLE_DEVICES has it; threads: its part of the processor's.

    None leaves either as it is.
    """

    visible: str | None = None
    threads: int | None = None

    def environment(self, experiment: Experiment) -> dict[str, str]:
        """Returns the variables of a process that runs `experiment` there.

        Threads that the user has set stay as they are. A deterministic experiment has all threads in any place: how
        TensorFlow divides a sum among threads decides its last bits.
        """
        variables = {} if self.visible is None else {GPUS: self.visible}
        if self.threads is not None and not experiment.deterministic:
            variables |= {name: str(self.threads) for name in THREADS if name not in os.environ}
        return variables


def deal_out(settings: SweepSettings, experiments: Sequence[Experiment]) -> list[Place]:
    """Returns the places of `settings.n_jobs` jobs, of which all of `experiments` can run in any.

    A single place with all devices is left as it is. Several divide the GPUs among them, which TensorFlow takes whole,
    and the processor's cores.

    Raises:
        UserError: where there are too few GPUs, or an experiment names one that it would not see.
    """
    count, each = settings.n_jobs, settings.devices_per_job
    if count > 1:
        _refuse_clusters(experiments)
    if count == 1 and each is None:
        return [Place()]
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
    return [Place(share if visible else None, threads) for share in shares]


def _visible_gpus() -> list[str]:
    """Returns the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    count = len(machine.gpus())
    given = [part.strip() for part in os.environ.get(GPUS, "").split(",") if part.strip() not in ("", "-1")]
    return given[:count] if given else [str(number) for number in range(count)]


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
            what = f"cluster={experiment.choices.get('cluster')}" if is_whole else "strategy=tpu"
            raise UserError(
                f"sweep.n_jobs with {what}: each job takes the whole of it", "one at a time", "sweep.n_jobs=1"
            )
