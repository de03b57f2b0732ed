"""Jobs and what runs them: cluster engines, the task of a process in a cluster, a job that runs elsewhere."""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.checks.combinations import advice
from pipeline.config.experiment import Experiment
from pipeline.console import Console
from pipeline.exit_codes import DONE
from pipeline.planning.earlier import announce, other_run, prepare, resolve
from pipeline.planning.job import Job
from pipeline.planning.plan import PlannedStage, after_training
from pipeline.run.facts import show_next, show_plan, show_summary
from pipeline.run_folder.lock import locked
from pipeline.run_folder.runs import read_run
from pipeline.run_folder.summary import Summary
from pipeline.system import signals
from pipeline.system.signals import Request
from pipeline.system.streams import all_written
from pipeline.tracking.pending import send_pending, settings_for
from pipeline.tracking.store import Store
from stages.targets import class_at

LOOK_SECONDS = 2.0
"""Seconds between two looks at a job that runs elsewhere: at its journal, or at the queue that it is in."""

OPEN_PORTS = (
    "the cluster's gRPC servers listen on all network interfaces without a password, see docs/how-to/clusters.md"
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
            for line in file:
                self._shown += len(line) if line.endswith(b"\n") else 0
                if line.endswith(b"\n") and not line.startswith(b"submitit "):
                    self._console.log(line.decode(errors="replace").rstrip())

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


def run_job(job: Job, console: Console) -> int:
    """Runs `job` and returns its exit code.

    Raises:
        UserError: where the configuration is wrong; nothing has been recorded then.
    """
    experiment = job.experiment
    plan = prepare(experiment)
    if job.only_trains:
        left_out = after_training(experiment)
        plan = tuple(replace(stage, is_needed=stage.is_needed and stage.name not in left_out) for stage in plan)
    announce(experiment, plan, console)
    show_plan(experiment, plan, console)
    for line in advice(experiment):
        console.warn(line)
    job = resolve(job, console)
    other_run(experiment)
    if experiment.dry_run:
        console.log("dry_run=true: the settings are valid, and nothing was run")
        return all_written(DONE)
    if job.resumed is not None and job.resumed.status == "FINISHED":
        return _close_finished(job, job.resumed, console)
    return engine_of(experiment).run(job, plan, console)


def _close_finished(job: Job, summary: Summary, console: Console) -> int:
    """Sends the unsent records of a finished run, prints its summary, and returns the exit code.

    Raises:
        UserError: where the store cannot be used.
    """
    experiment, folder = job.experiment, Path(summary.folder)
    store = Store(settings_for(folder, experiment.tracking), experiment.outputs)
    with locked(folder):
        tracker = send_pending(folder, store, console.warn, console.log)
        summary = read_run(folder, console.warn) or summary
        if summary.ending:
            summary = replace(summary, ending=False)
            summary.write(folder)
    if (request := signals.requested()) is not None and tracker.unsent:
        return request.exit_code
    show_summary(summary, tracker.links, console)
    for line in tracker.notes:
        console.log(line)
    if job.sweep is None:
        show_next(summary, experiment.outputs, console)
    console.log("already finished, so nothing was trained. To train again: resume=never")
    return 0
