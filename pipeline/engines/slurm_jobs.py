"""Slurm jobs that this process submits and watches: submitit writes their scripts, which run `slurm_member`."""

import io
import math
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipeline.cluster.task import cluster_settings, member_counts
from pipeline.config.cluster_settings import SlurmCluster
from pipeline.config.keys import flatten
from pipeline.console import Console
from pipeline.engines.slurm_member import Member
from pipeline.engines.slurm_queue import COMMAND_SECONDS, ENDED, ENDS, QUEUE_SECONDS, Entry, Note, queue, queued
from pipeline.exit_codes import DONE, FAILED
from pipeline.planning.job import Job
from pipeline.provenance.identity import identity
from pipeline.redaction import MASK, redact
from pipeline.run.engine import RemoteJob
from pipeline.run_folder.runs import has_finished, journal_rows
from pipeline.run_folder.settle import end_lost
from pipeline.system.signal_listener import Request
from pipeline.tracking.journal import NAME as JOURNAL
from stages.errors import UserError

FOLDER = "slurm"
"""In the folder of a run, or of a sweep: the job's script and the output of its tasks."""

PATIENCE_SECONDS = 600.0
"""Seconds without an answer of Slurm's after which its jobs count as lost."""


def submit(jobs: Sequence[Job], settings: SlurmCluster, console: Console) -> list["SlurmJob"]:
    """Submits jobs, each with a folder of its own; those of the same size as one array.

    A job whose folder names one that is still in the queue is that one: the same command, typed again, waits for it.

    Raises:
        UserError: where Slurm is not there or does not take them.
    """
    submitit = _submitit()
    for job in jobs:
        _refuse_secrets(job)
    in_queue = {job.folder: note for job in jobs if (note := queued(job.folder)) is not None}
    submitted = {
        folder: SlurmJob(job, in_queue[folder].id, Path(in_queue[folder].log), console)
        for job in jobs
        if (folder := job.folder) in in_queue
    }
    for count, group in groupby((job for job in jobs if job.folder not in in_queue), key=members):
        same = list(group)
        assert same[0].folder is not None
        folder = (same[0].folder if len(same) == 1 else same[0].folder.parent) / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        try:
            executor = submitit.SlurmExecutor(folder)
            executor.update_parameters(**parameters(same[0], count, settings))
            with redirect_stderr(io.StringIO()), executor.batch():  # what sbatch prints is in the error, too
                futures = [executor.submit(Member.of(job, settings.requeues)) for job in same]
        except (submitit.core.utils.FailedJobError, RuntimeError, OSError) as error:
            raise _refused(error) from error
        for job, future in zip(same, futures, strict=True):
            assert job.folder is not None
            submitted[job.folder] = SlurmJob(job, future.job_id, future.paths.stdout, console)
            with suppress(OSError):  # the job is in the queue, and watched: only a second command would not find it
                Note(future.job_id, str(future.paths.stdout), identity(job.experiment)).write(job.folder)
    return [submitted[job.folder] for job in jobs]


def members(job: Job) -> int:
    """Returns the number of processes of a job."""
    strategy = cluster_settings(job.experiment)
    return sum(member_counts(strategy).values()) if strategy is not None else 1


def parameters(job: Job, count: int, settings: SlurmCluster) -> dict[str, Any]:
    """Returns submitit's parameters for a job of `count` processes."""
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


class SlurmJob(RemoteJob):
    """A job in Slurm's queue. id: such as `12`, of an array `12_0`; log: what its first task prints."""

    def __init__(self, job: Job, job_id: str, log: Path, console: Console) -> None:
        self.job = job
        self.id = job_id
        self.log = log
        self.started = self._answered = time.monotonic()
        self.exit_code: int | None = None
        self._console = console
        self._state = ""
        self._shown = 0
        self._signals = 0
        self._read = 0  # bytes of the run's journal, for `progress`
        self._progress = (0, math.nan)

    @property
    def progress(self) -> tuple[int, float]:
        """As the run's journal has it, which a shared file system may show late."""
        assert self.job.folder is not None
        with suppress(OSError):
            size = (self.job.folder / JOURNAL).stat().st_size
            if size != self._read:
                self._read = size
                rows = journal_rows(self.job.folder)
                values = (row.get("val/accuracy", math.nan) for row in rows.values())
                best = max((value for value in values if math.isfinite(value)), default=math.nan)
                self._progress = (max(rows, default=0), best)
        return self._progress

    def poll(self) -> int | None:
        if self.exit_code is None:
            states = queue().jobs()
            if states is not None:
                self._answered = time.monotonic()
                self._note(states.get(self.id))
            elif time.monotonic() - self._answered > PATIENCE_SECONDS:
                self._console.error(f"Slurm has not answered for {PATIENCE_SECONDS:.0f} s; its job {self.id} may go on")
                self.exit_code = FAILED
        return self.exit_code

    def stop(self, request: Request, count: int = 1) -> None:
        if self._signals < count:
            self._signals = count
            with suppress(OSError, subprocess.SubprocessError):
                subprocess.run(
                    ["scancel", *(["--signal=KILL"] if count >= 3 else []), self.id],
                    capture_output=True,
                    timeout=COMMAND_SECONDS,
                    check=False,
                )
            queue.cache_clear()

    def show(self) -> None:
        """Prints what the first task has printed since the last call."""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(self._shown)
            text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._shown += len(whole)
            for line in whole.decode(errors="replace").splitlines():
                if not line.startswith("submitit "):
                    self._console.log(line)

    def _note(self, entry: Entry | None) -> None:
        """Takes the state of the job; None: Slurm has forgotten it, or does not know it yet."""
        if entry is None and time.monotonic() - self.started < 5 * QUEUE_SECONDS:
            return
        state, reason, nodes, status, _ = entry or Entry("UNKNOWN")
        shown = f"{state} ({reason})" if state == "PENDING" and reason != "None" else f"{state} on {nodes}"
        if state not in ENDS:
            if shown != self._state and state != "COMPLETING":
                self._state = shown
                self._console.log(f"Slurm job {self.id}: {shown}")
            return
        assert self.job.folder is not None
        own = (status >> 8) or (128 + (status & 127) if status & 127 else DONE)
        is_done = has_finished(self.job.folder)
        code = DONE if is_done and state in ENDED else ENDED.get(state, own)
        if code == DONE and not is_done:
            code = FAILED
        if state not in ("COMPLETED", "FAILED"):
            self._console.error(f"Slurm job {self.id}: {state}")
        end_lost(
            self.job.folder,
            self.job.experiment,
            "KILLED" if state in ENDED else "FAILED",
            self._console,
            f"its Slurm job {self.id} is {state}",
        )
        self.exit_code = code


def _submitit() -> Any:
    """Returns submitit.

    Raises:
        UserError: where it or Slurm is not installed.
    """
    if shutil.which("sbatch") is None or shutil.which("squeue") is None:
        raise UserError(
            "cluster=slurm: there is no sbatch here", "a machine from which Slurm takes jobs", "cluster=local"
        )
    try:
        import submitit
        import submitit.core.utils
    except ImportError as error:
        raise UserError(
            "cluster=slurm: the package submitit is not installed",
            "the extra slurm of this project: submitit",
            "pip install submitit",
        ) from error
    return submitit


def _refused(error: Exception) -> UserError:
    """Returns the reason for which Slurm refuses a job."""
    lines = [line.removeprefix("sbatch: error: ") for line in str(error).splitlines() if "sbatch: " in line]
    reason = "; ".join(lines) or str(error)
    fix = "cluster.partition=<one of: sinfo --summarize>" if "partition" in reason else ""
    return UserError(f"cluster=slurm: the job is refused ({redact(reason)})", "what this Slurm has", fix)


def _refuse_secrets(job: Job) -> None:
    """Refuses a configuration with a secret in it, as the job's files hold it: the environment brings them."""
    document = OmegaConf.to_container(job.experiment.document, resolve=False)
    assert isinstance(document, dict)
    for name, value in flatten(document):
        if MASK in str(redact({name: value})) and MASK not in str(value):
            raise UserError(
                f"cluster=slurm: {name} has a secret in it, and would be in the files of the job",
                "secrets in the environment, which tasks have, too, such as MLFLOW_TRACKING_PASSWORD",
                f"{name}='${{oc.env:MY_SECRET}}'",
            )
