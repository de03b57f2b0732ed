"""Launchers for members that something else starts, such as Kubernetes: `cluster=tf_config` and `cluster=hosts`.

The members wait for each other here, because TensorFlow's own wait ignores signals and time limits. Every member
connects to the chief, and stays connected until the chief reports that all are there. A member that is started again
connects again. If TensorFlow already runs in the chief, the reply is in a different protocol, which means that all
members are there.
"""

import json
import os
import re
import select
import socket
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from itertools import islice

from pipeline.console import Console
from pipeline.decide.decision import Decision
from pipeline.execute.link import Link
from pipeline.execute.task import Task, tasks_at
from pipeline.launch.handle import Handle
from pipeline.launch.launcher import Launcher, run_here
from pipeline.system.processes import watch
from pipeline.system.signals import owns_process, pause
from stages.errors import UserError
from stages.settings.strategy import StrategySettings

POLL_SECONDS = 0.2
LOG_SECONDS = 10.0
"""Seconds between two lines about missing members."""

CALL_SECONDS = 2.0
"""Timeout of a connection, and of the first message on it."""

TAKEN = b"taken"
"""Message of the chief to a second process of the same member."""

MOST_NAMED = 8
"""Number of missing members that a line names."""

ADDRESS = re.compile(r"(?:\[([\da-f:]+)\]|([\w.-]+)):(\d{1,5})", re.ASCII | re.IGNORECASE)


class Joined(Launcher):
    """Base of these launchers. This process is a member, and waits for the others."""

    @abstractmethod
    def task(self, strategy: StrategySettings) -> Task:
        """Return the place of this process in the cluster.

        Raises:
            UserError: If the environment does not identify it, or if `strategy` does not support such a cluster.
        """

    def start(
        self, decision: Decision, console: Console, link: Link | None = None, started: float | None = None
    ) -> Handle:
        task = None
        strategy = decision.experiment.of("strategy", StrategySettings)
        if strategy is not None and strategy.members():
            task = self.task(strategy)
            check_members(task, strategy)
            _listener(task, 0).close()  # before anything starts: a second process of this member stops here
            task = replace(task, meet=partial(wait_for_members, task, self.settings.timeout_seconds))
            os.environ["TF_CONFIG"] = task.tf_config
        if owns_process():
            watch(decision.experiment.hang_seconds)
        return run_here(decision, console, link, started, task)


class TfConfig(Joined):
    """Every member is started with its own `TF_CONFIG`, as Kubernetes' TFJob and Vertex AI do."""

    def task(self, strategy: StrategySettings) -> Task:
        text = os.environ.get("TF_CONFIG", "")
        try:
            config = json.loads(text)
            cluster = {str(job): [str(address) for address in members] for job, members in config["cluster"].items()}
            task = Task(config["task"]["type"], int(config["task"]["index"]), cluster)
            if not 0 <= task.index < len(cluster[task.job]):
                raise IndexError(f"there is no {task.job} {task.index}")
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            problem = (
                f"cluster=tf_config: TF_CONFIG={text[:200]} does not identify this process as a member ({error!r})"
            )
            fix = 'TF_CONFIG=\'{"cluster": {"worker": ["host:port", …]}, "task": {"type": "worker", "index": 0}}\''
            raise UserError(problem, f"a cluster with {', '.join(strategy.members())}, and a task", fix) from error
        return task


class Hosts(Joined):
    """The members are a list of addresses. This process is the member whose address is on this host."""

    def task(self, strategy: StrategySettings) -> Task:
        hosts = list(self.settings.hosts)
        index = self.settings.index
        if index is None:
            own = [number for number, address in enumerate(hosts) if _is_here(address)]
            index = own[0] if len(own) == 1 else len(hosts)
        if index >= len(hosts):
            problem = f"cluster.hosts={','.join(hosts)} does not identify this process ({socket.gethostname()})"
            raise UserError(problem, "one address of this host, or cluster.index, counted from 0", "cluster.index=0")
        return task_at(index, hosts, strategy)


def task_at(index: int, addresses: Sequence[str], strategy: StrategySettings) -> Task:
    """Return the task of the member `index` of `addresses`: workers, or a chief, the servers, then the workers.

    Raises:
        UserError: If the strategy needs a different number of members.
    """
    members = strategy.members()
    if len(members) == 1:
        members = {"worker": len(addresses)}
    if sum(members.values()) != len(addresses):
        counts = ", ".join(f"{count} {job}" for job, count in members.items())
        raise UserError(f"the cluster has {len(addresses)} members", f"the members of the strategy: {counts}")
    return tasks_at(members, addresses)[index]


def check_members(task: Task, strategy: StrategySettings) -> None:
    """Refuse a cluster whose members do not fit `strategy`. TensorFlow would wait for missing ones forever."""
    jobs = strategy.members()
    names = task.addresses()
    if {*task.cluster} | {"chief"} != {*jobs} | {"chief"} or "chief 1" in names:
        raise UserError(
            f"the cluster has the members {', '.join(names)}", f"the members {', '.join(jobs)}, with at most one chief"
        )
    for address in names.values():
        split_address(address)


def _is_here(address: str) -> bool:
    """Return whether the host of `address` is this machine, which is so if a socket can be bound to it."""
    with suppress(OSError):
        for family, kind, *_, place in socket.getaddrinfo(split_address(address)[0], 0, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind(place)
                return True
    return False


def wait_for_members(task: Task, limit: float, log: Callable[[str], None]) -> None:
    """Wait until every member of the cluster of `task` is there.

    Args:
        task: The role of this process.
        limit: The longest wait in seconds.
        log: Receives a line with the missing members every LOG_SECONDS.

    Raises:
        UserError: If a member is missing after `limit`, or if the chief's port is in use.
        Interrupted: After a signal.
    """
    began = logged = time.monotonic()
    with closing(_take_calls(task) if task.is_chief else _call_chief(task)) as waits:
        for missing in waits:
            pause(POLL_SECONDS)
            now = time.monotonic()
            if now - began > limit:
                problem = f"{_described(missing)} did not connect within {limit:g} s"
                fix = f"cluster.timeout_seconds={2 * limit:g}"
                raise UserError(problem, "every member to be started with this command within that time", fix)
            if now - logged >= LOG_SECONDS:
                logged = now
                log(f"waiting for {_described(missing)} ({limit - (now - began):.0f} s left)")


def split_address(address: str) -> tuple[str, int]:
    """Return the host and the port of `host:port` or `[::1]:port`.

    Raises:
        UserError: If `address` has a different form.
    """
    match = ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[3]) < 65536:
        raise UserError(f"{address!r} is not the address of a cluster member", "<host>:<port>")
    return match[1] or match[2], int(match[3])


def _take_calls(task: Task) -> Generator[Mapping[str, str], None, None]:
    """Accept connections as the chief. Yield the missing members, with their addresses, until all are there."""
    others = task.addresses()
    del others[f"{task.job} {task.index}"]
    here: dict[str, socket.socket] = {}
    with ExitStack() as lines:
        listener = lines.enter_context(_listener(task, len(others)))
        while len(here) < len(others):
            if not select.select([listener], [], [], 0)[0]:
                yield {name: address for name, address in others.items() if name not in here}
                continue
            line = lines.enter_context(listener.accept()[0])
            name = _caller(line)
            if name in here and not select.select([here[name]], [], [], 0)[0]:  # readable if that member has left
                with suppress(OSError):
                    line.sendall(TAKEN)
            elif name in others:
                here[name] = line
        for line in here.values():
            with suppress(OSError):
                line.sendall(b"all")
        for line in here.values():  # the caller closes first, so that this port is free for TensorFlow
            line.settimeout(CALL_SECONDS)
            with suppress(OSError):
                line.recv(1)


def _call_chief(task: Task) -> Generator[Mapping[str, str], None, None]:
    """Connect to the chief. Yield it as missing until it reports that all members are there.

    The port of this member is in use during the wait, so a second process of the same member is refused.
    """
    name = f"{task.chief} 0"
    address = task.addresses()[name]
    with _listener(task, 0):
        yield from _calls(task, name, address)


def _calls(task: Task, name: str, address: str) -> Generator[Mapping[str, str], None, None]:
    while True:
        with suppress(OSError), socket.create_connection(split_address(address), CALL_SECONDS) as line:
            line.sendall(f"{task.job} {task.index}".encode())
            line.settimeout(POLL_SECONDS)
            while True:
                with suppress(TimeoutError):
                    if answer := line.recv(100):  # `all`, or a message of TensorFlow's server
                        if answer == TAKEN:
                            problem = f"another process is already {task.name} of this cluster"
                            raise UserError(problem, "one process per member", "cluster.index=<another>")
                        return
                    break  # the chief has left
                yield {f"member that {name} waits for": address}
        yield {name: address}


def _listener(task: Task, backlog: int) -> socket.socket:
    """Return a socket that listens on all addresses of this machine, as TensorFlow's server will."""
    port = split_address(task.address)[1]
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    is_dual = family == socket.AF_INET6
    try:
        return socket.create_server(("", port), family=family, backlog=backlog + 16, dualstack_ipv6=is_dual)
    except OSError as error:
        why = os.strerror(error.errno or 0)  # its own text repeats the address
        problem = f"this process, {task.name}, cannot listen on its port {port} ({why})"
        raise UserError(problem, "one process per member, and an unused port above 1023") from error


def _caller(line: socket.socket) -> str:
    """Return the first message on a connection, which is the name of a member if a member has connected."""
    line.settimeout(CALL_SECONDS)
    with suppress(OSError):
        return line.recv(100).decode(errors="replace")
    return ""


def _described(missing: Mapping[str, str]) -> str:
    parts = [f"{name} at {address}" for name, address in islice(missing.items(), MOST_NAMED)]
    more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
    return ", ".join(parts) + more
