"""`python -m pipeline.ui`: MLflow's pages on the project's store, on this machine alone."""

import argparse
import os
import sys
from typing import NoReturn

from pipeline.command_line.command import Command, run_command
from pipeline.paths import shorter
from pipeline.system.machine import HOST, free_port
from pipeline.tracking.store import WORKFLOW
from stages.errors import UserError

FIRST_PORT = 5000


def _open(options: argparse.Namespace) -> NoReturn:
    """Serve until it is interrupted: this process becomes MLflow's server."""
    if not (options.outputs / "mlflow.db").is_file():
        problem = f"{shorter(options.outputs)} contains no MLflow database"
        raise UserError(problem, "a folder with runs that were tracked with tracking=local", "python -m pipeline")
    port = free_port(options.port, FIRST_PORT)
    print(f"http://{HOST}:{port}/#/experiments?{WORKFLOW}\nin a few seconds; Ctrl-C ends it", flush=True)
    command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{options.outputs / 'mlflow.db'}", "--uvicorn-opts=--log-level=error"]
    # Without runners of GenAI jobs: eight processes that compute for nine seconds, for no page of a run.
    os.execve(sys.executable, command, {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ})


main = Command("ui", _open, "Start MLflow's UI for the runs in outputs/, on this machine only.")
main.add_argument("--port", type=int, help=f"port (default: {FIRST_PORT}, or the next free one)")

if __name__ == "__main__":
    run_command(main)
