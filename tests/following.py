"""Followers that do not import MLflow again, which would take three seconds of computing per run.

Runs in the process of the tests have a thread as their follower. Commands fork theirs (see `commands`). Tests of the
follower itself start processes, as users do.
"""

import gc
import io
import os
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from pipeline.system import signals
from pipeline.tracking import follower as module
from pipeline.tracking.follower import FollowedCommand, Follower, Threads
from pipeline.tracking.store import Store
from tests import commands

start_process = Follower._start


class InThreads:
    """Replaces the follower's process and the connection to it by threads."""

    def __init__(self) -> None:
        self._command = FollowedCommand()
        self._threads = Threads(self._command)

    def send(self, request: tuple[Path, Store, str, Any]) -> None:
        """Follow a run."""
        self._threads.start(*request[:3])

    def poll(self) -> None:
        """Report that it works."""

    def kill(self) -> None:
        """Send nothing more."""
        self._command.is_done.set()

    def wait(self) -> None:
        """Wait for the entries that are being sent."""
        self._threads.join(30)

    def close(self) -> None:
        """Do nothing."""


def start_threads(follower: Any) -> None:
    """Start threads instead of a process; replaces `Follower._start`."""
    follower._process = follower._connection = InThreads()
    follower._errors = io.BytesIO()


class Forked:
    """A child of this process, with the part of `subprocess.Popen` that `Follower` uses."""

    def __init__(self, command: Sequence[str], stderr: IO[bytes], pass_fds: Sequence[int], **_: Any) -> None:
        """Fork a process that runs `python -P -m <module> <arguments>` in a new session."""
        self._code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become(command[3:], stderr.fileno(), pass_fds)

    def poll(self) -> int | None:
        """Return the exit code, -n if signal n killed it; None while it runs."""
        return self._reap(os.WNOHANG)

    def wait(self) -> int | None:
        """Wait for its end."""
        return self._reap(0)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _reap(self, flags: int) -> int | None:
        if self._code is None and (ended := os.waitpid(self.pid, flags))[0]:
            self._code = os.waitstatus_to_exitcode(ended[1])
        return self._code


def fork_processes() -> None:
    """Have followers forked from this process, which has imported MLflow."""
    module.subprocess = SimpleNamespace(Popen=Forked, DEVNULL=subprocess.DEVNULL)  # type: ignore[attr-defined, assignment]


def _fork_by_server(command: Sequence[str], stderr: IO[bytes], pass_fds: Sequence[int], **_: Any) -> commands.Command:
    """Have the server that forks commands fork a follower of this process, which uses TensorFlow and cannot fork."""
    return commands.start_connected(pass_fds[0], command[-1], module="tests.forked_follower", stderr=stderr)


BY_SERVER = SimpleNamespace(Popen=_fork_by_server, DEVNULL=subprocess.DEVNULL)
"""Replaces `subprocess` in the module of the follower."""


def _become(arguments: Sequence[str], errors: int, kept: Sequence[int]) -> None:
    """Run the module `arguments[0]` in this process as if it were a new one, and end this process."""
    os.setsid()
    gc.freeze()  # a file of the command that became garbage would close a descriptor of this process
    signal.set_wakeup_fd(-1)
    signals._listener = signals.Listener()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, descriptor in ((0, nothing), (1, nothing), (2, errors)):
        os.dup2(descriptor, number)
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if number > 2 and number not in kept:
            with suppress(OSError):  # that of /proc/self/fd is closed already
                os.close(number)
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(io.FileIO(1, "w", closefd=False))  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), write_through=True)  # type: ignore[misc]
    sys.argv = [*arguments]
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)
