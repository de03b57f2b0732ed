"""The members of `cluster=tf_config` wait for each other before TensorFlow's own, deaf and endless, wait begins.

Each listens at its own address, and asks at the others' until every one of them has answered. A member that TensorFlow
has started already answers there, too: whoever connects is answered by something that lives.
"""

import hashlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pipeline.cluster.task import Task, split_address
from pipeline.system.pulse import beat
from pipeline.system.signals import pause
from stages.errors import UserError

SAY_SECONDS = 10.0
"""Seconds between two lines on who is waited for."""

ASK_SECONDS = 1.0
POLL_SECONDS = 0.2
GREETING = b"tensorflow-pipeline "


def meet(task: Task, limit: float, say: Callable[[str], None]) -> None:
    """Returns when every other member of the cluster of `task` has been reached.

    Args:
        limit: seconds to wait at most, by the setting `cluster.wait_seconds`.
        say: gets a line every SAY_SECONDS, with the members that are missing.

    Raises:
        UserError: where one has not come by then, or was started with another `TF_CONFIG`; or this one's port is taken.
        Interrupted: where a signal comes.
    """
    missing = {place: address for place, address in task.addresses() if place != (task.job, task.index)}
    began = said = time.monotonic()
    with _answering(task):
        asking = _Asking(missing, _digest(task))
        try:
            while asking.missing:
                pause(POLL_SECONDS)
                beat()
                if asking.stranger:
                    raise UserError(asking.stranger, "one and the same `cluster` in every member's TF_CONFIG", "")
                now, names = time.monotonic(), asking.describe()
                if asking.missing and now - began > limit:
                    raise UserError(
                        f"after {limit:g} s there is no {names}",
                        "every member of TF_CONFIG, started by this command within cluster.wait_seconds of each other",
                        f"cluster.wait_seconds={2 * limit:g}",
                    )
                if asking.missing and now - said >= SAY_SECONDS:
                    said = now
                    say(f"waiting for {names} ({limit - (now - began):.0f} s left)")
        finally:
            asking.stop()


class _Asking:
    """A thread that asks at every address until something has answered there. stranger: an answer that is wrong."""

    def __init__(self, missing: dict[tuple[str, int], str], digest: bytes) -> None:
        self.missing = dict(missing)
        self.stranger: str | None = None
        self._reasons: dict[tuple[str, int], str] = {}
        self._digest = digest
        self._is_over = False
        threading.Thread(target=self._ask, daemon=True, name="rendezvous").start()

    def describe(self) -> str:
        """Returns who is missing, where, and why if it is known."""
        parts = []
        for (job, index), address in dict(self.missing).items():
            reason = self._reasons.get((job, index))
            parts.append(f"{job} {index} at {address}" + (f" ({reason})" if reason else ""))
        return ", ".join(parts)

    def stop(self) -> None:
        self._is_over = True

    def _ask(self) -> None:
        while self.missing and not self._is_over:
            for place, address in list(self.missing.items()):
                try:
                    answer = self._answer(address)
                except socket.gaierror:
                    self._reasons[place] = "its name is not known"
                except OSError:
                    self._reasons.pop(place, None)
                else:
                    if answer.startswith(GREETING) and not answer.startswith(GREETING + self._digest):
                        self.stranger = f"{place[0]} {place[1]} at {address} was started with another TF_CONFIG"
                    del self.missing[place]
            time.sleep(POLL_SECONDS)

    @staticmethod
    def _answer(address: str) -> bytes:
        with socket.create_connection(split_address(address), timeout=ASK_SECONDS) as connection:
            try:
                return connection.recv(256)
            except TimeoutError:
                return b""


@contextmanager
def _answering(task: Task) -> Iterator[None]:
    """Answers at this member's own address inside the block, until TensorFlow's server does.

    Raises:
        UserError: where the port cannot be listened at.
    """
    _host, port = split_address(task.address)
    try:
        listener = listening_socket(port)
    except OSError as error:
        raise UserError(
            f"TF_CONFIG: this process's own port {port} cannot be listened at ({error.strerror})",
            "a port that no other process has, above 1023",
            "another port for it, in every member's TF_CONFIG",
        ) from error
    threading.Thread(target=_greet, args=(listener, _digest(task)), daemon=True, name="greeting").start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def listening_socket(port: int) -> socket.socket:
    """Returns a socket that listens at `port` of all of this machine's addresses, as TensorFlow's server will."""
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
                connection.settimeout(ASK_SECONDS)
                connection.recv(1)  # the other one closes first: this side's port stays free
            except OSError:
                continue


def _digest(task: Task) -> bytes:
    text = json.dumps({job: list(addresses) for job, addresses in task.cluster.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16].encode()
