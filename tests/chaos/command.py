"""A command in a process of its own, which may be killed, and the folder that it writes to."""

import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from pipeline.system import environment
from pipeline.system.processes import become_independent
from tests import commands

LIMIT_SECONDS = 600.0


def command(target: Callable[..., None], *arguments: object, kill: Callable[[float], bool] | None = None) -> int:
    """Runs `target`, which begins with `enter`, and returns its exit code: -9 where it was killed, children included.

    Args:
        target: a function of a module that is not `__main__`.
        kill: is asked every few milliseconds, with the seconds since the start, whether to kill it now.
    """
    process = commands.start(pickle.dumps((target, arguments)).hex(), module=__name__)
    began = time.monotonic()
    while process.poll() is None and time.monotonic() - began < LIMIT_SECONDS:
        if kill is not None and kill(time.monotonic() - began):
            kill_all(process.pid)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.005)
    if process.returncode is None:
        process.kill()
        raise TimeoutError("the command has not ended")
    return process.returncode


def kill_all(pid: int | None) -> None:
    """Kills a process and all that it has started."""
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, 10)


def enter(outputs: Path) -> None:
    """Prepares the process of a command; what it prints is `printed`."""
    environment.prepare()
    become_independent()
    log = os.open(outputs.parent / "printed.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)


def printed(outputs: Path) -> str:
    path = outputs.parent / "printed.txt"
    return path.read_text() if path.exists() else ""


def prepared(folder: Path, store: Path) -> Path:
    """Returns a folder for outputs with an empty store in it."""
    outputs = folder / "outputs"
    outputs.mkdir()
    shutil.copy(store, outputs / "mlflow.db")
    return outputs


if __name__ == "__main__":
    _target, _arguments = pickle.loads(bytes.fromhex(sys.argv[1]))
    _target(*_arguments)
