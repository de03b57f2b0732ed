"""`python -m pipeline ui`: open MLflow's UI for the runs in `outputs/`, on this machine only."""

import argparse
import os
import sys
from typing import NoReturn

from pipeline.command_line.command import Command
from pipeline.paths import shorter
from stages.errors import UserError

FIRST_PORT = 5000


def _open(options: argparse.Namespace) -> NoReturn:
    """Print the address, and replace this process with MLflow's server, which runs until it is interrupted."""
    from pipeline.system.machine import HOST, free_port
    from pipeline.tracking.store import WORKFLOW

    if not (options.outputs / "mlflow.db").is_file():
        problem = f"{shorter(options.outputs)} contains no MLflow database"
        raise UserError(problem, "a folder with runs that were tracked with tracking=local", "python -m pipeline")
    port = free_port(options.port, FIRST_PORT)
    print(f"http://{HOST}:{port}/#/experiments?{WORKFLOW}\nin a few seconds; Ctrl-C ends it", flush=True)
    command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{options.outputs / 'mlflow.db'}", "--uvicorn-opts=--log-level=error"]
    # MLflow would start runners for GenAI jobs: eight processes that compute for nine seconds and are not needed here.
    os.execve(sys.executable, command, {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ})


main = Command("ui", _open, "Start MLflow's UI for the runs in outputs/, on this machine only.")
main.add_argument("--port", type=int, help=f"port (default: {FIRST_PORT}, or the next free one)")
