"""The Ray actor on a node: starts a process there, and reports its state."""

import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from pipeline.system.processes import LocalProcess, process_context, warm_up
from pipeline.system.pulse import Pulse

LARGEST_READ = 1 << 20

OF_THE_NODE = ("CUDA_VISIBLE_DEVICES", "HOSTNAME", "LD_LIBRARY_PATH", "TMPDIR")
"""Variables that a process takes from its node; all others are the command's."""


@dataclass(frozen=True)
class Surroundings:
    """The command's own context, for its processes on other nodes: arguments, variables, working directory, `sys.path`.

    hides_gpus: whether it sees none, as it has not claimed any; else those that Ray has given its actor.
    """

    arguments: tuple[str, ...]
    variables: dict[str, str]
    folder: str
    modules: tuple[str, ...]
    hides_gpus: bool = False

    @classmethod
    def of_this_process(cls) -> "Surroundings":
        return cls(tuple(sys.argv), dict(os.environ), str(Path.cwd()), tuple(sys.path))

    def enter(self) -> None:
        """Gives this process, which has just started, the surroundings."""
        sys.argv[:] = self.arguments
        own = {name: os.environ[name] for name in OF_THE_NODE if name in os.environ}
        os.environ.clear()
        os.environ.update({name: text for name, text in self.variables.items() if name not in OF_THE_NODE} | own)
        if self.hides_gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
        os.chdir(self.folder)
        sys.path += [place for place in self.modules if place not in sys.path]


@dataclass(frozen=True)
class Report:
    """A process as it is now. silence: seconds since its last heartbeat; printed: since the last report."""

    exitcode: int | None
    silence: float
    progress: tuple[int, float]
    cpu_seconds: float
    is_stopped: bool
    printed: bytes


class Host:
    """The actor. Its calls run in threads, several at a time; it has one process at a time."""

    def __init__(self) -> None:
        # else every process would import the main module of Ray's worker, and Ray with it
        vars(sys.modules["__main__"]).pop("__file__", None)
        warm_up()
        self._process: LocalProcess | None = None
        self._printed: Connection | None = None

    def free_address(self) -> str:
        """Returns `host:port` of this node, with a port that is free now."""
        import ray

        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def exists(self, path: str) -> bool:
        """Returns whether this node sees the file `path`."""
        return Path(path).exists()

    def start(self, target: Callable[..., None], arguments: tuple[Any, ...], around: Surroundings) -> None:
        """Starts a process that runs `target` with its Pulse and `arguments`."""
        context = process_context()
        reading, writing = context.Pipe(duplex=False)
        self._process = LocalProcess(_begin, (writing, around, target, arguments), context)
        writing.close()
        os.set_blocking(reading.fileno(), False)
        self._printed = reading

    def report(self, seconds: float) -> Report:
        """Returns the state of the process when it has printed or ended, at the latest after `seconds`."""
        process = self._process
        assert process is not None
        wait([process.sentinel, *([self._printed] if self._printed else [])], seconds)
        exitcode = process.exitcode
        return Report(
            exitcode,
            time.monotonic() - process.last_beat,
            process.progress,
            process.cpu_seconds(),
            process.is_stopped(),
            self._read(),
        )

    def signal(self, number: int) -> None:
        if self._process is not None:
            self._process.signal(number)

    def _read(self) -> bytes:
        """Returns what the process has printed, as far as it is there."""
        parts = []
        while self._printed is not None:
            try:
                part = os.read(self._printed.fileno(), LARGEST_READ)
            except BlockingIOError:
                break
            if not part:  # it has ended, or closed its output
                self._printed.close()
                self._printed = None
            parts.append(part)
        return b"".join(parts)


def _begin(
    pulse: Pulse, printed: Connection, around: Surroundings, target: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    for number in (1, 2):
        os.dup2(printed.fileno(), number)
    printed.close()
    around.enter()
    target(pulse, *arguments)
