"""MLflow's pages on the project's store: `python -m pipeline.ui`, and what a person sees there in a real browser."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import commands
from tests.commands import ROOT
from tests.pipeline.experiments import QUICK, sweep_runs
from tests.servers import browser, free_port, wait_for

pytestmark = pytest.mark.slow

SCREENSHOTS = os.environ.get("SCREENSHOTS")
"""A folder for screenshots of the pages, of a sweep over strategy and precision; `make screenshots` sets it."""

READY_SECONDS = 120.0


@contextmanager
def ui(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`python -m pipeline.ui`, ended with the block; yields it and the address that it has printed."""
    command = [sys.executable, "-m", "pipeline.ui", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(60)


def refused(*arguments: str) -> str:
    """Returns the one line with which `python -m pipeline.ui` refuses what it is told."""
    done = commands.run(*arguments, module="pipeline.ui", trains=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    return done.stderr


@pytest.mark.smoke
def test_without_a_run_there_is_no_page(tmp_path: Path) -> None:
    said = refused(f"outputs={tmp_path}")
    assert re.fullmatch(r"error: no run under .* is tracked .*Try: python -m pipeline\n", said)


@pytest.fixture(scope="module")
def swept(module_outputs: Path) -> Path:
    """The outputs of a sweep."""
    given = ["seed=1,2", *QUICK]
    if SCREENSHOTS:
        given = ["strategy=one_device,mirrored", "precision=float32,mixed_bfloat16", "train.epochs=12"]
    commands.succeed("-m", *given, f"outputs={module_outputs}", cwd=module_outputs)
    return module_outputs


def test_a_port_that_is_taken_is_said_in_one_line(outputs: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port} of 127.0.0.1 cannot be had" in refused("--port", str(port), "--outputs", str(outputs))


@pytest.mark.engines
def test_a_sweep_is_seen_in_the_table_on_its_pages_and_compared(swept: Path) -> None:
    port = free_port()
    parent, jobs = sweep_runs(swept)
    with ui("--outputs", str(swept), "--port", str(port)) as (process, address):
        assert address == f"http://127.0.0.1:{port}/#/experiments?workflowType=machine_learning"
        wait_for(f"http://127.0.0.1:{port}/health", process)
        below = psutil.Process(process.pid).children(recursive=True)
        assert {connection.laddr.ip for connection in _listening(below)} == {"127.0.0.1"}
        assert len(below) < 8  # no runners of GenAI jobs
        with browser() as opened:
            opened.get(f"http://127.0.0.1:{port}/version")
            opened.execute_script(CLOSE_ASSISTANT)
            _open(opened, address, "digits_cnn")
            _open(opened, address.replace("experiments?", "experiments/1/runs?"), parent.info.run_name)
            opened.execute_script(EXPAND, parent.info.run_id)
            _see(opened, *(job.info.run_name for job in jobs), "python -m pipeline", "digits_cnn")
            _keep(opened, "mlflow_runs")

            page = f"http://127.0.0.1:{port}/#/experiments/1/runs/{{}}?workflowType=machine_learning"
            _open(opened, page.format(jobs[0].info.run_id), "Description", "test accuracy", "val/loss", "val/accuracy")
            _keep(opened, "mlflow_run")
            _open(opened, page.format(parent.info.run_id), "Description", "Child runs")
            _keep(opened, "mlflow_sweep")

            ids = ",".join(f'"{job.info.run_id}"' for job in jobs)
            compared = f'http://127.0.0.1:{port}/#/compare-runs?runs=[{ids}]&experiments=["1"]'
            _open(opened, f"{compared}&workflowType=machine_learning", f"Comparing {len(jobs)} Runs", "Parallel")
            differing = ("choice/precision", "choice/strategy") if SCREENSHOTS else ("seed",)
            _see(opened, *differing, "val/loss", "export/max_abs_diff")  # the table shows its first rows
            _keep(opened, "mlflow_compare")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        _, alive = psutil.wait_procs(below, timeout=10)
        assert not alive


CLOSE_ASSISTANT = """
localStorage.setItem("mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "true");
localStorage.setItem("mlflow.assistant.panelOpen_v1", "false");
"""

EXPAND = """
const row = document.querySelector(`[role="row"][row-id="${arguments[0]}"]`);
row.querySelector('[col-id="attributes.`Run Name`"] button').click();
"""


def _listening(processes: list[psutil.Process]) -> list[Any]:
    connections = [connection for process in processes for connection in process.net_connections(kind="inet")]
    return [connection for connection in connections if connection.status == psutil.CONN_LISTEN]


def _open(opened: Any, address: str, *texts: str) -> None:
    opened.get("about:blank")
    opened.get(address)
    _see(opened, *texts)


def _see(opened: Any, *texts: str) -> None:
    """Waits until the page shows every one of `texts`."""
    deadline = time.monotonic() + READY_SECONDS
    shown, missing = "", list(texts)
    while missing and time.monotonic() < deadline:
        shown = opened.execute_script("return document.body.innerText")
        missing = [text for text in texts if text not in shown]
        time.sleep(0.3)
    assert not missing, shown


def _keep(opened: Any, name: str) -> None:
    if SCREENSHOTS:
        time.sleep(3)  # plots are drawn after their texts
        assert opened.save_screenshot(str(Path(SCREENSHOTS).absolute() / f"{name}.png"))
