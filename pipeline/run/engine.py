"""The base classes of cluster engines, and the lookup of the engine that the configuration names."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pipeline.cluster.task import Task, cluster_settings
from pipeline.config.experiment import Experiment
from pipeline.console import Console
from pipeline.planning.job import Job
from pipeline.planning.plan import PlannedStage
from pipeline.system.processes import LocalProcess, Start, has_used_tensorflow, warm_up
from pipeline.system.pulse import watching_itself
from pipeline.system.signal_listener import Request
from stages.errors import UserError
from stages.settings.strategy import StrategySettings
from stages.targets import class_at


class Engine(ABC):
    """Runs jobs in the processes that their strategy needs. Named by `cluster._target_`.

    Attributes:
        settings: those of the group `cluster`.
    """

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    @abstractmethod
    def run(self, job: Job, plan: Sequence[PlannedStage], console: Console) -> int:
        """Runs `job`, which has been checked and resolved, and returns its exit code.

        Raises:
            UserError: where the configuration is wrong; nothing has been recorded then.
        """

    @contextmanager
    def starts(self, count: int, experiments: Sequence[Experiment], console: Console) -> Iterator[Sequence[Start]]:
        """Yields, for each of `count` jobs of a sweep at the same time, what starts their processes.

        Not called where `cluster.submits_jobs`: those are started by `start`.

        Args:
            experiments: those of the jobs, of which any may run in any place.

        Raises:
            UserError: where there is no room for them.
        """
        warm_up()
        yield [LocalProcess] * count

    def start(self, jobs: Sequence[Job], console: Console) -> "Sequence[RemoteJob]":
        """Starts jobs of a sweep elsewhere, each in its own folder, where `cluster.submits_jobs` says so.

        Raises:
            UserError: where they cannot be started.
        """
        raise NotImplementedError


class RemoteJob(ABC):
    """A job that has been started elsewhere.

    Attributes:
        job: what it runs. started: when, in seconds of `time.monotonic()`.
    """

    job: Job
    started: float

    @property
    @abstractmethod
    def progress(self) -> tuple[int, float]:
        """The last epoch that has ended, 0 for none, and the best validation accuracy so far, or NaN."""

    @abstractmethod
    def poll(self) -> int | None:
        """Returns the exit code, or None while it runs; to be called every POLL_SECONDS.

        Of a job that has ended without ending its run, the run is ended here.
        """

    @abstractmethod
    def stop(self, request: Request, count: int = 1) -> None:
        """Asks the job to save and end, as by `count` signals; to be repeated until `poll` returns its exit code."""


class Joined(Engine):
    """An engine whose members are started by something else. Each runs the same command, as one of them."""

    @abstractmethod
    def task(self, strategy: StrategySettings) -> Task:
        """Returns the place of this process in the cluster.

        Raises:
            UserError: where the environment does not say it, or there is no such cluster for `strategy`.
        """

    def run(self, job: Job, plan: Sequence[PlannedStage], console: Console) -> int:
        from pipeline.run.executor import work  # and with it much that a plan, or a wrong setting, does not need

        strategy = cluster_settings(job.experiment)
        task = None
        if strategy is not None:
            if has_used_tensorflow():
                raise UserError(
                    "a cluster that this process is to join, after TensorFlow has started in it",
                    "a process that has not used TensorFlow yet",
                    "the command in a new process",
                )
            task = replace(self.task(strategy), timeout_seconds=self.settings.timeout_seconds)
            os.environ["TF_CONFIG"] = task.tf_config
        with watching_itself(job.experiment.hang_seconds):
            return work(job, plan, console, task)


def engine_of(experiment: Experiment) -> Engine:
    """Returns the engine that `experiment` names.

    Raises:
        UserError: where it is no engine.
    """
    engine: type[Engine] = class_at(experiment.cluster._target_, Engine, "cluster", "cluster=local")
    return engine(experiment.cluster)
