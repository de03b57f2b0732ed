"""Engines whose members something else starts, each by the same command: `cluster=tf_config` and `cluster=hosts`."""

import json
import os
import socket
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from pipeline.console import Console
from pipeline.engines.rendezvous import split_address, wait_for_members
from pipeline.planning.job import Job
from pipeline.planning.plan import PlannedStage
from pipeline.run.engine import Engine, Task, tasks_at
from pipeline.system.pulse import watching_itself
from stages.errors import UserError
from stages.settings.strategy import StrategySettings


class Joined(Engine):
    """Base of these engines: this process is a member, and waits for the others."""

    @abstractmethod
    def task(self, strategy: StrategySettings) -> Task:
        """Return the place of this process in the cluster.

        Raises:
            UserError: where the environment does not say it, or there is no such cluster for `strategy`.
        """

    def run(self, job: Job, plan: Sequence[PlannedStage], console: Console) -> int:
        from pipeline.run.executor import work  # and with it much that a plan, or a wrong setting, does not need

        task = None
        strategy = job.experiment.of("strategy", StrategySettings)
        if strategy is not None and strategy.members():
            task = self.task(strategy)
            check_members(task, strategy)
            task = replace(task, meet=partial(wait_for_members, task, self.settings.timeout_seconds))
            os.environ["TF_CONFIG"] = task.tf_config
        with watching_itself(job.experiment.hang_seconds):
            return work(job, plan, console, task)


class TfConfig(Joined):
    """Every member is started with its own `TF_CONFIG`, as by Kubernetes' TFJob and Vertex AI."""

    def task(self, strategy: StrategySettings) -> Task:
        text = os.environ.get("TF_CONFIG", "")
        try:
            config = json.loads(text)
            cluster = {str(job): [str(address) for address in members] for job, members in config["cluster"].items()}
            task = Task(config["task"]["type"], int(config["task"]["index"]), cluster)
            if not 0 <= task.index < len(cluster[task.job]):
                raise IndexError(f"there is no {task.job} {task.index}")
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            raise UserError(
                f"cluster=tf_config: TF_CONFIG={text[:200]} does not say which member this process is ({error!r})",
                f"a cluster of {', '.join(strategy.members())} and this process's task in it",
                'TF_CONFIG=\'{"cluster": {"worker": ["host:port", …]}, "task": {"type": "worker", "index": 0}}\'',
            ) from error
        return task


class Hosts(Joined):
    """The members are a list of addresses; this process is the one whose host it runs on."""

    def task(self, strategy: StrategySettings) -> Task:
        hosts = list(self.settings.hosts)
        index = self.settings.index
        if index is None:
            own = [number for number, address in enumerate(hosts) if _is_here(address)]
            index = own[0] if len(own) == 1 else len(hosts)
        if index >= len(hosts):
            raise UserError(
                f"cluster.hosts={','.join(hosts)}: which of them is this process ({socket.gethostname()})?",
                "the address of every member, one of them this host's, or cluster.index from 0 on",
                "cluster.index=0",
            )
        return task_at(index, hosts, strategy)


def task_at(index: int, addresses: Sequence[str], strategy: StrategySettings) -> Task:
    """Return the task of the member `index` of `addresses`: workers, or a chief, the servers, then the workers.

    Raises:
        UserError: where the strategy has more members, or fewer.
    """
    members = strategy.members()
    if len(members) == 1:
        members = {"worker": len(addresses)}
    if sum(members.values()) != len(addresses):
        counts = ", ".join(f"{count} {job}" for job, count in members.items())
        raise UserError(f"the cluster has {len(addresses)} members", f"those of the strategy: {counts}")
    return tasks_at(members, addresses)[index]


def check_members(task: Task, strategy: StrategySettings) -> None:
    """Refuse a cluster whose members `strategy` does not have, as TensorFlow would wait for them, or for others."""
    jobs = strategy.members()
    names = task.addresses()
    if {*task.cluster} | {"chief"} != {*jobs} | {"chief"} or "chief 1" in names:
        raise UserError(f"the cluster has the members {', '.join(names)}", f"{', '.join(jobs)}; one chief at most")
    for address in names.values():
        split_address(address)


def _is_here(address: str) -> bool:
    """Return whether the host of `address` is this machine: whether a socket can have its address."""
    with suppress(OSError):
        for family, kind, *_, place in socket.getaddrinfo(split_address(address)[0], 0, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind(place)
                return True
    return False
