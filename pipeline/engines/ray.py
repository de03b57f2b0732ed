"""`cluster=ray`: the members of a cluster, or the jobs of a sweep, are processes of Ray's actors."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from pipeline.config.cluster import RayCluster
from pipeline.config.experiment import Experiment
from pipeline.console import Console
from pipeline.engines.ray_connection import address_of
from pipeline.engines.ray_hosts import Claim, Hosts, hosts_on_ray
from pipeline.engines.rendezvous import wait_for_members
from pipeline.engines.supervisor import supervise
from pipeline.planning.job import Job
from pipeline.planning.plan import PlannedStage
from pipeline.run.engine import Engine, Task, tasks_at
from pipeline.system.environment import thread_variables
from pipeline.system.processes import ChildProcess, Start

ALONE = {"worker": 1}
"""The members of a job without a cluster."""


class Ray(Engine):
    """Runs each member in an actor, and a job without a cluster in one, too.

    A sweep keeps an actor for each job that runs at the same time, with the resources of all its workers.
    """

    settings: RayCluster

    def run(self, job: Job, plan: Sequence[PlannedStage], console: Console) -> int:
        experiment = job.experiment
        counts = experiment.members or ALONE
        claims = [self._claim(1) if name == "worker" else {} for name, count in counts.items() for _ in range(count)]
        with hosts_on_ray(self.settings, claims, experiment.outputs, console) as hosts:
            members = _OnRay(self.settings, hosts, counts, experiment)
            return supervise(job, plan, console, members, self.settings.restarts)

    @contextmanager
    def starts(self, count: int, experiments: Sequence[Experiment], console: Console) -> Iterator[Sequence[Start]]:
        workers = max(experiment.members.get("worker", 1) for experiment in experiments)
        with hosts_on_ray(self.settings, [self._claim(workers)] * count, experiments[0].outputs, console) as hosts:
            yield [partial(hosts.start, number) for number in range(count)]

    def _claim(self, workers: int) -> Claim:
        claim = {"CPU": workers * self.settings.cpus, "GPU": workers * self.settings.gpus}
        return {name: float(count) for name, count in claim.items() if count}


class _OnRay:
    """See `pipeline.engines.supervisor.Members`: a host for each member, in the order of the tasks."""

    where = "in Ray's actors"

    def __init__(self, settings: RayCluster, hosts: Hosts, counts: Mapping[str, int], experiment: Experiment) -> None:
        self._settings = settings
        self._hosts = hosts
        self._counts = counts
        is_alone = not experiment.members
        threads = thread_variables(settings.cpus, experiment.deterministic)
        self.prepare: Callable[[Task], Task | None] = partial(_prepare, threads, is_alone)
        self._numbers: dict[str, int] = {}

    def tasks(self) -> list[Task]:
        tasks = tasks_at(self._counts, [self._hosts.address(number) for number in range(len(self._hosts))])
        self._numbers = {task.name: number for number, task in enumerate(tasks)}
        if address_of(self._settings) is None:
            return tasks
        limit = self._settings.timeout_seconds  # firewalls between
        return [replace(task, meet=partial(wait_for_members, task, limit)) for task in tasks]

    def start(self, task: Task, target: Callable[..., None], arguments: tuple[Any, ...]) -> ChildProcess:
        return self._hosts.start(self._numbers[task.name], target, arguments)


def _prepare(threads: Mapping[str, str], is_alone: bool, task: Task) -> Task | None:
    """Sets the variables of a member, in its process; Ray has chosen its GPUs."""
    if task.job == "worker":
        os.environ.update(threads)
    if is_alone:
        return None
    os.environ["TF_CONFIG"] = task.tf_config
    return task
