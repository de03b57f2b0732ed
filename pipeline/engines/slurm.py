"""`cluster=slurm`: this process is one of a Slurm job's tasks, or it submits the job that they are in."""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

from pipeline.cluster.task import Task, WrongTaskError, check_task, cluster_settings, task_at
from pipeline.console import Console
from pipeline.engines.slurm_jobs import SlurmJob, submit
from pipeline.engines.slurm_queue import queued, queued_folder
from pipeline.exit_codes import DONE
from pipeline.paths import shorter
from pipeline.planning.job import Job, new_folder
from pipeline.planning.plan import PlannedStage
from pipeline.run.child import POLL_SECONDS
from pipeline.run.engine import Joined
from pipeline.run_folder.lock import locked
from pipeline.system import pulse, signals
from pipeline.system.signal_listener import Interrupted
from stages.errors import UserError
from stages.settings.strategy import StrategySettings


class Slurm(Joined):
    """In a task of srun the place of this process is in Slurm's variables; elsewhere the command submits itself."""

    def task(self, strategy: StrategySettings) -> Task:
        try:
            rank, addresses = place_in_step(self.settings.port)
        except WrongTaskError as error:
            raise UserError(
                f"cluster=slurm: {error}", "the same command, started by srun: srun python -m pipeline …"
            ) from error
        try:
            tasks = f"srun has started {len(addresses)} tasks"
            workers = getattr(strategy, "workers", len(addresses))
            if not hasattr(strategy, "servers") and workers != len(addresses):
                raise WrongTaskError(f"{tasks}, and strategy.workers={workers}")
            task = task_at(rank, addresses, strategy)
            check_task(task, strategy)
        except WrongTaskError as error:
            raise UserError(
                f"cluster=slurm: {error}",
                "a task for each worker; with parameter_server one for the chief and for each server, too",
                f"strategy.workers={os.environ.get('SLURM_STEP_NUM_TASKS', 2)}",
            ) from error
        return task

    def run(self, job: Job, plan: Sequence[PlannedStage], console: Console) -> int:
        if "SLURM_STEP_ID" in os.environ:
            return super().run(replace(job, tags=_tags()), plan, console)
        if "SLURM_JOB_ID" in os.environ:
            if cluster_settings(job.experiment) is None:
                return super().run(replace(job, tags=_tags()), plan, console)
            allocation = os.environ["SLURM_JOB_ID"]
            raise UserError(
                f"cluster=slurm: this process is in the allocation {allocation}, but not one of its tasks",
                "the same command, started by srun: srun python -m pipeline …",
            )
        with signals.listening(), signals.uninterrupted():
            in_queue = queued_folder(job.experiment) if job.folder is None and job.experiment.resume == "auto" else None
            folder = job.folder or in_queue or new_folder(job.experiment)
            is_new = not folder.exists()
            again = " is in the queue already" if queued(folder) is not None else ""
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with locked(folder) if not again else nullcontext():  # the job locks it when it begins
                    [submitted] = submit([replace(job, folder=folder)], self.settings, console)
            except UserError:
                if is_new:
                    shutil.rmtree(folder, ignore_errors=True)
                raise
            console.log(f"Slurm job {submitted.id}{again}: {shorter(folder)}")
            if not self.settings.wait:
                console.log(f"it is in the queue; its output will be in {shorter(submitted.log)}")
                return DONE
            return _wait(submitted)

    def start(self, jobs: Sequence[Job], console: Console) -> Sequence[SlurmJob]:
        return submit(jobs, self.settings, console)


def _wait(submitted: SlurmJob) -> int:
    """Waits for the end of a job, showing its output, and returns its exit code; a signal cancels it."""
    try:
        while (code := submitted.poll()) is None:
            submitted.show()
            pulse.beat()
            signals.pause(POLL_SECONDS)
        return code
    except Interrupted as interrupted:
        request = signals.requested()
        with signals.supervising():
            while request is not None and submitted.poll() is None:
                submitted.stop(request, max(signals.times_requested(), 1))
                submitted.show()
                signals.pause(POLL_SECONDS)
        return interrupted.exit_code
    finally:
        submitted.show()


def _tags() -> Mapping[str, str]:
    """Returns where this task runs, as tags of the run."""
    names = {
        "slurm.job_id": "SLURM_JOB_ID",
        "slurm.nodes": "SLURM_JOB_NODELIST",
        "slurm.partition": "SLURM_JOB_PARTITION",
        "slurm.requeues": "SLURM_RESTART_COUNT",
    }
    return {tag: os.environ[name] for tag, name in names.items() if name in os.environ}


FIRST_PORT = 10_000
PORTS = 64
RANGES = 340
"""Ports of a step: PORTS of them, from one of RANGES places below those that Linux hands out (from 32768)."""

SCONTROL_SECONDS = 30


MOST_TASKS = 100_000
"""Tasks of a step, more than any strategy has members."""


def place_in_step(port: int | None) -> tuple[int, list[str]]:
    """Returns the rank of this process in its step, and `host:port` of each task by its rank.

    Args:
        port: of the first task, the others' follow; None: made from the ids of job and step.

    Raises:
        WrongTaskError: where the variables are not those of a step, or the tasks are dealt out in another order.
    """
    rank = _number("SLURM_PROCID")
    counts = expand_counts(_variable("SLURM_STEP_TASKS_PER_NODE"))
    if port is None:
        step = _number("SLURM_JOB_ID") + 31 * _number("SLURM_STEP_ID")
        step += 7 * _number("SLURM_RESTART_COUNT", "0")  # on a node that was lost, members may linger
        port = FIRST_PORT + PORTS * (step % RANGES)
    nodes = _scontrol("show", "hostnames", _variable("SLURM_STEP_NODELIST")).split()
    if len(nodes) != len(counts) or rank >= sum(counts):
        names = ("SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_PROCID")
        raise WrongTaskError(f"{' '.join(f'{name}={os.environ[name]}' for name in names)} are not of one step")
    names_by_rank = [name for name, count in zip(nodes, counts, strict=True) for _ in range(count)]
    own = os.environ.get("SLURMD_NODENAME")
    if own is not None and own != names_by_rank[rank]:
        raise WrongTaskError(
            f"task {rank} is on {own} and not on {names_by_rank[rank]}: srun needs --distribution=block"
        )
    hosts = {name: _host(name) for name in nodes}
    return rank, [f"{hosts[name]}:{port + place}" for place, name in enumerate(names_by_rank)]


def _variable(name: str, default: str | None = None) -> str:
    value = os.environ.get(name, default)
    if not value:
        raise WrongTaskError(f"{name} is not set by srun")
    return value


def _number(name: str, default: str | None = None) -> int:
    text = _variable(name, default)
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise WrongTaskError(f"{name}={text} is no number of srun's")
    return int(text)


def expand_counts(text: str) -> list[int]:
    """Returns the numbers of `2(x3),1`: 2, 2, 2, 1.

    Raises:
        WrongTaskError: where it is no such list, or they are more than MOST_TASKS.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", part)
        repeated = int(match[2] or 1) if match else 0
        if match is None or sum(counts) + int(match[1]) * repeated > MOST_TASKS or repeated > MOST_TASKS:
            raise WrongTaskError(f"SLURM_STEP_TASKS_PER_NODE={text} is no list of srun's")
        counts += [int(match[1])] * repeated
    return counts


def _host(node: str) -> str:
    """Returns the name of a node if it is that of a host, else the address that Slurm itself reaches it at."""
    try:
        socket.getaddrinfo(node, None)
    except OSError:
        match = re.search(r"\bNodeAddr=(\S+)", _scontrol("show", "node", node, "--oneliner"))
        return match[1] if match else node
    return node


def _scontrol(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["scontrol", *arguments], capture_output=True, text=True, timeout=SCONTROL_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
        raise WrongTaskError(f"scontrol {' '.join(arguments[:2])} has failed ({''.join(reason)})") from error
    return done.stdout
