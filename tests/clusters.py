"""Clusters of real processes."""

import os
import subprocess
import sys
import tempfile

from pipeline.cluster import local_tasks
from stages.settings.strategy import MultiWorkerSettings
from tests.conftest import ROOT


def run_workers(count: int, module: str, *arguments: str, timeout: float = 300) -> tuple[list[int], str]:
    """Runs `python -m module` as each of `count` workers; returns their exit codes and all that they printed."""
    tasks = local_tasks(MultiWorkerSettings(deterministic=True, workers=count))
    with tempfile.TemporaryFile("w+") as output:
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=ROOT,
                env={**os.environ, "TF_CONFIG": task.tf_config},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            for task in tasks
        ]
        try:
            codes = [process.wait(timeout) for process in processes]
        finally:
            for process in processes:
                process.kill()
        output.seek(0)
        return codes, output.read()
