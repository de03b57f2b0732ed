"""Jobs that run elsewhere, by Slurm or Ray. Each of their processes runs a `Member`."""

import os
import sys
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from pipeline.command_line.arguments import command_line
from pipeline.config.cluster import ClusterSettings
from pipeline.config.experiment import read
from pipeline.console import Console
from pipeline.decide.decision import Decision
from pipeline.decide.job import Job
from pipeline.execute.link import Link
from pipeline.exit_codes import DONE
from pipeline.launch.handle import Handle
from pipeline.launch.launcher import Launcher
from pipeline.launch.run import run_job
from pipeline.redaction import guard_output, redact_overrides
from pipeline.system import environment, streams
from stages.errors import UserError


@dataclass(frozen=True)
class Member:
    """The part of a job that each of its processes needs. It is pickled."""

    job: Job
    """The job without its experiment, which each process reads again from the next four fields."""
    document: DictConfig
    """The configuration, not resolved, so secrets stay in the environment."""
    choices: Mapping[str, str]
    config_dirs: tuple[Path, ...]
    overrides: tuple[str, ...]
    command: tuple[str, ...]
    """The command as it was typed, which is recorded."""
    folder: Path
    """The working directory of the command."""
    modules: tuple[str, ...]
    """Its `sys.path`."""

    @classmethod
    def of(cls, job: Job) -> "Member":
        """Return the member for the processes of `job`, which has a folder."""
        own = job.experiment
        bare: Any = replace(job, experiment=None)  # type: ignore[arg-type]
        command = (command_line()[0], *redact_overrides(command_line()[1:]))
        words = tuple(redact_overrides(own.overrides))
        return cls(bare, own.document, own.choices, own.config_dirs, words, command, Path.cwd(), tuple(sys.path))

    def enter(self) -> None:
        """Prepare this newly started process."""
        os.chdir(self.folder)
        sys.path += [place for place in self.modules if place not in sys.path]
        streams.guard()
        guard_output()
        environment.prepare()
        sys.argv[:] = self.command

    def run(self, console: Console, cluster: ClusterSettings | None = None) -> int:
        """Run the job as this process and return the exit code.

        Args:
            console: Prints the progress and the results.
            cluster: The settings of the group `cluster` for this process, by which it finds the other members; None for
                the job's own.
        """
        if self.job.folder is not None and self.job.folder.has_finished:  # it is started again after its end
            return DONE
        experiment = read(self.document, self.choices, self.config_dirs, self.overrides)
        experiment = replace(experiment, cluster=cluster or experiment.cluster)
        return run_job(replace(self.job, experiment=experiment), console)


class RemoteJob(Handle):
    """A job that runs elsewhere. Its output is printed if it is the only run of the command.

    Attributes:
        log: What its first process prints.
    """

    def __init__(self, job: Job, log: Path, console: Console) -> None:
        super().__init__(job)
        self.log = log
        self._console = console
        self._shown = 0

    def poll(self) -> int | None:
        if self.exit_code is None:
            self.exit_code = self.look()
        if self.job.part is None:
            self.show()
        return self.exit_code

    @abstractmethod
    def look(self) -> int | None:
        """Return the exit code, or None while it runs; see `poll`."""

    def show(self) -> None:
        """Print what the first process has printed since the last call."""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(self._shown)
            for line in file:
                self._shown += len(line) if line.endswith(b"\n") else 0
                if line.endswith(b"\n") and not line.startswith(b"submitit "):
                    self._console.log(line.decode(errors="replace").rstrip())


class Elsewhere(Launcher):
    """Base of the launchers whose jobs run elsewhere. The job's process decides again, as it may begin much later."""

    @abstractmethod
    def submit(self, job: Job, console: Console) -> RemoteJob:
        """Start `job`, which has a folder, elsewhere.

        Raises:
            UserError: If it cannot be started.
        """

    def start(
        self, decision: Decision, console: Console, link: Link | None = None, started: float | None = None
    ) -> Handle:
        job, run = decision.job, decision.folder
        if job.part is not None:
            return self.submit(job, console)
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            with run.locked():  # refuses a run that a process works on; the job locks it again when it begins
                submitted = self.submit(job, console)
        except UserError:
            run.remove_if_unused()
            raise
        console.log(f"{submitted}: {run}")
        return submitted
