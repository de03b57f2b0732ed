"""Contract between runs and cluster engines: an engine, a process's task in a cluster, a job that runs elsewhere."""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.experiment import Experiment
from pipeline.console import Console
from pipeline.planning.job import Job
from pipeline.planning.plan import PlannedStage
from pipeline.system.signals import Request
from stages.targets import class_at

LOOK_SECONDS = 2.0
"""Seconds between two looks at a job that runs elsewhere: at its journal, or at the queue that it is in."""

OPEN_PORTS = (
    "the cluster's gRPC servers listen on all network interfaces of their machines without a password; "
    "TensorFlow has no setting for it: docs/how-to/clusters.md"
)


@dataclass(frozen=True)
class Task:
    """The role of a process in a cluster.

    job: `chief`, `worker` or `ps`; index: within the job. cluster: the addresses of all members by their job.
    meet: waits for the other members, and tells a function which are missing; None where the one that has started them
        all watches them.
    """

    job: str
    index: int
    cluster: Mapping[str, list[str]]
    meet: Callable[[Callable[[str], None]], None] | None = None

    @property
    def chief(self) -> str:
        """The job of the chief, which records: the first worker where no member is called so."""
        return "chief" if "chief" in self.cluster else "worker"

    @property
    def is_chief(self) -> bool:
        return self.job == self.chief and not self.index

    @property
    def serves(self) -> bool:
        """Whether it serves the chief of a parameter-server cluster, without a program of its own."""
        return not self.is_chief and "ps" in self.cluster

    @property
    def address(self) -> str:
        return self.cluster[self.job][self.index]

    def addresses(self) -> dict[str, str]:
        """Return the address of every member by its name, such as `worker 1`."""
        jobs = self.cluster.items()
        return {f"{job} {index}": address for job, members in jobs for index, address in enumerate(members)}

    @property
    def name(self) -> str:
        return f"{'server' if self.job == 'ps' else self.job}-{self.index}"

    @property
    def tf_config(self) -> str:
        """The value of `TF_CONFIG` for TensorFlow."""
        return json.dumps({"cluster": self.cluster, "task": {"type": self.job, "index": self.index}})


def tasks_at(members: Mapping[str, int], addresses: Sequence[str]) -> list[Task]:
    """Return the tasks of a cluster.

    Args:
        members: how many there are of each job. addresses: theirs, in the same order.
    """
    free = iter(addresses)
    cluster = {job: [next(free) for _ in range(count)] for job, count in members.items()}
    return [Task(job, index, cluster) for job, count in members.items() for index in range(count)]


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

    def start(self, job: Job, console: Console) -> "RemoteJob":
        """Starts a job of a sweep elsewhere, in its own folder, where `cluster.submits_jobs` says so.

        Raises:
            UserError: where it cannot be started.
        """
        raise NotImplementedError


class RemoteJob(ABC):
    """A job that has been started elsewhere.

    Attributes:
        job: what it runs. log: what its first process prints. started: when, in seconds of `time.monotonic()`.
        exit_code: None while it runs.
    """

    def __init__(self, job: Job, log: Path, console: Console) -> None:
        self.job = job
        self.log = log
        self.started = time.monotonic()
        self.exit_code: int | None = None
        self._console = console
        self._shown = 0

    def show(self) -> None:
        """Print what the first process has printed since the last call."""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(self._shown)
            text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._shown += len(whole)
            for line in whole.decode(errors="replace").splitlines():
                if not line.startswith("submitit "):
                    self._console.log(line)

    @abstractmethod
    def poll(self) -> int | None:
        """Returns the exit code, or None while it runs; to be called every POLL_SECONDS.

        Of a job that has ended without ending its run, the run is ended here.
        """

    @abstractmethod
    def stop(self, request: Request, count: int = 1) -> None:
        """Asks the job to save and end, as by `count` signals; to be repeated until `poll` returns its exit code."""


def engine_of(experiment: Experiment) -> Engine:
    """Returns the engine that `experiment` names.

    Raises:
        UserError: where it is no engine.
    """
    engine: type[Engine] = class_at(experiment.cluster._target_, Engine, "cluster", "cluster=local")
    return engine(experiment.cluster)
