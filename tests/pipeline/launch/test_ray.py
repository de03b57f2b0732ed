"""`cluster=ray` on a real Ray: the results equal those of `cluster=local`, also after a kill; errors are one line."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import psutil
import pytest

from pipeline.config.cluster import RayCluster
from pipeline.console import Console
from pipeline.launch.ray import _connect as connect
from pipeline.system.signals import until
from stages.errors import UserError
from tests import commands
from tests.conftest import outputs_in
from tests.pipeline.experiments import BARE, Patch
from tests.pipeline.launch.test_cluster import Running
from tests.servers import free_port

absent = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed (make test-engines installs it)")
pytestmark = [pytest.mark.slow, pytest.mark.engines, absent]

TWO = (
    "strategy=multi_worker", "deterministic=true", "train.epochs=7", "train.batch_size=63",
    "model.network.filters=[8,16]", "train.checkpoint_every_steps=20", "train.restore_best=false", *BARE,
)  # fmt: skip
"""Of 23 steps each."""

SWEEP = ("-m", "deterministic=true", "model=mlp", "train.epochs=1", "seed=1,2", *BARE)
LAWS = ("train/loss", "val/loss", "test/loss", "test/accuracy")
RAY = re.compile(r"^ray::|raylet/raylet |gcs/gcs_server ")


def of_ray() -> set[int]:
    """Return the ids of all Ray processes on this machine."""
    running = {process.pid: " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])}
    return {pid for pid, line in running.items() if RAY.search(line)}


def assert_gone(before: set[int], seconds: float = 3) -> None:
    """Assert that all Ray processes that were not there before have ended."""
    assert until(lambda: of_ray() <= before, seconds), [psutil.Process(pid).cmdline() for pid in of_ray() - before]


def metrics(running: Running) -> dict[str, float]:
    found = running.summary()["metrics"]
    return {name: found[name] for name in LAWS}


def holder(path: Path) -> psutil.Process:
    """Return the process that has the file `path` open."""
    for process in psutil.process_iter():
        try:
            if any(os.path.realpath(entry) == str(path) for entry in Path(f"/proc/{process.pid}/fd").iterdir()):
                return process
        except OSError:
            continue
    raise AssertionError(f"nobody has {path} open")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, migrated_store: Path) -> dict[str, float]:
    """Return the metrics of an uninterrupted run with two workers of `cluster=local`."""
    running = Running(outputs_in(tmp_path_factory.mktemp("local"), migrated_store), *TWO)
    assert running.end() == 0, running.printed
    return metrics(running)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a Ray cluster with two cores; yield its address."""
    port, folder = free_port(), tmp_path_factory.mktemp("ray")
    ray = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    head = [
        *ray, "start", "--head", "--block", f"--port={port}", "--num-cpus=2", "--num-gpus=0",
        "--include-dashboard=false", "--object-store-memory=80000000", f"--temp-dir=/tmp/ray-test-{port}",
    ]  # fmt: skip
    before = of_ray()
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(head, cwd=folder, stdout=log, stderr=log, env=environment, start_new_session=True)
    deadline = time.monotonic() + 120
    while "Ray runtime started" not in (folder / "log").read_text():
        assert server.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.3)
    yield re.search(rf"[\d.]+:{port}", (folder / "log").read_text()).group()  # type: ignore[union-attr]
    os.killpg(server.pid, signal.SIGTERM)
    _gone, alive = psutil.wait_procs([psutil.Process(pid) for pid in of_ray() - before if psutil.pid_exists(pid)], 20)
    for process in alive:
        process.kill()
    server.kill()
    server.wait()


def test_two_workers_in_actors_equal_two_local_ones_and_all_end(outputs: Path, whole: dict[str, float]) -> None:
    before = of_ray()
    running = Running(outputs, *TWO, "cluster=ray")
    running.wait_for(r"epoch +2/7")
    listening = psutil.Process(running.process.pid).children(recursive=True)
    ports = [c.laddr.ip for p in listening if p.pid in of_ray() for c in p.net_connections() if c.status == "LISTEN"]
    assert ports
    assert set(ports) <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}, ports
    assert running.end() == 0, running.printed
    assert metrics(running) == whole
    client = mlflow.MlflowClient(f"sqlite:///{outputs}/mlflow.db")
    tags = client.get_run(running.summary()["run_id"]).data.tags
    assert tags["command"].startswith("python -m pipeline strategy=multi_worker")
    assert running.summary()["replicas"] == 2
    assert running.status_in_mlflow() == "FINISHED"
    assert "epoch 7/7" in (Path(running.summary()["folder"]) / "worker-1.log").read_text()
    assert_gone(before)


@pytest.mark.parametrize("killed", ["worker", "worker and its actor", "chief"])
def test_a_killed_run_restarts_and_equals_an_uninterrupted_one(
    killed: str, outputs: Path, whole: dict[str, float], address: str
) -> None:
    running = Running(outputs, *TWO, "cluster=ray", f"cluster.address={address}", "cluster.restarts=1",
                      environment={"RAY_AUTH_MODE": "disabled"})  # fmt: skip
    running.wait_for(r"epoch +3/7")
    [folder] = outputs.glob("runs/*/*")
    victim = holder(folder / ("pipeline.log" if killed == "chief" else "worker-1.log"))
    if killed == "worker and its actor":  # as if its node had been lost
        next(process for process in victim.parents() if "ray::" in " ".join(process.cmdline())).kill()
    victim.kill()
    assert running.end() == 0, running.printed
    assert "restarting the cluster from its last checkpoint (0 restarts left)" in running.printed
    assert running.summary()["resumed_from_step"] >= 40
    assert metrics(running) == whole
    assert running.status_in_mlflow() == "FINISHED"


def test_a_sweep_in_actors_has_the_table_of_a_local_sweep(outputs: Path, tmp_path: Path, pipeline_command: Any) -> None:
    tables = []
    for folder, cluster in ((outputs, ("cluster=ray", "sweep.n_jobs=2")), (tmp_path / "local", ("tracking=off",))):
        ran = pipeline_command(*SWEEP, *cluster, f"outputs={folder}")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        paths = sorted(folder.glob("sweeps/*/*/summary.json"))
        found = [json.loads(path.read_text())["metrics"] for path in paths]
        tables.append([{name: row[name] for name in LAWS} for row in found])
    assert len(tables[0]) == 2
    assert tables[0] == tables[1]


def test_a_signal_saves_and_ends_the_run_and_ray(outputs: Path) -> None:
    before = of_ray()
    running = Running(outputs, *TWO, "train.epochs=5000", "cluster=ray")
    running.wait_for(r"epoch +3/5000")
    began = time.monotonic()
    running.process.send_signal(signal.SIGINT)
    assert (running.end(), time.monotonic() - began < commands.HEARD_SECONDS) == (130, True), running.printed
    assert list(Path(running.summary()["folder"]).glob("checkpoints/step-*.npz"))
    assert running.summary()["status"] == running.status_in_mlflow() == "KILLED"
    assert_gone(before)


def test_all_processes_end_after_the_command_is_killed(outputs: Path) -> None:
    before = of_ray()
    running = Running(outputs, *TWO, "train.epochs=5000", "cluster=ray")
    running.wait_for(r"epoch +2/5000")
    running.process.kill()
    assert running.end(others_seconds=240) == -9  # Ray's agents check every 20 s whether it still runs
    assert_gone(before)


REFUSED = {
    "cluster.cpus=1000": "cluster=ray: 2000 CPUs and 0 GPUs are needed in total, but Ray has",
    "cluster.address=ray://127.0.0.1:10001": "Ray is not available ('ray://127.0.0.1:10001' is not the address",
}


@pytest.mark.parametrize("setting", REFUSED)
def test_impossible_settings_are_refused_at_once(setting: str, tmp_path: Path, pipeline_command: Any) -> None:
    given = ("strategy=multi_worker", "cluster=ray", setting, "tracking=off", f"outputs={tmp_path}/outputs")
    ran = pipeline_command(*given, trains=False)
    assert ran.returncode == 2
    assert REFUSED[setting] in ran.stderr.splitlines()[-1]  # Ray's own lines may come before
    assert not list((tmp_path / "outputs").glob("runs/*/*"))


def test_a_server_that_is_not_ray_is_reported_in_time(tmp_path: Path, pipeline_command: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = f"cluster.address=127.0.0.1:{silent.getsockname()[1]}"
        given = ("cluster=ray", at, "cluster.timeout_seconds=5", "tracking=off", f"outputs={tmp_path}/outputs")
        ran = pipeline_command(*given, trains=False, timeout=60)
    assert ran.returncode == 2
    assert "Ray is not available (`ray health-check` failed)" in ran.stderr.splitlines()[-1]


def test_an_error_of_ray_without_a_message_is_reported_in_one_line(monkeypatch: Patch) -> None:
    def init(**options: Any) -> None:
        raise ConnectionError

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(UserError, match=r"Ray is not available \(ConnectionError"):
        connect(RayCluster(), Console())
