"""A command that may be killed, and the folder that it writes to."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from tests import commands

LIMIT_SECONDS = 600.0


def command(
    outputs: Path,
    *arguments: str,
    module: str = "pipeline",
    variables: Mapping[str, str] | None = None,
    kill: Callable[[float], bool] | None = None,
) -> int:
    """Runs `python -m <module> <arguments>` and returns its exit code: -9 where it was killed, children included.

    Args:
        outputs: the folder that it writes to; what it prints is `printed`.
        variables: of its environment, in addition to those of this process.
        kill: is asked every few milliseconds, with the seconds since the start, whether to kill it now.
    """
    with _printed(outputs).open("a") as log:
        environment = {**os.environ, **(variables or {})}
        process = commands.start(*arguments, module=module, env=environment, stdout=log, stderr=log)
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


def _printed(outputs: Path) -> Path:
    return outputs.parent / "printed.txt"


def printed(outputs: Path) -> str:
    path = _printed(outputs)
    return path.read_text() if path.exists() else ""


def prepared(folder: Path, store: Path) -> Path:
    """Returns a folder for outputs with an empty store in it."""
    outputs = folder / "outputs"
    outputs.mkdir()
    shutil.copy(store, outputs / "mlflow.db")
    return outputs
