"""Rendezvous of members that something else has started: TensorFlow's own wait ignores signals and limits.

All meet at the chief, so that the connections are as many as the members, not their square. The chief calls every
member, and each holds a connection to the chief, which sends the names of those missing, and at last `all`.
A member whose TensorFlow has already started answers in its stead, and counts as come.
"""

import asyncio
import hashlib
import json
import math
import resource
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pipeline.cluster.task import Task, split_address
from pipeline.system.pulse import beat
from pipeline.system.signals import pause
from stages.errors import UserError

LOG_SECONDS = 10.0
"""Seconds between two lines about missing members."""

POLL_SECONDS = 0.2
CALL_SECONDS = 5.0
"""Longest wait for a connection, and for the greeting on it; a chief that a thousand members call is busy."""

NAMED = 8
"""Missing members that a line names."""

GREETING, ALL, MISSING = b"tensorflow-pipeline ", b"all", b"missing "


def meet(task: Task, log: Callable[[str], None]) -> None:
    """Waits until every member of the cluster of `task` has come.

    Args:
        log: receives a line with the missing members every LOG_SECONDS.

    Raises:
        UserError: where one is missing after `task.timeout_seconds`, or has another list of members; or the own port
            is taken.
        Interrupted: on a signal.
    """
    limit = task.timeout_seconds or math.inf
    began = logged = time.monotonic()
    with _meeting(task) as meeting:
        while not meeting.is_complete:
            pause(POLL_SECONDS)
            beat()
            if meeting.stranger:
                raise UserError(meeting.stranger, "the same list of members in every one of them", "")
            now = time.monotonic()
            names = meeting.missing
            if not meeting.is_complete and now - began > limit:
                raise UserError(
                    f"after {limit:g} s there is no {names}",
                    "every member, started by this command within cluster.timeout_seconds of each other",
                    f"cluster.timeout_seconds={2 * limit:g}",
                )
            if not meeting.is_complete and now - logged >= LOG_SECONDS:
                logged = now
                log(f"waiting for {names} ({limit - (now - began):.0f} s left)")


@contextmanager
def _meeting(task: Task) -> Iterator["Chief | Member"]:
    """Meets inside the block, in a thread, at this member's own address, which is free again after it.

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
    meeting = Chief(task) if task.is_chief else Member(task)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=_run, args=(loop, meeting.run(listener)), daemon=True, name="rendezvous")
    thread.start()
    try:
        yield meeting
    finally:
        with suppress(RuntimeError):  # over
            loop.call_soon_threadsafe(_cancel_all, loop)
        thread.join(CALL_SECONDS)
        listener.close()


def _run(loop: asyncio.AbstractEventLoop, meeting: Coroutine[Any, Any, None]) -> None:
    with suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(meeting)


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()


class Chief:
    """The chief's part: calls every member until it answers, and tells those that have called the chief.

    missing: the missing members in words. stranger: describes a member of another cluster, or None.
    """

    def __init__(self, task: Task) -> None:
        self.is_complete = False
        self.stranger: str | None = None
        self._greeting = greeting(task)
        self._others = {place: address for place, address in task.addresses() if place != (task.job, task.index)}
        self._absent = dict(self._others)
        self._reasons: dict[tuple[str, int], str] = {}
        self._complete = asyncio.Event()
        self._callers: set[str] = set()
        self._told: set[asyncio.Task[None]] = set()

    @property
    def missing(self) -> str:
        absent = list(self._absent.items())
        parts = [f"{job} {index} at {at}{self._reasons.get((job, index), '')}" for (job, index), at in absent[:NAMED]]
        return ", ".join(parts) + (f" and {len(absent) - NAMED:,} more" if len(absent) > NAMED else "")

    async def run(self, listener: socket.socket) -> None:
        _allow_connections(2 * len(self._others))
        async with await asyncio.start_server(self._tell, sock=listener, backlog=len(self._others) + 16):
            while not await self._round():
                pass
            self._complete.set()
            if self._told:
                await asyncio.wait(self._told, timeout=CALL_SECONDS)
        self.is_complete = True

    async def _round(self) -> bool:
        """Calls every member until it answers; returns whether all did at once, so that none has left meanwhile."""
        self._absent = dict(self._others)
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(self._reach(place, address)) for place, address in self._others.items()]
        return all(call.result() for call in calls)

    async def _reach(self, place: tuple[str, int], address: str) -> bool:
        """Calls a member until it answers; returns whether it did at once."""
        is_first = True
        while True:
            try:
                answer = await _call(address)
            except socket.gaierror:
                self._reasons[place] = " (its name is not known)"
            except OSError:
                self._reasons.pop(place, None)
            else:
                if _is_of_another(answer, self._greeting):
                    self.stranger = f"{place[0]} {place[1]} at {address} was started with other members"
                if f"{place[0]} {place[1]}" in self._callers or not answer.startswith(GREETING):
                    del self._absent[place]
                    return is_first
                self._reasons[place] = " (it answers, but has not called)"
            is_first = False
            await asyncio.sleep(POLL_SECONDS * (1 + len(self._others) / 100))

    async def _tell(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Greets a member that has called, and tells it who is missing until nobody is."""
        told = asyncio.current_task()
        caller = ""
        assert told is not None
        self._told.add(told)
        try:
            with suppress(OSError):
                writer.write(self._greeting + b"\n")
                name, _, hello = (await asyncio.wait_for(reader.readline(), CALL_SECONDS)).partition(b": ")
                caller = name.decode(errors="replace")[:200]
                if _is_of_another(hello.rstrip(), self._greeting):
                    self.stranger = f"{caller} was started with other members"
                self._callers.add(caller)
                while not self._complete.is_set() and not reader.at_eof():
                    writer.write(MISSING + self.missing.encode() + b"\n")
                    await writer.drain()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._complete.wait(), LOG_SECONDS / 2)
                writer.write(ALL + b"\n")
                await asyncio.wait_for(reader.read(), CALL_SECONDS)  # closed by the peer, so that this port stays free
        finally:
            self._callers.discard(caller)
            self._told.discard(told)
            writer.close()


class Member:
    """A member's part: waits at the chief until it says that all have come. Attributes: see `Chief`."""

    def __init__(self, task: Task) -> None:
        self.is_complete = False
        self.stranger: str | None = None
        job = "chief" if "chief" in task.cluster else "worker"
        self._address = task.cluster[job][0]
        self._chief = self.missing = f"{job} 0 at {self._address}"
        self._greeting = greeting(task)
        self._hello = f"{task.job} {task.index}: ".encode() + self._greeting + b"\n"

    async def run(self, listener: socket.socket) -> None:
        async with await asyncio.start_server(self._answer, sock=listener):
            while not self.is_complete:
                try:
                    await self._wait_at_chief()
                except socket.gaierror:
                    self.missing = f"{self._chief} (its name is not known)"
                except OSError:
                    self.missing = self._chief
                if not self.is_complete:
                    await asyncio.sleep(POLL_SECONDS)

    async def _wait_at_chief(self) -> None:
        async with asyncio.timeout(CALL_SECONDS):
            reader, writer = await asyncio.open_connection(*split_address(self._address))
        try:
            writer.write(self._hello)
            async with asyncio.timeout(CALL_SECONDS):
                first = await _first_line(reader)
            if _is_of_another(first, self._greeting):
                self.stranger = f"{self._chief} was started with other members"
            self.is_complete = bool(first) and not first.startswith(GREETING)  # TensorFlow, which has started there
            while not self.is_complete:
                async with asyncio.timeout(LOG_SECONDS):
                    line = (await reader.readline()).rstrip()
                if not line:
                    return
                self.is_complete = line == ALL
                self.missing = line.removeprefix(MISSING).decode(errors="replace") or self._chief
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the chief's call."""
        with suppress(OSError):
            writer.write(self._greeting + b"\n")
            await asyncio.wait_for(reader.read(1), CALL_SECONDS)  # the peer closes first, so that this port stays free
        writer.close()


async def _call(address: str) -> bytes:
    """Returns how `address` answers: by a greeting, or by a byte where TensorFlow's server speaks first."""
    async with asyncio.timeout(CALL_SECONDS):
        reader, writer = await asyncio.open_connection(*split_address(address))
        try:
            answer = await _first_line(reader)
        finally:
            writer.close()
    if not answer:
        raise ConnectionResetError("closed without a greeting")
    return answer


async def _first_line(reader: asyncio.StreamReader) -> bytes:
    """Returns the line that a member begins with, one byte of whatever else there is, or nothing at the end."""
    start = await reader.read(1)
    return start + (await reader.readline()).rstrip() if start == GREETING[:1] else start


def listening_socket(port: int) -> socket.socket:
    """Returns a socket that listens on `port` of all of this machine's addresses, as TensorFlow's server will."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=family == socket.AF_INET6)


def greeting(task: Task) -> bytes:
    """Returns the line by which members of one cluster know each other: a digest of its addresses."""
    text = json.dumps({job: list(addresses) for job, addresses in task.cluster.items()}, sort_keys=True)
    return GREETING + hashlib.sha256(text.encode()).hexdigest()[:16].encode()


def _is_of_another(answer: bytes, own: bytes) -> bool:
    return answer.startswith(GREETING) and answer != own


def _allow_connections(count: int) -> None:
    """Raises this process's limit of open files, often 1,024, as far as `count` connections need and it may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = soft + count
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else min(needed, hard), hard))
