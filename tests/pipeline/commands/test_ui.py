"""`python -m pipeline ui`, and MLflow's pages for the project's runs in a real browser."""

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
from mlflow.entities import Run

from pipeline.system.signals import until
from tests import commands
from tests.commands import ROOT
from tests.pipeline.experiments import QUICK, tracked
from tests.servers import browser, free_port, wait_for

pytestmark = pytest.mark.slow

SCREENSHOTS = os.environ.get("SCREENSHOTS")
"""A folder for screenshots of the pages with a larger sweep; `make screenshots` sets it."""

READY_SECONDS = 120.0

PARENT = "mlflow.parentRunId"


@contextmanager
def ui(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `python -m pipeline ui` during the block; yield the process and the address that it prints."""
    command = [sys.executable, "-m", "pipeline", "ui", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(60)


def refused(*arguments: str) -> str:
    """Return the one-line error of `python -m pipeline ui` with wrong arguments."""
    done = commands.run("ui", *arguments, trains=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    return done.stderr


@pytest.mark.smoke
def test_without_runs_it_is_refused(tmp_path: Path) -> None:
    error = refused(f"outputs={tmp_path}")
    assert re.fullmatch(r"error: .* contains no MLflow database\..* Try: python -m pipeline\n", error)


@pytest.fixture(scope="module")
def swept(module_outputs: Path) -> tuple[Path, dict[str, str]]:
    """The outputs of a sweep with a clear result and of a run, and the addresses that the commands printed."""
    given = ["optimizer.learning_rate=0.0001,0.01", "seed=1,2", *QUICK]
    if SCREENSHOTS:
        given = [
            "optimizer.learning_rate=0.0001,0.001,0.01",
            "train.batch_size=32,128",
            "seed=1,2,3",
            "train.epochs=12",
        ]
    printed = commands.succeed("-m", *given, f"outputs={module_outputs}", cwd=module_outputs).stdout
    printed += commands.succeed(*QUICK, f"outputs={module_outputs}", cwd=module_outputs).stdout
    links = dict(re.findall(r"\n(charts|all runs) +http://127.0.0.1:5000(/\S+)", printed))
    links["table"] = links["charts"].removesuffix("&compareRunsMode=CHART")
    assert printed.count(links["table"]) == 2
    return module_outputs, links


def test_a_port_in_use_is_refused_in_one_line(outputs: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port} of 127.0.0.1 is not available" in refused("--port", str(port), "--outputs", str(outputs))


@pytest.mark.engines
def test_the_links_of_a_sweep_and_a_run_open_pages_that_show_their_results(swept: tuple[Path, dict[str, str]]) -> None:
    outputs, links = swept
    port = free_port()
    runs = {run.info.run_id: run for run in tracked(outputs)[1]}
    jobs = [run for run in runs.values() if PARENT in run.data.tags]
    parent = runs[jobs[0].data.tags[PARENT]]
    with ui("--outputs", str(outputs), "--port", str(port)) as (process, address):
        server = f"http://127.0.0.1:{port}"
        assert address == f"{server}/#/experiments?workflowType=machine_learning"
        wait_for(f"{server}/health", process)
        below = psutil.Process(process.pid).children(recursive=True)
        assert {connection.laddr.ip for connection in _listening(below)} == {"127.0.0.1"}
        assert len(below) < 8  # no runners of GenAI jobs
        with browser() as opened:
            opened.get(f"{server}/version")
            opened.execute_script(CLOSE_ASSISTANT)
            _open(opened, address, "digits_cnn")

            _open(opened, server + links["table"], "Group: lr=0.01", "Group: lr=0.0001", f"{len(jobs)} matching runs")
            headings = opened.execute_script(HEADINGS)
            settings = ["optimizer.learning_rate", "train.batch_size"] if SCREENSHOTS else ["optimizer.learning_rate"]
            metrics = ["val/best_loss", "val/best_accuracy", "test/accuracy", "train/images_per_second"]
            shown = [f"params.`{name}`" for name in settings] + [f"metrics.`{name}`" for name in metrics]
            expected = ["attributes.`Run Name`", "runDateAndNestInfo", *shown, "duration"]
            assert headings[1:] == expected[: len(headings) - 1], (
                "those that fit in the window, after the boxes to tick"
            )
            assert len(headings) > len(settings) + 4
            rows = opened.execute_script(GROUPS)
            assert re.findall(r"Group: .+", "\n".join(rows)) == _best_first(jobs)
            _keep(opened, "mlflow_runs")

            _open(opened, server + links["charts"], "Result", "val/loss", "val/accuracy", "val/best_loss", "lr=0.01")
            until_drawn = "return document.querySelectorAll('.js-plotly-plot .main-svg').length >= 5"
            assert until(lambda: opened.execute_script(until_drawn), READY_SECONDS)
            _keep(opened, "mlflow_compare")

            _open(
                opened, server + links["all runs"], parent.info.run_name, "filters", "val/best_accuracy", "2 matching"
            )

            page = f"{server}/#/experiments/1/runs/{{}}?workflowType=machine_learning"
            _open(opened, page.format(jobs[0].info.run_id), "Description", "test accuracy", "val/loss", "val/accuracy")
            _keep(opened, "mlflow_run")
            _open(opened, page.format(parent.info.run_id), "Description", "Child runs")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        _, alive = psutil.wait_procs(below, timeout=10)
        assert not alive


def _best_first(jobs: list[Run]) -> list[str]:
    """Return the table's rows of combinations; those with the lowest mean of the validation loss come first."""
    losses: dict[str, list[float]] = {}
    for job in jobs:
        losses.setdefault(job.data.tags["combination"], []).append(job.data.metrics["val/best_loss"])
    return [f"Group: {name}" for name in sorted(losses, key=lambda name: sum(losses[name]) / len(losses[name]))]


HEADINGS = """
const left = cell => cell.getBoundingClientRect().left;
const cells = [...document.querySelectorAll(".ag-header-cell")].sort((one, other) => left(one) - left(other));
return cells.map(cell => cell.getAttribute("col-id"));
"""

GROUPS = """
const rows = [...document.querySelectorAll('.ag-pinned-left-cols-container [role="row"]')];
rows.sort((one, other) => one.getAttribute("row-index") - other.getAttribute("row-index"));
return rows.map(row => row.innerText.trim());
"""

CLOSE_ASSISTANT = """
localStorage.setItem("mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "true");
localStorage.setItem("mlflow.assistant.panelOpen_v1", "false");
"""


def _listening(processes: list[psutil.Process]) -> list[Any]:
    connections = [connection for process in processes for connection in process.net_connections(kind="inet")]
    return [connection for connection in connections if connection.status == psutil.CONN_LISTEN]


def _open(opened: Any, address: str, *texts: str) -> None:
    opened.get("about:blank")
    opened.get(address)
    _see(opened, *texts)


def _see(opened: Any, *texts: str) -> None:
    """Wait until the page shows all `texts`."""
    deadline = time.monotonic() + READY_SECONDS
    shown, missing = "", list(texts)
    while missing and time.monotonic() < deadline:
        shown = opened.execute_script("return document.body.innerText")
        missing = [text for text in texts if text not in shown]
        time.sleep(0.3)
    assert not missing, shown


def _keep(opened: Any, name: str) -> None:
    if SCREENSHOTS:
        time.sleep(3)  # plots appear after texts
        assert opened.save_screenshot(str(Path(SCREENSHOTS).absolute() / f"{name}.png"))
