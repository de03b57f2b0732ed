"""Processes of a run: their preparation, their exit codes, and the signals that their parent forwards."""

import math
import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any, NoReturn

from omegaconf import OmegaConf

from pipeline.console import Console
from pipeline.exit_codes import FAILED
from pipeline.planning.job import Job
from pipeline.redaction import guard_output, learn
from pipeline.system import environment, pulse, signals, streams
from pipeline.system.processes import LocalProcess, become_independent
from pipeline.system.pulse import Pulse, Watch
from pipeline.system.signals import Interrupted, Request
from pipeline.system.streams import no_room
from stages.errors import UserError

STOP_SECONDS = 7.0
"""Seconds without a heartbeat after which a process that was asked to end is killed."""

POLL_SECONDS = 0.2


def enter(job: Job, heartbeats: Pulse, stop: int | None = signal.SIGTERM) -> None:
    """Prepares this newly started process for `job`.

    Args:
        heartbeats: shared with the process that watches this one.
        stop: the signal that asks this process to end when its parent has ended, if any.
    """
    learn(OmegaConf.to_container(job.experiment.document, resolve=True))
    environment.prepare()
    become_independent(stop)
    streams.guard()
    guard_output()
    pulse.adopt(heartbeats)


def code_of(work: Callable[[], int], console: Console, refused: int = FAILED) -> int:
    """Returns the exit code of `work`; prints its error.

    Args:
        refused: the code for a UserError.
    """
    try:
        return work()
    except Interrupted as interrupted:
        if interrupted.exit_code == FAILED:
            console.error(f"this process is ended by {interrupted}")
        return interrupted.exit_code
    except UserError as error:
        console.error(str(error))
        return refused
    except BaseException as error:
        console.error(str(no_room(error) or traceback.format_exc()))
        return FAILED


def leave(work: Callable[[], int], console: Console, refused: int = FAILED) -> NoReturn:
    """Ends this process with the exit code of `work`; past TensorFlow's destructors, which wait for lost members."""
    with signals.listening(owns_process=True), signals.interruptible(signals.BEFORE_RUN_SECONDS):
        code = code_of(work, console, refused)
        console.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class WatchedProcess(LocalProcess):
    """A process that is killed where it gives no sign of life, also when it was asked to end.

    Attributes:
        why: the reason for which it was killed; empty where it was not.
    """

    def __init__(self, target: Callable[..., None], arguments: tuple[Any, ...], limit: float | None = None) -> None:
        """Start it; see `LocalProcess`.

        Args:
            limit: seconds without a heartbeat after which it hangs; None: it may.
        """
        super().__init__(target, arguments)
        self.why = ""
        self._watch = Watch(self, math.inf if limit is None else limit)
        self._forwarded = 0

    def poll(self) -> int | None:
        """Returns the exit code, 128 + n if signal n killed it, or None while it runs; to be called periodically."""
        if self.exitcode is not None:
            self.join()
            return 128 - self.exitcode if self.exitcode < 0 else self.exitcode
        if self._watch.hangs():
            self.why = f"gave no sign of life for {self._watch.silence():.0f} s, and was killed"
            self.kill()
        self._watch.note()
        return None

    def stop(self, request: Request, count: int = 1) -> None:
        """Asks it to save and end, as by `count` signals, of which the third kills; to be repeated until it ends."""
        if not self._forwarded:
            self._watch = Watch(self, STOP_SECONDS)
        if count >= 3:
            self.kill()
        elif self._forwarded < count:
            self.signal(request.number)
            self._forwarded += 1


def forward_signals(process: WatchedProcess) -> None:
    """Forwards all received signals to `process` and waits for its end."""
    request = signals.requested()
    if request is None:
        return
    with signals.supervising():
        while process.poll() is None:
            process.stop(request, max(signals.times_requested(), 1))
            wait([process.sentinel], POLL_SECONDS)
            pulse.beat()
