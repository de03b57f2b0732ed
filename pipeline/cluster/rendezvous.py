"""Rendezvous of members that something else has started: TensorFlow's own wait ignores signals and limits.

Each listens at its own address, and connects to the others' until every one of them has answered. A member whose
TensorFlow has already started answers there, too.
"""

import hashlib
import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pipeline.cluster.task import Task, split_address
from pipeline.system.pulse import beat
from pipeline.system.signals import pause
from stages.errors import UserError

LOG_SECONDS = 10.0
"""Seconds between two lines about missing members."""

CONNECT_SECONDS = 1.0
POLL_SECONDS = 0.2
GREETING = b"tensorflow-pipeline "


def meet(task: Task, log: Callable[[str], None]) -> None:
    """Waits until every other member of the cluster of `task` has answered.

    Args:
        log: receives a line with the missing members every LOG_SECONDS.

    Raises:
        UserError: where one is missing after `task.timeout_seconds`, or was told of others; or its own port is taken.
        Interrupted: on a signal.
    """
    limit = task.timeout_seconds or math.inf
    missing = {place: address for place, address in task.addresses() if place != (task.job, task.index)}
    began = logged = time.monotonic()
    with _answering(task):
        calls = _Calls(missing, _digest(task))
        try:
            while calls.missing:
                pause(POLL_SECONDS)
                beat()
                if calls.stranger:
                    raise UserError(calls.stranger, "the same list of members in every one of them", "")
                now, names = time.monotonic(), calls.describe()
                if calls.missing and now - began > limit:
                    raise UserError(
                        f"after {limit:g} s there is no {names}",
                        "every member, started by this command within cluster.timeout_seconds of each other",
                        f"cluster.timeout_seconds={2 * limit:g}",
                    )
                if calls.missing and now - logged >= LOG_SECONDS:
                    logged = now
                    log(f"waiting for {names} ({limit - (now - began):.0f} s left)")
        finally:
            calls.stop()


class _Calls:
    """A thread that connects to every address until it is answered. stranger: describes a member of another cluster."""

    def __init__(self, missing: dict[tuple[str, int], str], digest: bytes) -> None:
        self.missing = dict(missing)
        self.stranger: str | None = None
        self._reasons: dict[tuple[str, int], str] = {}
        self._digest = digest
        self._is_over = False
        threading.Thread(target=self._call_all, daemon=True, name="rendezvous").start()

    def describe(self) -> str:
        """Returns the missing members, with addresses and reasons as far as known."""
        parts = []
        for (job, index), address in dict(self.missing).items():
            reason = self._reasons.get((job, index))
            parts.append(f"{job} {index} at {address}" + (f" ({reason})" if reason else ""))
        return ", ".join(parts)

    def stop(self) -> None:
        self._is_over = True

    def _call_all(self) -> None:
        while self.missing and not self._is_over:
            for place, address in list(self.missing.items()):
                try:
                    answer = self._call(address)
                except socket.gaierror:
                    self._reasons[place] = "its name is not known"
                except OSError:
                    self._reasons.pop(place, None)
                else:
                    if answer.startswith(GREETING) and not answer.startswith(GREETING + self._digest):
                        self.stranger = f"{place[0]} {place[1]} at {address} was told of other members"
                    del self.missing[place]
            time.sleep(POLL_SECONDS)

    @staticmethod
    def _call(address: str) -> bytes:
        with socket.create_connection(split_address(address), timeout=CONNECT_SECONDS) as connection:
            try:
                return connection.recv(256)
            except TimeoutError:
                return b""


@contextmanager
def _answering(task: Task) -> Iterator[None]:
    """Answers at this member's own address inside the block, until TensorFlow's server does.

    Raises:
        UserError: where the port is not available.
    """
    _host, port = split_address(task.address)
    try:
        listener = listening_socket(port)
    except OSError as error:
        raise UserError(
            f"the port {port} of {task.name}, which is this process, cannot be listened at ({error.strerror})",
            "a port that no other process has, above 1023",
            "",
        ) from error
    threading.Thread(target=_greet, args=(listener, _digest(task)), daemon=True, name="greeting").start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def listening_socket(port: int) -> socket.socket:
    """Returns a socket that listens on `port` of all of this machine's addresses, as TensorFlow's server will."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=family == socket.AF_INET6)


def _greet(listener: socket.socket, digest: bytes) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # closed
            return
        with connection:
            try:
                connection.sendall(GREETING + digest)
                connection.settimeout(CONNECT_SECONDS)
                connection.recv(1)  # the peer closes first, so that this side's port stays free
            except OSError:
                continue


def _digest(task: Task) -> bytes:
    text = json.dumps({job: list(addresses) for job, addresses in task.cluster.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16].encode()
