"""Prepare the processes of a run, and determine their exit codes."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from omegaconf import OmegaConf

from pipeline.config.experiment import Experiment
from pipeline.console import Console
from pipeline.exit_codes import FAILED
from pipeline.redaction import guard_output, learn
from pipeline.system import environment, signals, streams
from pipeline.system.processes import become_independent, watch
from pipeline.system.signals import Interrupted
from pipeline.system.streams import no_room
from stages.errors import UserError

POLL_SECONDS = 0.2


def enter(experiment: Experiment, stop: int | None = signal.SIGTERM) -> None:
    """Prepare this newly started process for a run of `experiment`.

    Args:
        experiment: The configuration of the run.
        stop: The signal that this process gets when its parent has ended, if any.
    """
    learn(OmegaConf.to_container(experiment.document, resolve=True))
    environment.prepare()
    become_independent(stop)
    streams.guard()
    guard_output()
    watch(experiment.hang_seconds)


def code_of(work: Callable[[], int], console: Console, refused: int = FAILED) -> int:
    """Return the exit code of `work`, and print its error.

    Args:
        work: Does the work of this process.
        console: Prints the error.
        refused: The exit code for a UserError.
    """
    try:
        return work()
    except Interrupted as interrupted:
        if interrupted.exit_code == FAILED:
            console.error(f"this process was stopped by {interrupted}")
        return interrupted.exit_code
    except UserError as error:
        console.error(str(error))
        return refused
    except BaseException as error:
        console.error(str(no_room(error) or traceback.format_exc()))
        return FAILED


def leave(work: Callable[[], int], console: Console, refused: int = FAILED) -> NoReturn:
    """End this process with the exit code of `work`, without TensorFlow's destructors, which wait for lost members."""
    with signals.listening(owns_process=True):
        code = code_of(work, console, refused)
        signals.ended(code)
        console.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
