"""Processes on Ray's nodes: each is started by an actor there, and known to the command by the actor's reports."""

import codecs
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from pipeline.system.processes import ChildProcess, LocalProcess, process_context, warm_up
from pipeline.system.pulse import Pulse

REPORT_SECONDS = 1.0
"""Seconds between two reports of a process that prints nothing."""

KILL_SECONDS = 5.0
"""Seconds for an actor to answer that its process has been killed, after which the actor is."""

LARGEST_READ = 1 << 20

OF_THE_NODE = ("CUDA_VISIBLE_DEVICES", "HOSTNAME", "LD_LIBRARY_PATH", "TMPDIR")
"""Variables that a process takes from its node; all others are the command's."""


@dataclass(frozen=True)
class Surroundings:
    """The command's own context, for its processes on other nodes.

    outputs: a folder that all nodes share.
    hides_gpus: whether a process sees none, as it has not claimed any; else those that Ray has given its actor.
    """

    arguments: tuple[str, ...]
    variables: dict[str, str]
    folder: str
    modules: tuple[str, ...]
    outputs: str
    hides_gpus: bool = False

    @classmethod
    def of_this_process(cls, outputs: str) -> "Surroundings":
        return cls(tuple(sys.argv), dict(os.environ), str(Path.cwd()), tuple(sys.path), outputs)

    def enter(self) -> None:
        """Give this process, which has just started, the surroundings."""
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

    def free_address(self) -> str:
        """Return `host:port` of this node, with a port that is free now."""
        import ray

        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def start(self, target: Callable[..., None], arguments: tuple[Any, ...], around: Surroundings) -> None:
        """Start a process that runs `target` with its Pulse and `arguments`."""
        for folder in (around.folder, around.outputs):
            if not Path(folder).is_dir():
                raise FileNotFoundError(f"{folder} is not there, and has to be shared by all nodes")
        context = process_context()
        self._printed, writing = context.Pipe(duplex=False)
        self._process = LocalProcess(_begin, (writing, around, target, arguments), context)
        writing.close()
        os.set_blocking(self._printed.fileno(), False)

    def report(self, seconds: float) -> Report:
        """Return the state of the process when it has printed or ended, at the latest after `seconds`."""
        process = self._process
        assert process is not None
        wait([process.sentinel, self._printed], seconds)
        silence = time.monotonic() - process.last_beat
        state = (process.exitcode, silence, process.progress, process.cpu_seconds(), process.is_stopped())
        try:
            return Report(*state, os.read(self._printed.fileno(), LARGEST_READ))
        except BlockingIOError:
            return Report(*state, b"")

    def signal(self, number: int) -> None:
        if self._process is not None:
            self._process.signal(number)


def _begin(
    pulse: Pulse, printed: Connection, around: Surroundings, target: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    for number in (1, 2):
        os.dup2(printed.fileno(), number)
    printed.close()
    around.enter()
    target(pulse, *arguments)


class RayProcess(ChildProcess):
    """A process of `host`, a handle of the actor Host. A thread asks for its reports until it has ended."""

    def __init__(
        self, host: Any, target: Callable[..., None], arguments: tuple[Any, ...], around: Surroundings
    ) -> None:
        self._host = host
        self._report = Report(None, 0.0, (0, float("nan")), 0.0, False, b"")
        self._reported = time.monotonic()
        self._exitcode: int | None = None
        self._ended = threading.Event()
        self.sentinel, self._held = os.pipe()  # readable when the other end is closed
        begun = host.start.remote(target, arguments, around)
        threading.Thread(target=self._follow, args=(begun,), daemon=True, name="ray process").start()

    def __del__(self) -> None:
        os.close(self.sentinel)

    @property
    def exitcode(self) -> int | None:
        return self._exitcode

    @property
    def last_beat(self) -> float:
        return self._reported - self._report.silence

    @property
    def progress(self) -> tuple[int, float]:
        return self._report.progress

    def cpu_seconds(self) -> float:
        return self._report.cpu_seconds

    def is_stopped(self) -> bool:
        return self._report.is_stopped

    def signal(self, number: int) -> None:
        if self._exitcode is None:
            self._host.signal.remote(number)

    def kill(self) -> None:
        import ray

        self.signal(signal.SIGKILL)
        if not self._ended.wait(KILL_SECONDS):
            ray.kill(self._host)

    def join(self) -> None:
        self._ended.wait()

    def _follow(self, begun: Any) -> None:
        import ray

        code: int | None = None
        text = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            ray.get(begun)
            while code is None or self._report.printed:
                self._report = ray.get(self._host.report.remote(REPORT_SECONDS))
                self._reported = time.monotonic()
                sys.stdout.write(text.decode(self._report.printed))
                sys.stdout.flush()
                code = self._report.exitcode
        except ray.exceptions.RayActorError:
            self.lost = "its actor in Ray, or the node of that, has died"
            code = -signal.SIGKILL
        except Exception as error:  # what the node cannot unpickle or start
            self.lost = f"could not be started on its node ({str(error).strip().splitlines()[-1]})"
            code = 1
        self._exitcode = code
        self._ended.set()
        os.close(self._held)
