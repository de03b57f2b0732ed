"""A process of a run's own: what it does first, how its error becomes an exit code, how a signal reaches it."""

import os
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

from omegaconf import OmegaConf

from pipeline.redaction.mask import guard_output, learn
from pipeline.run.console import Console
from pipeline.run.job import FAILED, Job
from pipeline.system import environment, pulse, signals, streams
from pipeline.system.processes import become_independent
from pipeline.system.pulse import Pulse, Watch
from pipeline.system.signal_listener import Interrupted, Request
from stages.errors import UserError

STOP_SECONDS = 7.0
"""Seconds without a sign of life after which a process that was asked to end is killed."""

POLL_SECONDS = 0.2


def enter(job: Job, own: Pulse, stop: int | None = signal.SIGTERM) -> None:
    """Prepares this process, which has just been started, for `job`.

    Args:
        own: shared with the process that watches this one.
        stop: the signal that asks this process to end when its parent has gone, if any.
    """
    learn(OmegaConf.to_container(job.experiment.document, resolve=True))
    environment.prepare()
    become_independent(stop)
    streams.guard()
    guard_output()
    pulse.adopt(own)


def code_of(work: Callable[[], int], console: Console, refused: int = FAILED) -> int:
    """Returns the exit code of `work`; prints its error.

    Args:
        refused: the code where it raises a UserError.
    """
    try:
        return work()
    except Interrupted as interrupted:
        return interrupted.exit_code
    except UserError as error:
        console.error(str(error))
        return refused
    except BaseException:
        console.error(traceback.format_exc())
        return FAILED


def exit_code_of(process: BaseProcess) -> int:
    """Returns the exit code of a process that has ended; of one that signal n killed 128 + n, as a shell does."""
    assert process.exitcode is not None
    return 128 - process.exitcode if process.exitcode < 0 else process.exitcode


class Stopper:
    """Passes the signals that ask a process to end on to it, and kills it where it gives no sign of life."""

    def __init__(self, process: BaseProcess, shown: Pulse) -> None:
        assert process.pid is not None
        self._process = process
        self._watch = Watch(shown, process.pid, STOP_SECONDS)
        self._passed = 0

    def step(self, request: Request, count: int) -> None:
        """Passes on what has not been passed on of `count` signals, of which the third kills; to be called every
        POLL_SECONDS until the process has ended."""
        if self._process.exitcode is not None or self._process.pid is None:
            return
        with suppress(ProcessLookupError):
            if count >= 3 or self._watch.hangs():
                self._process.kill()
            elif self._passed < count:
                os.kill(self._process.pid, request.number)
                self._passed += 1
        self._watch.note()


def pass_on(process: BaseProcess, shown: Pulse) -> None:
    """Passes every signal that has come on to `process` and waits for its end.

    It is killed where it gives no sign of life, or a third signal comes.
    """
    request = signals.requested()
    if request is None or process.pid is None:
        return
    stopper = Stopper(process, shown)
    with signals.supervising():
        while process.exitcode is None:
            stopper.step(request, max(signals.times_requested(), 1))
            wait([process.sentinel], POLL_SECONDS)
            pulse.beat()
        process.join()
