"""Rendezvous of members that something else has started: TensorFlow's own wait ignores signals and time limits.

Every member calls the chief and holds the line until the chief says that all have come. A member that leaves is missing
again. A chief whose TensorFlow runs already answers in another protocol, and counts as complete.
"""

import hashlib
import json
import re
import socket
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, closing, suppress
from itertools import islice

from pipeline.run.engine import Task
from pipeline.system.pulse import beat
from pipeline.system.signals import pause
from stages.errors import UserError

POLL_SECONDS = 0.2
LOG_SECONDS = 10.0
"""Seconds between two lines about missing members."""

CALL_SECONDS = 2.0
"""Longest wait for a connection, and for the greeting on it."""

MOST_NAMED = 8
"""Missing members that a line names."""

ADDRESS = re.compile(r"(?:\[([\da-f:]+)\]|([\w.-]+)):(\d{1,5})", re.ASCII | re.IGNORECASE)


def wait_for_members(task: Task, limit: float, log: Callable[[str], None]) -> None:
    """Wait until every member of the cluster of `task` has come.

    Args:
        limit: longest wait in seconds. log: receives a line with the missing members every LOG_SECONDS.

    Raises:
        UserError: where one is missing after `limit` or has another list of members, or the chief's port is taken.
        Interrupted: on a signal.
    """
    began = logged = time.monotonic()
    with closing(_take_calls(task) if task.is_chief else _call_chief(task)) as waits:
        for missing in waits:
            pause(POLL_SECONDS)
            beat()
            now = time.monotonic()
            if now - began > limit:
                raise UserError(
                    f"after {limit:g} s there is no {_described(missing)}",
                    "every member, started by this command within cluster.timeout_seconds of each other",
                    f"cluster.timeout_seconds={2 * limit:g}",
                )
            if now - logged >= LOG_SECONDS:
                logged = now
                log(f"waiting for {_described(missing)} ({limit - (now - began):.0f} s left)")


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port`, or of `[::1]:port`.

    Raises:
        UserError: where it is neither.
    """
    match = ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[3]) < 65536:
        raise UserError(f"{address!r} is no address of a member of a cluster", "<host>:<port>")
    return match[1] or match[2], int(match[3])


def _take_calls(task: Task) -> Generator[Mapping[str, str], None, None]:
    """Take the members' calls as the chief; yield the missing members, with their addresses, until all were told."""
    others = task.addresses()
    del others[f"{task.job} {task.index}"]
    here: dict[str, socket.socket] = {}
    with ExitStack() as lines:
        listener = lines.enter_context(_listener(task, len(others)))
        while True:
            with suppress(BlockingIOError):
                while True:
                    line = listener.accept()[0]
                    name = _caller(line, task)
                    if name in others:
                        here[name] = lines.enter_context(line)
                    else:
                        line.close()
            here = {name: line for name, line in here.items() if not _has_left(line)}
            if len(here) == len(others):
                break
            yield {name: address for name, address in others.items() if name not in here}
        for line in here.values():
            with suppress(OSError):
                line.sendall(b"all")
        for line in here.values():  # the caller closes first, so that this port is free for TensorFlow
            line.settimeout(CALL_SECONDS)
            with suppress(OSError):
                line.recv(1)


def _call_chief(task: Task) -> Generator[Mapping[str, str], None, None]:
    """Call the chief; yield it as missing until it says that all have come."""
    name = f"{task.chief} 0"
    address = task.addresses()[name]
    while True:
        with suppress(OSError), socket.create_connection(split_address(address), CALL_SECONDS) as line:
            line.sendall(f"{task.job} {task.index}: {_digest(task)}".encode())
            line.settimeout(POLL_SECONDS)
            while (answer := _answer(line)) is None:
                yield {f"member that {name} waits for": address}
            if answer:  # `all`, or what TensorFlow's server says
                return
        yield {name: address}


def _listener(task: Task, backlog: int) -> socket.socket:
    """Return a socket that listens on all of this machine's addresses, as TensorFlow's server will."""
    port = split_address(task.address)[1]
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    is_dual = family == socket.AF_INET6
    try:
        listener = socket.create_server(("", port), family=family, backlog=backlog + 16, dualstack_ipv6=is_dual)
    except OSError as error:
        raise UserError(
            f"the port {port} of {task.name}, which is this process, cannot be listened at ({error.strerror})",
            "a port that no other process has, above 1023",
        ) from error
    listener.setblocking(False)
    return listener


def _caller(line: socket.socket, task: Task) -> str:
    """Return the name of the member that calls, or what else a caller says.

    Raises:
        UserError: where it has another list of members.
    """
    line.settimeout(CALL_SECONDS)
    try:
        name, _, digest = line.recv(100).decode(errors="replace").partition(": ")
    except OSError:
        return ""
    if digest and name in task.addresses() and digest != _digest(task):
        raise UserError(f"{name} was started with other members", "the same list of members in every one of them")
    line.setblocking(False)
    return name


def _answer(line: socket.socket) -> bytes | None:
    """Return what the chief says, nothing where it has left, None while it is silent."""
    try:
        return line.recv(100)
    except TimeoutError:
        return None


def _has_left(line: socket.socket) -> bool:
    try:
        return not line.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _described(missing: Mapping[str, str]) -> str:
    parts = [f"{name} at {address}" for name, address in islice(missing.items(), MOST_NAMED)]
    more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
    return ", ".join(parts) + more


def _digest(task: Task) -> str:
    text = json.dumps({job: list(addresses) for job, addresses in task.cluster.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
