"""Engines: where a run runs, and in how many processes."""

from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.config.experiment import Experiment
from pipeline.console import Console
from pipeline.decide.decision import Decision
from pipeline.decide.job import Job
from pipeline.execute.link import Link
from pipeline.launch.handle import Handle
from stages.targets import class_at

LOOK_SECONDS = 2.0
"""Seconds between two looks at a job that runs elsewhere: at its journal, or at the queue that it is in."""


class Engine(ABC):
    """Runs jobs in the processes that their strategy needs. Named by `cluster._target_`.

    Attributes:
        settings: those of the group `cluster`.
    """

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    @abstractmethod
    def run(self, decision: Decision, console: Console, link: Link, started: float) -> int:
        """Carry out `decision` and return the exit code.

        Args:
            started: when the user began to wait, in seconds of `time.monotonic()`.

        Raises:
            UserError: If the configuration is wrong; nothing has been recorded then.
        """

    def start(self, job: Job, console: Console) -> "RemoteJob":
        """Start a job of a sweep elsewhere, in its own folder, if `cluster.submits_jobs` says so.

        Raises:
            UserError: If it cannot be started.
        """
        raise NotImplementedError


class RemoteJob(Handle):
    """A job that has been started elsewhere.

    Attributes:
        log: What its first process prints.
    """

    def __init__(self, job: Job, log: Path, console: Console) -> None:
        super().__init__(job)
        self.log = log
        self._console = console
        self._shown = 0

    def show(self) -> None:
        """Print what the first process has printed since the last call."""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(self._shown)
            for line in file:
                self._shown += len(line) if line.endswith(b"\n") else 0
                if line.endswith(b"\n") and not line.startswith(b"submitit "):
                    self._console.log(line.decode(errors="replace").rstrip())


def engine_of(experiment: Experiment) -> Engine:
    """Return the engine that `experiment` names.

    Raises:
        UserError: If there is no such engine.
    """
    engine: type[Engine] = class_at(experiment.cluster._target_, Engine, "cluster", "cluster=local")
    return engine(experiment.cluster)
