"""Clusters of real processes on this machine, for benchmarks and tests."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pipeline.cluster.task import Task, local_tasks
from stages.settings.strategy import MultiWorkerSettings, ParameterServerSettings

ROOT = Path(__file__).resolve().parent.parent
SERVE = "import sys; from stages.distribution.cluster_strategies import serve; serve(sys.argv[1])"


def run_workers(count: int, module: str, *arguments: str) -> tuple[list[int], str]:
    """Runs `python -m module` as each of `count` workers; returns their exit codes and all that they printed."""
    tasks = local_tasks(MultiWorkerSettings(deterministic=True, workers=count))
    return _run(tasks, [["-m", module, *arguments]] * count, len(tasks))


def run_chief(module: str, *arguments: str) -> tuple[int, str]:
    """Runs `python -m module` as chief of two workers and two servers; returns its exit code and what all printed."""
    tasks = local_tasks(ParameterServerSettings(deterministic=False))
    others = [["-c", SERVE, tasks[0].cluster["chief"][0]]] * (len(tasks) - 1)
    [code], printed = _run(tasks, [["-m", module, *arguments], *others], 1)
    return code, printed


def _run(tasks: Sequence[Task], commands: Sequence[Sequence[str]], awaited: int) -> tuple[list[int], str]:
    with tempfile.TemporaryFile("w+") as output:
        processes = [
            subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                env={**os.environ, "TF_CONFIG": task.tf_config},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            for task, command in zip(tasks, commands, strict=True)
        ]
        try:
            codes = [process.wait(300) for process in processes[:awaited]]
        finally:
            for process in processes:
                process.kill()
        output.seek(0)
        return codes, output.read()
