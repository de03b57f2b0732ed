"""Processes that reload exported files without this project, as their users will.

Each is `python -I`, which sees installed packages alone. Its import of TensorFlow takes seconds, so a run starts it
ahead (`ahead`), while it imports TensorFlow itself, and a sweep has one process (`serving`) that forks another for each
of its jobs, once the first of them has begun.
"""

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from stages.errors import UserError
from stages.safe_places import safe_place

_SCRIPT = Path(__file__).parent / "standalone.py"
_TICK_SECONDS = 0.2

started_ahead: dict[str, "Reloader"] = {}
"""Processes that were started before they are needed, by their runtime."""

_servers: dict[str, str] = {}
"""Addresses of the processes that fork fresh ones, by their runtime."""


class Reloader(ABC):
    """A process that takes orders of `stages.exporters.standalone`, one after another.

    It computes on the CPU, as the GPUs' memory is the run's. It ends with `close`, and with this process.
    """

    def __init__(self, orders: BinaryIO, answers: BinaryIO) -> None:
        self._orders = orders
        self._answers = answers
        self._end: dict[str, Any] | None = None

    @property
    @abstractmethod
    def is_alive(self) -> bool:
        """Whether it can take orders."""

    def ask(self, order: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Returns the answer to an order.

        Raises:
            UserError: where the file cannot be reloaded, the process has died, or `seconds` have passed.
        """
        name = Path(order["path"]).name
        until = time.monotonic() + seconds
        with suppress(ConnectionError):  # it has died: how, its answer says
            self._orders.write(f"{json.dumps(dict(order))}\n".encode())
            self._orders.flush()
        while not select.select([self._answers], [], [], _TICK_SECONDS)[0]:
            safe_place()
            if time.monotonic() > until:
                raise UserError(
                    f"export: {name} was not reloaded and compared within {seconds:g} seconds",
                    "more time, fewer examples, or no process of its own",
                    f"export.reload_seconds={2 * seconds:g}",
                )
        try:
            line = self._answers.readline()
        except ConnectionError:
            line = b""
        answer = json.loads(line) if line else self._end or self._last_words()
        if "died" in answer:
            self._end = answer
            raise UserError(
                f"export: the process that reloads {name} has died with {answer['died']}",
                "memory for a second process, or none",
                "export.reload=here",
            )
        if "error" in answer:
            raise UserError(
                f"export: {name} cannot be reloaded without this project ({answer['error']})",
                "a format that can hold this network",
                "export=saved_model",
            )
        return dict(answer)

    @abstractmethod
    def _last_words(self) -> dict[str, Any]:
        """Returns how the process has ended: `died`, its exit code and the last that it printed."""

    def close(self) -> None:
        """Ends the process."""
        for file in (self._orders, self._answers):
            with suppress(ConnectionError):  # of an order that nobody read
                file.close()


class FreshProcess(Reloader):
    """A process of this one's own, which has already begun to import `runtime`."""

    def __init__(self, runtime: str) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._process = _start([runtime], stdout=subprocess.PIPE, stderr=self._errors)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        super().__init__(self._process.stdin, self._process.stdout)  # type: ignore[arg-type]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def _last_words(self) -> dict[str, Any]:
        code = self._process.wait()
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        return {"died": f"exit code {code} ({last[0][:300]})"}

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        super().close()
        self._errors.close()


class ForkedProcess(Reloader):
    """A process that the one at `address` has forked, which has imported its runtime."""

    def __init__(self, address: str) -> None:
        """Raises OSError where nothing listens at `address`."""
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(address)
            super().__init__(self._socket.makefile("wb"), self._socket.makefile("rb"))
            self._orders.write(f"{json.dumps({'environment': _environment(), 'folder': _directory()})}\n".encode())
            self._orders.flush()
        except BaseException:
            self._socket.close()
            raise

    @property
    def is_alive(self) -> bool:
        if self._end:  # it has said so, and may still be about to close the connection
            return False
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:  # it says nothing before it is asked, but how it has died
            return True
        except OSError:
            pass
        return False

    def _last_words(self) -> dict[str, Any]:
        return {"died": "the one that it was forked from"}

    def close(self) -> None:
        """Ends the process: the one that it was forked from kills it when the connection closes."""
        super().close()
        self._socket.close()


def _directory() -> str:
    """Returns the working directory; that of temporary files where it was removed while this process ran."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return tempfile.gettempdir()


def _environment() -> dict[str, str]:
    hidden = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return {name: value for name, value in os.environ.items() if name != "TF_CONFIG"} | hidden


def _start(arguments: list[str], **streams: Any) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-I", str(_SCRIPT), *arguments],
        stdin=subprocess.PIPE,
        env=_environment(),
        start_new_session=True,  # a terminal's signals are the run's
        **streams,
    )


@contextmanager
def fresh_processes(runtimes: set[str]) -> Iterator[dict[str, Reloader]]:
    """Yields a process for each runtime, and ends them with the block."""
    processes: dict[str, Reloader] = {}
    try:
        for runtime in sorted(runtimes):
            processes[runtime] = _process_for(runtime)
        yield processes
    finally:
        for process in processes.values():
            process.close()


def _process_for(runtime: str) -> Reloader:
    early = started_ahead.pop(runtime, None)
    if early is not None:
        if early.is_alive:
            return early
        early.close()
    return _new(runtime)


def _new(runtime: str) -> Reloader:
    if runtime in _servers:
        with suppress(OSError):  # it has died: a process of this one's own takes its place
            return ForkedProcess(_servers[runtime])
    return FreshProcess(runtime)


@contextmanager
def ahead(runtime: str) -> Iterator[None]:
    """Starts the process that `fresh_processes` yields for `runtime` in the block, and ends it if nobody took it."""
    try:
        started_ahead[runtime] = process = _new(runtime)
    except OSError:  # no room for a process now: the export asks again
        yield
        return
    try:
        yield
    finally:
        if started_ahead.pop(runtime, None) is not None:
            process.close()


@contextmanager
def serving(runtime: str) -> Iterator[None]:
    """Starts a process that forks those of `runtime` for all jobs that get its `servers`, and ends it with the block.

    It imports `runtime` when the first of them asks: before, the sweep's own imports need the cores. Its socket is in a
    folder that only this user can enter.
    """
    with tempfile.TemporaryDirectory(prefix="fresh-") as folder:
        address = str(Path(folder) / "socket")
        with suppress(OSError), socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)  # before any job asks: it waits for the import
            listener.listen(128)
            process = _start(
                [runtime, str(listener.fileno())],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
            )
            _servers[runtime] = address
        try:
            yield
        finally:
            if _servers.pop(runtime, None) is not None:
                process.kill()
                process.wait()
                assert process.stdin is not None
                process.stdin.close()


def servers() -> dict[str, str]:
    """Returns the addresses of the processes that fork fresh ones, by their runtime: for `use_servers` in a job."""
    return dict(_servers)


def use_servers(addresses: Mapping[str, str]) -> None:
    """Has `fresh_processes` in this process ask those at `addresses` from now on."""
    _servers.clear()
    _servers.update(addresses)
