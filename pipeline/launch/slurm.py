"""`cluster=slurm`: this process submits a Slurm job, or is one of the job's tasks."""

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stderr
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

from omegaconf import OmegaConf

from pipeline.config.cluster import SlurmCluster
from pipeline.config.names import flatten
from pipeline.console import Console
from pipeline.decide.decision import Decision
from pipeline.decide.job import Job
from pipeline.execute.child import leave
from pipeline.execute.link import Link
from pipeline.execute.task import Task
from pipeline.exit_codes import DONE, FAILED, TIMED_OUT, WRONG_CONFIGURATION
from pipeline.launch.handle import Ended, Handle
from pipeline.launch.joined import Joined, task_at
from pipeline.launch.launcher import LOOK_SECONDS
from pipeline.launch.remote import Elsewhere, Member, RemoteJob
from pipeline.paths import shorter
from pipeline.redaction import MASK, redact
from pipeline.system import signals
from pipeline.targets import check_installed
from pipeline.tracking.pending import end_lost
from stages.errors import UserError
from stages.settings.strategy import StrategySettings

FIRST_PORT = 10_000
PORTS = 64
RANGES = 340
"""A step uses one of RANGES ranges of PORTS ports, all of them below those that Linux assigns (from 32768)."""

SCONTROL_SECONDS = 30

FOLDER = "slurm"
"""Subfolder of a run with the script of its Slurm job and the output of the tasks."""

COMMAND_SECONDS = 60

ENDED = {"CANCELLED": 128 + signal.SIGTERM, "TIMEOUT": TIMED_OUT, "DEADLINE": TIMED_OUT}
"""Exit codes for states in which Slurm has ended the job. In other states the job's own exit code counts."""

ENDS = {"COMPLETED", "FAILED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "OUT_OF_MEMORY", "REVOKED", "UNKNOWN", *ENDED}
"""States after which Slurm does not run a job again."""

END_OF_TIME = signals.Request("the time limit of its Slurm job", signal.SIGTERM, TIMED_OUT)


class SlurmTask(Joined):
    """This process is a task of srun. Its place in the cluster is in Slurm's variables."""

    def task(self, strategy: StrategySettings) -> Task:
        rank, addresses = place_in_step(self.settings.port)
        members = strategy.members()
        if sum(members.values()) != len(addresses):
            problem = f"cluster=slurm: srun started {len(addresses)} tasks"
            wanted = ", ".join(f"{count} {job}" for job, count in members.items())
            raise UserError(
                problem, f"the members of the strategy: {wanted}", f"srun --ntasks={sum(members.values())} …"
            )
        return task_at(rank, addresses, strategy)


class Slurm(Elsewhere):
    """Submits a job, whose tasks run it. In an allocation, a run by itself is one of the allocation's tasks."""

    def start(
        self, decision: Decision, console: Console, link: Link | None = None, started: float | None = None
    ) -> Handle:
        if "SLURM_JOB_ID" in os.environ and decision.part is None:
            return SlurmTask(self.settings).start(decision, console, link, started)
        submitted = super().start(decision, console, link, started)
        if self.settings.wait:
            return submitted
        assert isinstance(submitted, SlurmJob)
        console.log(f"the job is in the queue; its output will be in {shorter(submitted.log)}")
        return Ended(decision.job, DONE)

    def submit(self, job: Job, console: Console) -> "SlurmJob":
        check_installed("cluster=slurm", ["submitit"], "slurm")
        import submitit

        _refuse_secrets(job)
        try:
            assert job.folder is not None
            executor = submitit.SlurmExecutor(job.folder.path / FOLDER)
            executor.update_parameters(**parameters(job, self.settings))
            with redirect_stderr(io.StringIO()):  # what sbatch prints is in the error, too
                return SlurmJob(job, executor.submit(run_task, Member.of(job), self.settings), console)
        except (RuntimeError, OSError) as error:  # submitit's errors are RuntimeErrors
            lines = [line.removeprefix("sbatch: error: ") for line in str(error).splitlines() if "sbatch: " in line]
            reason = redact("; ".join(lines) or str(error))
            raise UserError(
                f"cluster=slurm: Slurm rejected the job ({reason})", "resources of this Slurm cluster (see sinfo)"
            ) from error


def place_in_step(port: int | None) -> tuple[int, list[str]]:
    """Return the rank of this process in its step, and `host:port` of each task by its rank.

    Args:
        port: The port of the first task; the others use the next ones. None: derived from the ids of job and step.

    Raises:
        UserError: If srun has not started this process, or if the tasks are distributed in a different order.
    """
    fix = "srun python -m pipeline …"
    try:
        variables: Mapping[str, str] = os.environ
        rank = int(variables["SLURM_PROCID"])
        # members of an earlier step may still run on a node that was lost
        step = int(variables["SLURM_JOB_ID"]) + 31 * int(variables["SLURM_STEP_ID"])
        step += 7 * int(variables.get("SLURM_RESTART_COUNT", 0))
        counts = expand_counts(variables["SLURM_STEP_TASKS_PER_NODE"])
        command = ["scontrol", "show", "hostnames", variables["SLURM_STEP_NODELIST"]]
        nodes = subprocess.check_output(command, text=True, timeout=SCONTROL_SECONDS).split()
        hosts = [node for node, count in zip(nodes, counts, strict=True) for _ in range(count)]
        own = hosts[rank]
    except (LookupError, ValueError, OSError, subprocess.SubprocessError) as error:
        raise UserError(
            f"cluster=slurm: this process was not started by srun ({error!r})", "a task of srun", fix
        ) from error
    if variables.get("SLURMD_NODENAME", own) != own:
        raise UserError(f"cluster=slurm: task {rank} is not on {own}", "srun --distribution=block", fix)
    first = port or FIRST_PORT + PORTS * (step % RANGES)
    return rank, [f"{host}:{first + place}" for place, host in enumerate(hosts)]


def expand_counts(text: str) -> list[int]:
    """Return the numbers of `2(x3),1`: 2, 2, 2, 1."""
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(count) for count, times in parts for _ in range(int(times or 1))]


def parameters(job: Job, settings: SlurmCluster) -> dict[str, Any]:
    """Return submitit's parameters for a job."""
    count = sum(job.experiment.members.values()) or 1

    cpus = settings.cpus_per_task
    values = {
        "job_name": job.experiment.name,
        "partition": settings.partition,
        "account": settings.account,
        "time": settings.minutes,
        "nodes": settings.nodes,
        "cpus_per_task": cpus,
        "gpus_per_task": settings.gpus_per_task,
        "mem": f"{round(settings.memory_gib * 1024)}M" if settings.memory_gib else None,
        "signal_delay_s": settings.signal_seconds,
        "stderr_to_stdout": True,
        "wckey": None,
        # Since Slurm 22.05, srun does not inherit this from the job.
        "srun_args": ["--open-mode=append", *([f"--cpus-per-task={cpus}"] if cpus else [])],
        "additional_parameters": {**settings.options, "ntasks": count, "distribution": "block", "requeue": True},
    }
    return {name: value for name, value in values.items() if value is not None or name == "wckey"}


def run_task(member: Member, settings: SlurmCluster) -> NoReturn:
    """Run a job as one of its tasks, have it queued again at the end of its time, and end the process."""
    member.enter()
    console = Console()
    leave(lambda: _run(member, settings, console), console, refused=WRONG_CONFIGURATION)


def _run(member: Member, settings: SlurmCluster, console: Console) -> int:
    signal.signal(signal.SIGUSR2, lambda *_: signals.request(END_OF_TIME))  # submitit's, before the time limit
    try:
        return member.run(console, replace(settings, _target_=f"{__name__}.{SlurmTask.__name__}"))
    finally:  # it may be raised before the run has begun
        if signals.requested() is END_OF_TIME and os.environ.get("SLURM_PROCID") == "0":
            with signals.ending():
                _requeue(settings.requeues, console)


def _requeue(requeues: int, console: Console) -> None:
    before = int(os.environ.get("SLURM_RESTART_COUNT", 0))
    if before >= requeues:
        console.warn(f"the job reached its time limit and cluster.requeues={requeues}; the same command resumes it")
        return
    console.log(f"the job reached its time limit: requeueing it ({before + 1} of {requeues})")
    sys.stdout.flush()
    subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], timeout=COMMAND_SECONDS, check=False)


class QueueEntry(NamedTuple):
    """A job in the queue: its state and the reason for it, its nodes, and its exit status."""

    state: str
    reason: str = ""
    nodes: str = ""
    status: int = 0


class SlurmJob(RemoteJob):
    """A job in Slurm's queue that submitit has submitted."""

    def __init__(self, job: Job, submitted: Any, console: Console) -> None:
        super().__init__(job, submitted.paths.stdout, console)
        self.id: str = submitted.job_id
        self._submitted = submitted
        self._state = ""
        self._signals = 0

    def __str__(self) -> str:
        return f"Slurm job {self.id}"

    def look(self) -> int | None:
        entries = _queue(int(time.monotonic() / LOOK_SECONDS))
        if entries is None:
            return None
        entry = entries.get(self.id)
        is_known = entry is not None or time.monotonic() - self.started > 5 * LOOK_SECONDS
        return self._note(entry or QueueEntry("UNKNOWN")) if is_known else None

    def stop(self, request: signals.Request, count: int = 1) -> None:
        if self._signals < count:
            self._signals = count
            self._submitted.cancel(check=False)

    def _note(self, entry: QueueEntry) -> int | None:
        """Print a new state of the job; return its exit code if it has ended."""
        state, reason, nodes, status = entry
        if state not in ENDS:
            why = f" ({reason})" if reason not in ("", "None") else ""
            shown = f"{state} on {nodes}" if nodes else f"{state}{why}"
            if shown != self._state and state != "COMPLETING":
                self._state = shown
                self._console.log(f"{self}: {shown}")
            return None
        own = (status >> 8) or (128 + (status & 127) if status & 127 else DONE)
        is_done = self.folder.has_finished
        code = DONE if is_done and state in ENDED else ENDED.get(state, own)
        code = FAILED if code == DONE and not is_done else code
        if state not in ("COMPLETED", "FAILED"):
            self._console.error(f"{self}: {state}")
        reason = f"its Slurm job {self.id} is {state}"
        end_lost(self.folder, self.job.experiment, ENDED.get(state, FAILED), self._console, reason)
        return code


@lru_cache(maxsize=1)
def _queue(period: int) -> Mapping[str, QueueEntry] | None:
    """Return this user's jobs by id, including those that ended in the last minutes; None if Slurm does not respond.

    Args:
        period: A number that changes every LOOK_SECONDS, after which the queue is read again.
    """
    fields = "JobID:|,State:|,Reason:|,NodeList:|,exit_code:|"
    command = ["squeue", "--me", "--noheader", "--states=all", f"--Format={fields}"]
    try:
        printed = subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL, timeout=COMMAND_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [line.split("|") for line in printed.splitlines() if line.count("|") >= 5]
    return {row[0].strip(): QueueEntry(row[1], row[2], row[3], int(row[4] or 0)) for row in rows}


def _refuse_secrets(job: Job) -> None:
    """Refuse a configuration that contains a secret, because the job's files would contain it."""
    document: Any = OmegaConf.to_container(job.experiment.document, resolve=False)
    for name, value in flatten(document):
        if MASK in str(redact({name: value})) and MASK not in str(value):
            problem = f"cluster=slurm: {name} contains a secret, which would be stored in the job's files"
            raise UserError(
                problem,
                "a secret in an environment variable, which the tasks inherit",
                f"++{name}='${{oc.env:MY_SECRET}}'",
            )
