"""Jobs that run elsewhere, in Slurm's queue or beside Ray's actors, each of their processes by a `Member`."""

import os
import sys
from collections.abc import Callable, Mapping
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
from pipeline.execute.child import POLL_SECONDS
from pipeline.exit_codes import DONE
from pipeline.launch.engine import RemoteJob
from pipeline.launch.run import run_job
from pipeline.paths import shorter
from pipeline.redaction import guard_output, redact_overrides
from pipeline.system import environment, signals, streams
from stages.errors import UserError


@dataclass(frozen=True)
class Member:
    """The part of a job that each of its processes needs, to be pickled.

    job: without its experiment, whose configuration is not resolved: secrets stay in the environment.
    overrides: of the experiment.
    command: as it was typed, to be recorded. folder, modules: its working directory and its `sys.path`.
    """

    job: Job
    document: DictConfig
    choices: Mapping[str, str]
    config_dirs: tuple[Path, ...]
    overrides: tuple[str, ...]
    command: tuple[str, ...]
    folder: Path
    modules: tuple[str, ...]

    @classmethod
    def of(cls, job: Job) -> "Member":
        """Return the member of any process of `job`, which has a folder."""
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
            cluster: by which it finds the others; None: as the job's.
        """
        if self.job.folder is not None and self.job.folder.has_finished:  # it is started again after its end
            return DONE
        experiment = read(self.document, self.choices, self.config_dirs, self.overrides)
        experiment = replace(experiment, cluster=cluster or experiment.cluster)
        return run_job(replace(self.job, experiment=experiment), console)


def run_elsewhere(decision: Decision, start: Callable[[Job], RemoteJob], console: Console, wait: bool = True) -> int:
    """Start a run elsewhere, in a folder of its own, and return its exit code, once it has ended if we are to `wait`.

    Raises:
        UserError: If it cannot be started.
    """
    run = decision.folder
    with signals.listening(), signals.uninterrupted():
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            with run.locked():  # not next to a living run; the job locks it when it begins
                started = start(Job(decision.experiment, run, decision.part))
        except UserError:
            run.remove_if_unused()
            raise
        console.log(f"{started}: {run}")
        if wait:
            return _wait(started)
        console.log(f"the job is in the queue; its output will be in {shorter(started.log)}")
        return DONE


def _wait(started: RemoteJob) -> int:
    """Wait for the end of a job, showing its output, and return its exit code; a signal stops it."""
    request = None
    with signals.supervising():
        while (code := started.poll()) is None:
            if (request := signals.requested()) is not None:
                started.stop(request, signals.times_requested())
            started.show()
            signals.pause(POLL_SECONDS)
    started.show()
    return code if request is None else request.exit_code
