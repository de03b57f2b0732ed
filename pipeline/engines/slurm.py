"""`cluster=slurm`: this process is one of a Slurm job's tasks, or it submits the job that they are in."""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipeline.console import Console
from pipeline.engines.joined import Joined, task_at
from pipeline.engines.remote import run_elsewhere
from pipeline.engines.slurm_jobs import SlurmJob, submit
from pipeline.planning.job import Job
from pipeline.planning.plan import PlannedStage
from pipeline.run.engine import Task
from stages.errors import UserError
from stages.settings.strategy import StrategySettings

FIRST_PORT = 10_000
PORTS = 64
RANGES = 340
"""Ports of a step: PORTS of them, from one of RANGES places below those that Linux hands out (from 32768)."""

SCONTROL_SECONDS = 30

TAGS = {
    "slurm.job_id": "SLURM_JOB_ID",
    "slurm.nodes": "SLURM_JOB_NODELIST",
    "slurm.partition": "SLURM_JOB_PARTITION",
    "slurm.requeues": "SLURM_RESTART_COUNT",
}
"""From tags of the run to Slurm's variables."""


class Slurm(Joined):
    """In an allocation the place of this process is in Slurm's variables; elsewhere the command submits itself."""

    def task(self, strategy: StrategySettings) -> Task:
        rank, addresses = place_in_step(self.settings.port)
        members = strategy.members()
        if sum(members.values()) != len(addresses):
            raise UserError(
                f"cluster=slurm: srun has started {len(addresses)} tasks",
                f"those of the strategy: {', '.join(f'{count} {job}' for job, count in members.items())}",
                f"srun --ntasks={sum(members.values())} …",
            )
        return task_at(rank, addresses, strategy)

    def run(self, job: Job, plan: Sequence[PlannedStage], console: Console) -> int:
        if "SLURM_JOB_ID" in os.environ:
            tags = {tag: os.environ[name] for tag, name in TAGS.items() if name in os.environ}
            return super().run(replace(job, tags=tags), plan, console)
        return run_elsewhere(job, lambda job: self.start(job, console), console, self.settings.wait)

    def start(self, job: Job, console: Console) -> SlurmJob:
        return submit(job, self.settings, console)


def place_in_step(port: int | None) -> tuple[int, list[str]]:
    """Return the rank of this process in its step, and `host:port` of each task by its rank.

    Args:
        port: of the first task, the others' follow; None: made from the ids of job and step.

    Raises:
        UserError: where this process is no task of srun, or the tasks are dealt out in another order.
    """
    fix = "srun python -m pipeline …"
    try:
        variables: Mapping[str, str] = os.environ
        rank = int(variables["SLURM_PROCID"])
        # on a node that was lost, members of the step before may linger
        step = int(variables["SLURM_JOB_ID"]) + 31 * int(variables["SLURM_STEP_ID"])
        step += 7 * int(variables.get("SLURM_RESTART_COUNT", 0))
        counts = expand_counts(variables["SLURM_STEP_TASKS_PER_NODE"])
        command = ["scontrol", "show", "hostnames", variables["SLURM_STEP_NODELIST"]]
        nodes = subprocess.check_output(command, text=True, timeout=SCONTROL_SECONDS).split()
        hosts = [node for node, count in zip(nodes, counts, strict=True) for _ in range(count)]
        own = hosts[rank]
    except (LookupError, ValueError, OSError, subprocess.SubprocessError) as error:
        raise UserError(f"cluster=slurm: this process is no task of srun ({error!r})", "one that is", fix) from error
    if variables.get("SLURMD_NODENAME", own) != own:
        raise UserError(f"cluster=slurm: task {rank} is not on {own}", "srun --distribution=block", fix)
    first = port or FIRST_PORT + PORTS * (step % RANGES)
    return rank, [f"{host}:{first + place}" for place, host in enumerate(hosts)]


def expand_counts(text: str) -> list[int]:
    """Return the numbers of `2(x3),1`: 2, 2, 2, 1."""
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(count) for count, times in parts for _ in range(int(times or 1))]
