"""The function that every task of a submitted Slurm job calls: it runs the job as one of its members."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from omegaconf import DictConfig

from pipeline.config.experiment import read
from pipeline.console import Console
from pipeline.exit_codes import DONE, TIMED_OUT, WRONG_CONFIGURATION
from pipeline.planning.job import Job, OnEpoch, SweepRun
from pipeline.redaction import guard_output, redact_overrides
from pipeline.run.child import code_of
from pipeline.run.launch import run_job
from pipeline.run_folder.runs import has_finished
from pipeline.system import environment, signals, streams
from pipeline.system.processes import process_started
from pipeline.system.signal_listener import Request

NOTICE = signal.SIGUSR2
"""The signal that Slurm sends before the time limit, as submitit has it in its scripts."""

END_OF_TIME = Request("the time limit of its Slurm job", signal.SIGTERM, TIMED_OUT)

REQUEUE_SECONDS = 60


@dataclass(frozen=True)
class Member:
    """The part of a job that each of its tasks needs, to be pickled.

    The configuration is not resolved: secrets stay in the environment.

    requeues: how often the job is queued again when its time is over. command: as it was typed, to be recorded.
    """

    document: DictConfig
    choices: Mapping[str, str]
    config_dirs: tuple[Path, ...]
    overrides: tuple[str, ...]
    folder: Path
    sweep: SweepRun | None
    run_name: str | None
    on_epoch: OnEpoch | None
    requeues: int
    command: tuple[str, ...]

    @classmethod
    def of(cls, job: Job, requeues: int) -> "Member":
        """Returns the member of any task of `job`, which has a folder."""
        assert job.folder is not None
        experiment = job.experiment
        return cls(
            document=experiment.document,
            choices=experiment.choices,
            config_dirs=experiment.config_dirs,
            overrides=job.overrides,
            folder=job.folder,
            sweep=job.sweep,
            run_name=job.run_name,
            on_epoch=job.on_epoch,
            requeues=requeues,
            command=(sys.argv[0], *redact_overrides(sys.argv[1:])),
        )

    def __call__(self) -> NoReturn:
        """Runs the job as this task, has it queued again at the end of its time, and ends the process."""
        streams.guard()
        guard_output()
        environment.prepare()
        sys.argv[:] = self.command
        with signals.listening(owns_process=True), signals.interruptible(signals.BEFORE_RUN_SECONDS):
            signal.signal(NOTICE, lambda *_: signals.request(END_OF_TIME))
            console = Console()
            code = code_of(lambda: self._run(console), console, refused=WRONG_CONFIGURATION)
            signals.ended(code)
            if signals.requested() is END_OF_TIME and os.environ.get("SLURM_PROCID") == "0":
                self._requeue(console)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # past TensorFlow's destructors, which wait for lost members

    def _run(self, console: Console) -> int:
        if has_finished(self.folder):  # Slurm has started it again after its end
            return DONE
        experiment = read(self.document, self.choices, self.config_dirs)
        job = Job(
            experiment,
            self.overrides,
            self.folder,
            self.sweep,
            started=process_started(),
            on_epoch=self.on_epoch,
            run_name=self.run_name,
        )
        return run_job(job, console)

    def _requeue(self, console: Console) -> None:
        before = int(os.environ.get("SLURM_RESTART_COUNT", 0))
        if before >= self.requeues:
            console.warn(f"its time is over, and cluster.requeues={self.requeues}: the same command resumes it")
            return
        console.log(f"its time is over: queued again ({before + 1} of {self.requeues} times)")
        sys.stdout.flush()
        done = subprocess.run(
            ["scontrol", "requeue", os.environ["SLURM_JOB_ID"]],
            capture_output=True,
            text=True,
            timeout=REQUEUE_SECONDS,
            check=False,
        )
        if done.returncode:
            console.warn(f"it cannot be queued again ({done.stderr.strip()}): the same command resumes it")
