"""`python -m pipeline.ui`: MLflow's pages on the project's store, at the last run or sweep, on this machine alone."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from pipeline.command_line.command import command_parser, exit_code, run_command
from pipeline.config.schemas import TrackingSettings
from pipeline.paths import shorter
from pipeline.sweep.select import read_entries, select
from pipeline.system import environment
from pipeline.system.machine import HOST, free_port
from stages.errors import UserError

FIRST_PORT = 5000


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until it is interrupted: this process becomes MLflow's server."""
    parser = command_parser("ui", __doc__)
    parser.add_argument("run", nargs="?", help="a run or a sweep: its folder, or the beginning of its id; the last one")
    parser.add_argument("--port", type=int, help=f"{FIRST_PORT}, or the next that is free, if left out")
    options = parser.parse_args(arguments)
    environment.prepare()
    return exit_code(lambda: _open(options))


def _open(options: argparse.Namespace) -> NoReturn:
    page = _page(options.run, options.outputs)
    port = free_port(options.port, FIRST_PORT)
    print(f"http://{HOST}:{port}{page}\nin a few seconds; Ctrl-C ends it", flush=True)
    command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{options.outputs / 'mlflow.db'}", "--uvicorn-opts=--log-level=error"]
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background shell's child ignores it
    # Without runners of GenAI jobs: eight processes that compute for nine seconds, for no page of a run.
    os.execve(sys.executable, command, {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ})


def _page(text: str | None, outputs: Path) -> str:
    """Returns the path of the page of a run, or of the experiment of a sweep.

    Raises:
        UserError: where nothing is tracked under `outputs`, or by another version of MLflow.
    """
    tracked = [entry for entry in read_entries(outputs) if entry.summary.run_id is not None]
    if not (outputs / "mlflow.db").is_file() or not tracked:
        raise UserError(
            f"no run under {shorter(outputs)} is tracked in its own store",
            "a run with tracking=local",
            "python -m pipeline",
        )
    chosen = select(tracked, [text]) if text else [entry for entry in tracked if entry.kind != "job"] or tracked
    entry = chosen[-1]  # not a job of itself, whose sweep shows it beside the others
    from mlflow.exceptions import MlflowException  # seconds to import

    from pipeline.tracking.store import Store, page_of_run

    run_id = str(entry.summary.run_id)
    with suppress(MlflowException):  # of another version, as the server says then
        experiment = Store(TrackingSettings(), outputs).client().get_run(run_id).info.experiment_id
        return page_of_run(str(experiment), None if entry.kind == "sweep" else run_id)
    return ""


if __name__ == "__main__":
    run_command(main)
