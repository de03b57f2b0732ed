"""Servers that some tests need: MLflow, PostgreSQL and Chromium. `make test-engines` installs the last two."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests import commands

PASSWORD = "of-the-test-0815"
"""The password of the database user, which must not appear in any output or file."""

CHROMIUM_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1600,1000",
)  # fmt: skip

START_SECONDS = 120.0

Process = subprocess.Popen[Any] | commands.Command


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def postgresql() -> Iterator[str]:
    """Run a PostgreSQL server on loopback within the block; yield the address of an empty database."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if not programs:
        pytest.skip("PostgreSQL is not installed (make test-engines installs it)")
    psycopg2 = pytest.importorskip("psycopg2")
    user: dict[str, Any] = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        (folder / "password").write_text(PASSWORD)
        if user:
            for path in (folder, folder / "password"):
                shutil.chown(path, "postgres", "postgres")
        data, port = folder / "data", free_port()
        initialize = [programs[-1].with_name("initdb"), "-D", data, "-U", "pipeline", "-A", "scram-sha-256"]
        _run([*initialize, f"--pwfile={folder / 'password'}", "--no-sync"], folder, user)
        place = ["-D", str(data), "-k", str(folder), "-h", "127.0.0.1", "-p", str(port)]
        command = [str(programs[-1]), *place, "-c", "fsync=off"]
        with (folder / "log").open("w") as log:
            server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, **user)
        held.callback(_end, server)
        place_of_user = f"pipeline:{PASSWORD}@127.0.0.1:{port}/postgres"
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg2.connect(f"postgresql://{place_of_user}").close()
                break
            except psycopg2.OperationalError:
                assert server.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.2)
        yield f"postgresql+psycopg2://{place_of_user}"  # SQLAlchemy 2.1 uses a different driver by default


@contextmanager
def mlflow_server(
    store: str, kept: Path | str, port: int | None = None, ending: signal.Signals = signal.SIGTERM
) -> Iterator[str]:
    """Run an MLflow server on `store` within the block. It serves the artifacts in `kept`; `ending` stops it.

    It does not start MLflow's eight job runners, which evaluate language models.
    """
    port = free_port() if port is None else port
    with tempfile.TemporaryFile("w+") as log:
        variables = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        given = (store, str(kept), str(port))
        server = commands.start(*given, module="tests.mlflow_server", stdout=log, stderr=log, env=variables)
        try:
            address = f"http://127.0.0.1:{port}"
            wait_for(f"{address}/health", server)
            yield address
        finally:
            _end(server, ending)


@contextmanager
def stopped(server: subprocess.Popen[Any], ending: signal.Signals = signal.SIGTERM) -> Iterator[None]:
    """End a server, which has its own session, and all its child processes with the block. `ending` is sent first."""
    try:
        yield
    finally:
        _end(server, ending, group=True)


def wait_for(address: str, server: Process) -> None:
    """Wait until a server responds at `address`."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert server.poll() is None, "the server has ended"
        with suppress(OSError), urllib.request.urlopen(address, timeout=5):
            return
        time.sleep(0.3)
    raise AssertionError(f"{address} does not respond")


@contextmanager
def browser() -> Iterator[Any]:
    """Start Debian's Chromium without a window and with a new profile; yield its Selenium driver."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("Chromium and its driver are not installed (make test-engines installs them)")
    webdriver = pytest.importorskip("selenium.webdriver")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for flag in (*CHROMIUM_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        try:
            yield opened
        finally:
            opened.quit()


def _run(command: Sequence[Any], folder: Path, user: dict[str, Any]) -> None:
    done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, timeout=120, **user)
    assert done.returncode == 0, done.stderr


def _end(process: Process, asking: int = signal.SIGINT, group: bool = False) -> None:
    for number in (asking, signal.SIGKILL):
        with suppress(ProcessLookupError):
            if group:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
