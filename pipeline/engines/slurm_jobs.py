"""Slurm jobs: submitted by submitit, whose tasks run a `Member` each, and watched in the queue."""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

from omegaconf import OmegaConf

from pipeline.config.cluster import SlurmCluster
from pipeline.config.names import flatten
from pipeline.console import Console
from pipeline.engines.remote import Member
from pipeline.exit_codes import DONE, FAILED, TIMED_OUT, WRONG_CONFIGURATION
from pipeline.planning.job import Job
from pipeline.redaction import MASK, redact
from pipeline.run.child import code_of
from pipeline.run.engine import LOOK_SECONDS, RemoteJob
from pipeline.run_folder.pending import end_lost
from pipeline.run_folder.runs import has_finished
from pipeline.system import signals
from pipeline.system.signals import Request
from pipeline.targets import check_installed
from stages.errors import UserError

FOLDER = "slurm"
"""In the folder of a run: its Slurm job's script, and the output of the tasks."""

COMMAND_SECONDS = 60

ENDED = {"CANCELLED": 128 + signal.SIGTERM, "TIMEOUT": TIMED_OUT, "DEADLINE": TIMED_OUT}
"""Exit codes of jobs that Slurm has ended; else it is their own."""

ENDS = {"COMPLETED", "FAILED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "OUT_OF_MEMORY", "REVOKED", "UNKNOWN", *ENDED}
"""States after which a job is not run again; it is, after any other."""

END_OF_TIME = Request("the time limit of its Slurm job", signal.SIGTERM, TIMED_OUT)


def submit(job: Job, settings: SlurmCluster, console: Console) -> "SlurmJob":
    """Submit a job, which has a folder.

    Raises:
        UserError: where Slurm is not there or does not take it.
    """
    check_installed("cluster=slurm", ["submitit"], "slurm")
    import submitit

    _refuse_secrets(job)
    assert job.folder is not None
    try:
        executor = submitit.SlurmExecutor(job.folder / FOLDER)
        executor.update_parameters(**parameters(job, settings))
        with redirect_stderr(io.StringIO()):  # what sbatch prints is in the error, too
            return SlurmJob(job, executor.submit(Task(Member.of(job), settings.requeues)), console)
    except (submitit.core.utils.FailedJobError, RuntimeError, OSError) as error:
        raise _refused(error) from error


def parameters(job: Job, settings: SlurmCluster) -> dict[str, Any]:
    """Return submitit's parameters for a job."""
    count = sum(job.experiment.members.values()) or 1
    if settings.nodes > count:
        raise UserError(
            f"cluster.nodes={settings.nodes}: the job has {count} processes", f"{count} or fewer", "cluster.nodes=1"
        )
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
        # Since Slurm 22.05 srun does not take this over from the job.
        "srun_args": ["--open-mode=append", *([f"--cpus-per-task={cpus}"] if cpus else [])],
        "additional_parameters": {**settings.options, "ntasks": count, "distribution": "block", "requeue": True},
    }
    return {name: value for name, value in values.items() if value is not None or name == "wckey"}


@dataclass(frozen=True)
class Task:
    """A task of a job, to be pickled. requeues: how often the job is queued again when its time is over."""

    member: Member
    requeues: int

    def __call__(self) -> NoReturn:
        """Run the job as this task, have it queued again at the end of its time, and end the process."""
        self.member.enter()
        with signals.listening(owns_process=True), signals.interruptible(signals.BEFORE_RUN_SECONDS):
            signal.signal(signal.SIGUSR2, lambda *_: signals.request(END_OF_TIME))  # submitit's, before the time limit
            console = Console()
            code = code_of(lambda: self.member.run(console), console, refused=WRONG_CONFIGURATION)
            signals.ended(code)
            if signals.requested() is END_OF_TIME and os.environ.get("SLURM_PROCID") == "0":
                self._requeue(console)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # past TensorFlow's destructors, which wait for lost members

    def _requeue(self, console: Console) -> None:
        before = int(os.environ.get("SLURM_RESTART_COUNT", 0))
        if before >= self.requeues:
            console.warn(f"its time is over, and cluster.requeues={self.requeues}: the same command resumes it")
            return
        console.log(f"its time is over: queued again ({before + 1} of {self.requeues} times)")
        sys.stdout.flush()
        subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], timeout=COMMAND_SECONDS, check=False)


class Entry(NamedTuple):
    """A job in the queue: its state with the reason, its nodes, and its exit status."""

    state: str
    reason: str = ""
    nodes: str = ""
    status: int = 0


class SlurmJob(RemoteJob):
    """A job in Slurm's queue, by submitit's."""

    def __init__(self, job: Job, submitted: Any, console: Console) -> None:
        super().__init__(job, submitted.paths.stdout, console)
        self.id: str = submitted.job_id
        self._submitted = submitted
        self._state = ""
        self._signals = 0

    def __str__(self) -> str:
        return f"Slurm job {self.id}"

    def poll(self) -> int | None:
        entries = _queue(int(time.monotonic() / LOOK_SECONDS))
        if self.exit_code is None and entries is not None:
            entry = entries.get(self.id)
            if entry is not None or time.monotonic() - self.started > 5 * LOOK_SECONDS:
                self._note(entry or Entry("UNKNOWN"))
        return self.exit_code

    def stop(self, request: Request, count: int = 1) -> None:
        if self._signals < count:
            self._signals = count
            self._submitted.cancel(check=False)

    def _note(self, entry: Entry) -> None:
        state, reason, nodes, status = entry
        if state not in ENDS:
            why = f" ({reason})" if reason not in ("", "None") else ""
            shown = f"{state} on {nodes}" if nodes else f"{state}{why}"
            if shown != self._state and state != "COMPLETING":
                self._state = shown
                self._console.log(f"{self}: {shown}")
            return
        assert self.job.folder is not None
        own = (status >> 8) or (128 + (status & 127) if status & 127 else DONE)
        is_done = has_finished(self.job.folder)
        code = DONE if is_done and state in ENDED else ENDED.get(state, own)
        self.exit_code = FAILED if code == DONE and not is_done else code
        if state not in ("COMPLETED", "FAILED"):
            self._console.error(f"{self}: {state}")
        status_of_run = "KILLED" if state in ENDED else "FAILED"
        reason = f"its Slurm job {self.id} is {state}"
        end_lost(self.job.folder, self.job.experiment, status_of_run, self._console, reason)


@lru_cache(maxsize=1)
def _queue(period: int) -> Mapping[str, Entry] | None:
    """Return this user's jobs by their ids, with those that ended in the last minutes; None: Slurm does not answer.

    Args:
        period: asks again where it differs from the last call's.
    """
    fields = "JobID:|,State:|,Reason:|,NodeList:|,exit_code:|"
    command = ["squeue", "--me", "--noheader", "--states=all", f"--Format={fields}"]
    try:
        printed = subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL, timeout=COMMAND_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [line.split("|") for line in printed.splitlines() if line.count("|") >= 5]
    return {row[0].strip(): Entry(row[1], row[2], row[3], int(row[4] or 0)) for row in rows}


def _refused(error: Exception) -> UserError:
    """Return the reason for which Slurm refuses a job."""
    lines = [line.removeprefix("sbatch: error: ") for line in str(error).splitlines() if "sbatch: " in line]
    reason = "; ".join(lines) or str(error)
    fix = "cluster.partition=<one of: sinfo --summarize>" if "partition" in reason else ""
    return UserError(f"cluster=slurm: the job is refused ({redact(reason)})", "what this Slurm has", fix)


def _refuse_secrets(job: Job) -> None:
    """Refuse a configuration with a secret in it, as the job's files hold it: the environment brings them."""
    document = OmegaConf.to_container(job.experiment.document, resolve=False)
    assert isinstance(document, dict)
    for name, value in flatten(document):
        if MASK in str(redact({name: value})) and MASK not in str(value):
            raise UserError(
                f"cluster=slurm: {name} has a secret in it, and would be in the files of the job",
                "secrets in the environment, which tasks have, too, such as MLFLOW_TRACKING_PASSWORD",
                f"{name}='${{oc.env:MY_SECRET}}'",
            )
