"""Processes that this one has started and watches, on this machine or elsewhere."""

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.context import BaseContext
from typing import Any, Protocol

import psutil

from pipeline.system.processes import process_context, start
from pipeline.system.pulse import Pulse


class ChildProcess(ABC):
    """A process that has been started.

    Attributes:
        sentinel: becomes ready, for `multiprocessing.connection.wait`, when the process ends.
        lost: why nothing more is known of it, where it ended with the machine or the program that held it.
    """

    sentinel: int
    lost: str | None = None

    @property
    @abstractmethod
    def exitcode(self) -> int | None:
        """None while it runs; -n where signal n killed it."""

    @property
    @abstractmethod
    def last_beat(self) -> float:
        """Time of its last heartbeat, in seconds of this process's `time.monotonic()`."""

    @property
    @abstractmethod
    def progress(self) -> tuple[int, float]:
        """The last epoch that has ended, 0 for none, and the best validation accuracy so far, or NaN."""

    @abstractmethod
    def cpu_seconds(self) -> float:
        """Returns the seconds of computing that it has used."""

    @abstractmethod
    def is_stopped(self) -> bool:
        """Returns whether it has been stopped, as by SIGSTOP."""

    @abstractmethod
    def signal(self, number: int) -> None:
        """Sends it a signal; no-op where it has ended."""

    @abstractmethod
    def join(self) -> None:
        """Waits for its end."""

    def kill(self) -> None:
        """Ends it by force; `join` waits for that."""
        self.signal(signal.SIGKILL)


class Start(Protocol):
    """Starts a process that runs `target` with the Pulse to adopt, and then `arguments`."""

    def __call__(self, target: Callable[..., None], arguments: tuple[Any, ...]) -> ChildProcess: ...


class LocalProcess(ChildProcess):
    """A process on this machine."""

    def __init__(
        self, target: Callable[..., None], arguments: tuple[Any, ...], context: BaseContext | None = None
    ) -> None:
        context = context or process_context()
        self._pulse = Pulse(context)
        self._process = start(context, target, (self._pulse, *arguments))
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.sentinel = self._process.sentinel
        self._use = psutil.Process(self.pid)

    @property
    def exitcode(self) -> int | None:
        return self._process.exitcode

    @property
    def last_beat(self) -> float:
        return self._pulse.last

    @property
    def progress(self) -> tuple[int, float]:
        return self._pulse.progress

    def cpu_seconds(self) -> float:
        try:
            used = self._use.cpu_times()
        except psutil.Error:
            return 0.0
        return float(used.user + used.system)

    def is_stopped(self) -> bool:
        try:
            return bool(self._use.status() == psutil.STATUS_STOPPED)
        except psutil.Error:
            return False

    def signal(self, number: int) -> None:
        if self._process.exitcode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def join(self) -> None:
        self._process.join()
