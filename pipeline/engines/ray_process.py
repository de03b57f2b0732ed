"""Processes on Ray's nodes, as the command sees them."""

import codecs
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from pipeline.engines.ray_host import Report, Surroundings
from pipeline.system.processes import ChildProcess

REPORT_SECONDS = 1.0
"""Seconds between two reports of a process that prints nothing."""

KILL_SECONDS = 5.0
"""Seconds for an actor to answer that its process has been killed, after which the actor is."""


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

        if self._exitcode is None:
            self._host.signal.remote(signal.SIGKILL)
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
            while code is None:
                report = ray.get(self._host.report.remote(REPORT_SECONDS))
                self._report = report
                self._reported = time.monotonic()
                if report.printed:
                    sys.stdout.write(text.decode(report.printed))
                    sys.stdout.flush()
                code = report.exitcode
        except ray.exceptions.RayActorError:
            self.lost = "its actor in Ray, or the node of that, has died"
            code = -signal.SIGKILL
        except Exception as error:  # what the node cannot unpickle or start
            self.lost = f"could not be started on its node ({str(error).strip().splitlines()[-1]})"
            code = 1
        self._exitcode = code
        self._ended.set()
        os.close(self._held)
