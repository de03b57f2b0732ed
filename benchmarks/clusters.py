"""Clusters of real processes on this machine, for benchmarks and tests."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipeline.execute.task import Task
from pipeline.launch.local import local_tasks
from stages.settings.strategy import MultiWorkerSettings, ParameterServerSettings

ROOT = Path(__file__).resolve().parent.parent


def start_process(*arguments: str, module: str, **options: Any) -> subprocess.Popen[str]:
    """Start `python -m module`, with the options of `subprocess.Popen`."""
    return subprocess.Popen([sys.executable, "-m", module, *arguments], text=True, **options)


Start = Callable[..., Any]
"""Starts a process, as `start_process` does."""


def run_workers(count: int, module: str, *arguments: str, start: Start = start_process) -> tuple[list[int], str]:
    """Run `python -m module` as each of `count` workers; return their exit codes and all that they printed."""
    tasks = local_tasks(MultiWorkerSettings(deterministic=True, workers=count).members())
    return _run(tasks, [[module, *arguments]] * count, len(tasks), start)


def run_chief(module: str, *arguments: str, start: Start = start_process) -> tuple[int, str]:
    """Run `python -m module` as chief of two workers and two servers; return its exit code and what all printed."""
    tasks = local_tasks(ParameterServerSettings(deterministic=False).members())
    others = [["benchmarks.server", tasks[0].cluster["chief"][0]]] * (len(tasks) - 1)
    [code], printed = _run(tasks, [[module, *arguments], *others], 1, start)
    return code, printed


def _run(tasks: Sequence[Task], commands: Sequence[Sequence[str]], awaited: int, start: Start) -> tuple[list[int], str]:
    with tempfile.TemporaryFile("w+") as output:
        processes = [
            start(
                *arguments,
                module=module,
                cwd=ROOT,
                env={**os.environ, "TF_CONFIG": task.tf_config},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            for task, (module, *arguments) in zip(tasks, commands, strict=True)
        ]
        try:
            codes = [process.wait(300) for process in processes[:awaited]]
        finally:
            for process in processes:
                process.kill()
        output.seek(0)
        return codes, output.read()
