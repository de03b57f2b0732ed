"""`python -m pipeline.ui`: MLflow's pages on the project's store, at the last run or sweep, on this machine alone."""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from pipeline.command_line.command import command_parser, exit_code, run_command
from pipeline.config.schemas import TrackingSettings
from pipeline.paths import shorter
from pipeline.sweep.catalog import CatalogEntry, find_entry, read_catalog
from pipeline.system import environment
from pipeline.system.ports import HOST, free_port
from pipeline.tracking.health import refuse_other_schema
from stages.errors import UserError

FIRST_PORT = 5000
START_SECONDS = 120.0
"""Limit of the server's start: it imports MLflow and migrates an old store."""

END_SECONDS = 5.0
"""Grace period of the server before it is killed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until it is interrupted; returns the exit code."""
    parser = command_parser("ui", __doc__)
    parser.add_argument("run", nargs="?", help="a run or a sweep: its folder, or the beginning of its id; the last one")
    parser.add_argument("--port", type=int, help=f"{FIRST_PORT}, or the next that is free, if left out")
    parser.add_argument("--no-browser", action="store_true", help="only prints the address")
    options = parser.parse_args(arguments)
    environment.prepare()
    return exit_code(lambda: _open(options))


def _open(options: argparse.Namespace) -> int:
    page = _page(options.run, options.outputs)
    port = free_port(options.port, FIRST_PORT)
    return _serve(options.outputs, port, page, show=not options.no_browser)


def _page(text: str | None, outputs: Path) -> str:
    """Returns the path of the page of a run, or of the experiment of a sweep.

    Raises:
        UserError: where nothing is tracked under `outputs`, or by another version of MLflow.
    """
    tracked = [entry for entry in read_catalog(outputs) if entry.run_id is not None]
    if not (outputs / "mlflow.db").is_file() or not tracked:
        raise UserError(
            f"no run under {shorter(outputs)} is tracked in its own store",
            "a run with tracking=local",
            "python -m pipeline",
        )
    entry = find_entry(tracked, text, outputs) if text is not None else _last(tracked)
    refuse_other_schema(outputs / "mlflow.db")
    from pipeline.tracking.store import open_client, page_of_run  # imports MLflow, in seconds

    client = open_client(TrackingSettings(), outputs)
    experiment = client.get_run(str(entry.run_id)).info.experiment_id
    return page_of_run(str(experiment), None if entry.kind == "sweep" else str(entry.run_id))


def _last(tracked: Sequence[CatalogEntry]) -> CatalogEntry:
    """Returns the last run or sweep; not a job, whose sweep shows it beside the others."""
    return ([entry for entry in tracked if entry.kind != "job"] or tracked)[-1]


def _serve(outputs: Path, port: int, page: str, show: bool) -> int:
    """Starts MLflow's server, says where the page is, and returns when the server or the user ends it."""
    store = f"sqlite:///{outputs / 'mlflow.db'}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    address = f"http://{HOST}:{port}"
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a background shell's child ignores the first
        signal.signal(number, signal.default_int_handler)
    # Without runners of GenAI jobs: eight processes that compute for nine seconds, for no page of a run.
    variables = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ}
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(
            [*command, "--backend-store-uri", store], stdout=log, stderr=log, start_new_session=True, env=variables
        )
        try:
            _wait_for(server, address, log)
            print(f"{address}{page}\nCtrl-C ends it", flush=True)
            if show:
                webbrowser.open(address + page)
            return server.wait()
        except KeyboardInterrupt:
            return 0
        finally:
            _end(server)


def _wait_for(server: subprocess.Popen[bytes], address: str, log: TextIO) -> None:
    """Returns when the server answers.

    Raises:
        UserError: where it has ended, or does not answer within START_SECONDS.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=5):
            return
        time.sleep(0.2)
    log.seek(0)
    lines = log.read().strip().splitlines() or ["no answer"]
    raise UserError(f"MLflow's server did not start at {address} ({lines[-1]})", "a free port", "--port 5001")


def _end(server: subprocess.Popen[bytes]) -> None:
    """Ends the server with its workers: by SIGTERM, and after END_SECONDS by SIGKILL. Further signals are ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(server.pid, number)
        with suppress(subprocess.TimeoutExpired):
            server.wait(END_SECONDS)


if __name__ == "__main__":
    run_command(main)
