"""Tasks of a cluster of processes: who is who, and at which address."""

import ipaddress
import json
import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from pipeline.config.experiment import Experiment
from pipeline.system import machine
from stages.settings.strategy import MultiWorkerSettings, ParameterServerSettings, StrategySettings

HOST = "127.0.0.1"

OPEN_PORTS = (
    "the cluster's gRPC servers listen on all network interfaces of their machines without a password; "
    "TensorFlow has no setting for it: docs/clusters.md"
)


@dataclass(frozen=True)
class Task:
    """The role of a process in a cluster. job: `chief`, `worker` or `ps`; index: within the job.

    timeout_seconds: longest wait for the other members; None where the one that has started them all watches them.
    """

    job: str
    index: int
    cluster: Mapping[str, list[str]]
    timeout_seconds: float | None = None

    @property
    def is_chief(self) -> bool:
        """Whether it records: the chief, or the first worker where there is none."""
        return self.job == "chief" or (self.job == "worker" and not self.index and "chief" not in self.cluster)

    @property
    def serves(self) -> bool:
        """Whether it serves the chief of a parameter-server cluster, without a program of its own."""
        return not self.is_chief and "ps" in self.cluster

    @property
    def address(self) -> str:
        return self.cluster[self.job][self.index]

    def addresses(self) -> list[tuple[tuple[str, int], str]]:
        """Returns (job, index) and the address of every member."""
        members = self.cluster.items()
        return [((job, index), address) for job, of_job in members for index, address in enumerate(of_job)]

    @property
    def name(self) -> str:
        return f"{'server' if self.job == 'ps' else self.job}-{self.index}"

    @property
    def tf_config(self) -> str:
        """The value of `TF_CONFIG` for TensorFlow."""
        return json.dumps({"cluster": self.cluster, "task": {"type": self.job, "index": self.index}})

    def enter(self) -> "Task":
        """Sets `TF_CONFIG` and the GPUs of this process: a worker gets its part of the machine's, servers none.

        Returns this task.
        """
        os.environ["TF_CONFIG"] = self.tf_config
        gpus = len(machine.gpus())
        workers = len(self.cluster.get("worker", []))
        if gpus:
            of_worker = range(self.index * gpus // workers, (self.index + 1) * gpus // workers)
            visible = of_worker if self.job == "worker" else ()
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, visible)) or "-1"
        return self


def cluster_settings(experiment: Experiment) -> StrategySettings | None:
    """Returns the settings of a strategy that needs a cluster, else None."""
    settings = experiment.settings.get("strategy")
    return settings if isinstance(settings, (MultiWorkerSettings, ParameterServerSettings)) else None


def member_counts(settings: StrategySettings) -> dict[str, int]:
    """Returns how many members of each kind a strategy asks for, the chief's kind first."""
    if isinstance(settings, ParameterServerSettings):
        return {"chief": 1, "worker": settings.workers, "ps": settings.servers}
    assert isinstance(settings, MultiWorkerSettings)
    return {"worker": settings.workers}


def workers_of(settings: StrategySettings | None) -> int:
    """Returns the number of processes that compute; 1 where the strategy, None, needs no cluster."""
    return 1 if settings is None else member_counts(settings)["worker"]


def tasks_at(counts: Mapping[str, int], addresses: Sequence[str]) -> list[Task]:
    """Returns the tasks of a cluster whose members, in the order of `counts`, have `addresses`."""
    free = iter(addresses)
    cluster = {job: [next(free) for _ in range(count)] for job, count in counts.items()}
    return [Task(job, index, cluster) for job, count in counts.items() for index in range(count)]


def local_tasks(settings: StrategySettings) -> list[Task]:
    """Returns the tasks of a cluster on this machine, the chief first, each with a free port."""
    counts = member_counts(settings)
    return tasks_at(counts, [f"{HOST}:{port}" for port in _free_ports(sum(counts.values()))])


def task_at(index: int, addresses: Sequence[str], strategy: StrategySettings) -> Task:
    """Returns the task of the member `index` of `addresses`: workers, or a chief, the servers, then the workers.

    Raises:
        WrongTaskError: where the chief, `strategy.servers` and `strategy.workers` are more, or fewer.
    """
    counts = {"worker": len(addresses)}
    if isinstance(strategy, ParameterServerSettings):
        counts = {"chief": 1, "ps": strategy.servers, "worker": strategy.workers}
        if sum(counts.values()) != len(addresses):
            raise WrongTaskError(
                f"there are {len(addresses)} members, and a chief with strategy.servers={strategy.servers} and "
                f"strategy.workers={strategy.workers} makes {sum(counts.values())}"
            )
    return tasks_at(counts, addresses)[index]


class WrongTaskError(Exception):
    """A task cannot be: the text says why."""


def check_task(task: Task, strategy: StrategySettings) -> None:
    """Checks the members of the cluster of `task`, their addresses, and that this process's own can be listened at.

    Raises:
        WrongTaskError: where the strategy has other members, or an address is none, double, or taken.
    """
    _check_members(task, strategy)
    _check_addresses(task)


def jobs_of(strategy: StrategySettings) -> tuple[str, ...]:
    """Returns the kinds of members that a strategy has, the chief first: `multi_worker` may do without one."""
    return ("chief", "worker", "ps") if isinstance(strategy, ParameterServerSettings) else ("chief", "worker")


def _check_members(task: Task, strategy: StrategySettings) -> None:
    allowed = jobs_of(strategy)
    for job in task.cluster:
        if job not in allowed:
            raise WrongTaskError(f"{job} is no kind of task that this strategy has")
    for job in allowed if isinstance(strategy, ParameterServerSettings) else ("worker",):
        if job not in task.cluster:
            raise WrongTaskError(f"there is no {job}")
    if len(task.cluster.get("chief", [])) > 1:
        raise WrongTaskError(f"there are {len(task.cluster['chief'])} chiefs, and one at most may be")


def _check_addresses(task: Task) -> None:
    seen: dict[tuple[str, int], str] = {}
    for (job, index), address in task.addresses():
        name = f"{job} {index}"
        try:
            host, port = split_address(address)
        except ValueError as error:
            raise WrongTaskError(f"the address {address!r} of {name} is no host:port, {error}") from error
        for place in {(host.lower(), port), *((alias, port) for alias in _loopback(host))}:
            if place in seen:
                raise WrongTaskError(f"{seen[place]} and {name} have the same address, {address}")
            seen[place] = name
    host, port = split_address(task.address)
    try:
        socket.getaddrinfo(host, port)
    except OSError as error:
        raise WrongTaskError(f"this process's own host {host} is not known ({error.strerror})") from error
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
    except OSError as error:
        raise WrongTaskError(f"this process's own port {port} cannot be listened at ({error.strerror})") from error


def _loopback(host: str) -> list[str]:
    """Returns this machine's other names if `host` is one of them, without a name server."""
    return ["localhost", "127.0.0.1", "::1"] if host.lower() in ("localhost", "127.0.0.1", "::1") else []


def split_address(address: str) -> tuple[str, int]:
    """Returns host and port of `host:port`, or of `[::1]:port`.

    Raises:
        ValueError: where it is neither, with the reason.
    """
    host, _, text = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = str(ipaddress.IPv6Address(host[1:-1]))
    elif ":" in host:
        raise ValueError("an IPv6 address stands in brackets")
    if not host or len(host) > 253 or not re.fullmatch(r"[\w.:-]+", host, re.ASCII):
        raise ValueError("the host is missing or has signs that no host has")
    if not (text.isdecimal() and text.isascii() and len(text) <= 5 and 1 <= int(text) <= 65535):
        raise ValueError(f"the port {text or 'is missing;'} is not one of 1 to 65535")
    return host, int(text)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for opened_socket in sockets:
            opened_socket.bind((HOST, 0))
        return [opened_socket.getsockname()[1] for opened_socket in sockets]
