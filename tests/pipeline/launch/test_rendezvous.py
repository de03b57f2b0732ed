"""`cluster=tf_config`: an impossible cluster is refused at once, and the wait for missing members has a limit."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.cluster import TfConfigCluster
from pipeline.console import Console
from pipeline.execute.task import Task
from pipeline.launch.joined import TfConfig, check_members, wait_for_members
from pipeline.launch.local import local_tasks
from pipeline.system import signals
from pipeline.system.signals import Interrupted
from stages.errors import UserError
from stages.settings.strategy import MultiWorkerSettings, ParameterServerSettings, StrategySettings
from tests.pipeline.launch.test_cluster import Running

pytestmark = pytest.mark.slow

TWO = MultiWorkerSettings(deterministic=False)
SERVERS = ParameterServerSettings(deterministic=False, workers=1, servers=1)
FIRST = {"type": "worker", "index": 0}


def config(workers: Any, task: Any = FIRST, **others: Any) -> str:
    return json.dumps({"cluster": {"worker": workers, **others}, "task": task})


WRONG = {
    "{": "JSONDecodeError", config("a:1"): "'a' is not the address", config([]): "there is no worker 0",
    config(["a:1"], {"type": "evaluator", "index": 0}): "KeyError('evaluator')",
    config(["a:1"], {"type": "worker", "index": 1}): "there is no worker 1",
    config(["a:1"], ps=["b:1"]): "has the members worker 0, ps 0. Expected the members worker",
    config(["a:1"], chief=["b:1", "c:1"]): "chief 1. Expected the members worker, with at most one chief",
    config(["a:1", "b:99999"]): "'b:99999' is not the", config(["a:1", "::1:2222"]): "'::1:2222' is not the address",
}  # fmt: skip


def task_of_environment(strategy: StrategySettings) -> Task:
    task = TfConfig(TfConfigCluster()).task(strategy)
    check_members(task, strategy)
    return task


@pytest.mark.smoke
@pytest.mark.parametrize("text", WRONG, ids=WRONG.values())
def test_a_wrong_tf_config_is_refused_in_one_line(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(UserError) as refused:
        task_of_environment(TWO)
    assert WRONG[text] in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_parameter_server_cluster_has_all_kinds_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", config(["127.0.0.1:23451"], chief=["127.0.0.1:23452"]))
    with pytest.raises(UserError, match="Expected the members chief, ps, worker"):
        task_of_environment(SERVERS)


def test_a_chief_whose_port_is_in_use_reports_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        [error] = waiting([Task("worker", 0, {"worker": [f"127.0.0.1:{other.getsockname()[1]}", "b:1"]})])
    assert re.search(r"this process, worker-0, cannot listen on its port \d+ \(Address already in use\)", str(error))


def test_a_second_process_of_a_member_is_refused_at_once_and_the_others_meet() -> None:
    """On the same machine its port is in use. On a different machine (here a different port) the chief refuses it."""
    chief, first, last = local_tasks(MultiWorkerSettings(deterministic=False, workers=3).members())
    moved = Task("worker", 1, {"worker": [chief.address, "127.0.0.1:0", last.address]})
    moved.cluster["worker"][1] = local_tasks({"worker": 1})[0].address
    here, elsewhere = waiting([chief, first, first, moved, last])[2:4]
    assert re.search(r"this process, worker-1, cannot listen on its port \d+", str(here))
    assert "another process is already worker-1 of this cluster" in str(elsewhere)
    assert waiting([chief, first, last]) == [None] * 3


def test_local_clusters_have_a_valid_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings in (TWO, SERVERS):
        for task in local_tasks(settings.members()):
            monkeypatch.setenv("TF_CONFIG", task.tf_config)
            assert task_of_environment(settings) == task


def waiting(tasks: list[Task], *limits: float, apart: float = 0.3, seconds: float = 30) -> list[Exception | None]:
    """Let each of `tasks` wait for the others in a thread; return the error of each, or None.

    Args:
        tasks: The tasks, which start one after the other.
        limits: The limit of each wait in seconds; 20 if it is missing.
        apart: Seconds between two starts.
        seconds: Seconds after which all threads must have ended.
    """
    limits = limits or (20.0,) * len(tasks)
    ended: list[Exception | None] = [None] * len(tasks)

    def wait(number: int) -> None:
        try:
            wait_for_members(tasks[number], limits[number], Console().log)
        except Exception as error:
            ended[number] = error

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(len(tasks))]
    for thread in threads:
        thread.start()
        time.sleep(apart)
    for thread in threads:
        thread.join(seconds)
    return ended


def test_members_connect_in_any_order_and_free_their_ports() -> None:
    tasks = local_tasks(SERVERS.members())
    assert waiting(tasks) == [None] * 3
    for task in tasks:
        socket.create_server(("", int(task.address.rpartition(":")[2]))).close()


def test_an_error_names_the_members_that_did_not_connect_in_time() -> None:
    """This includes members whose host name cannot be resolved. Of many missing members only a few are named."""
    [error] = waiting([Task("worker", 1, {"worker": ["no-such-host.invalid:2222", "127.0.0.1:2222"]})], 1)
    assert "worker 0 at no-such-host.invalid:2222 did not connect within 1 s" in str(error)
    assert "cluster.timeout_seconds=2" in str(error)
    tasks = local_tasks(MultiWorkerSettings(deterministic=False, workers=20).members())
    [error] = waiting(tasks[:1], 1)
    assert f"worker 8 at {tasks[8].address} and 11 more" in str(error)


def test_the_largest_cluster_of_a_strategy_connects() -> None:
    tasks = local_tasks(MultiWorkerSettings(deterministic=False, workers=64).members())
    assert waiting(tasks, apart=0) == [None] * 64


def test_a_restarted_member_connects_to_a_chief_that_already_runs_tensorflow() -> None:
    """TensorFlow's server sends first, in a different protocol. A chief of parameter servers accepts such a worker."""
    chief, _, worker = local_tasks(SERVERS.members())
    code = "import sys, tensorflow as tf\ntf.distribute.Server(dict(chief=[sys.argv[1]]), 'chief', 0)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code, chief.address], stdin=subprocess.PIPE) as server:
        assert waiting([worker], 60.0, seconds=90) == [None]
        server.kill()


def test_a_signal_ends_the_wait() -> None:
    with signals.listening():
        threading.Timer(1.0, signal.raise_signal, [signal.SIGTERM]).start()
        with pytest.raises(Interrupted):  # not the UserError of its limit
            wait_for_members(local_tasks(TWO.members())[0], 60, Console().log)


def test_a_command_whose_members_do_not_connect_ends_its_run(outputs: Path) -> None:
    [first, second] = local_tasks(TWO.members())
    given = ("strategy=multi_worker", "cluster=tf_config", "train.epochs=1")
    alone = Running(outputs, *given, "cluster.timeout_seconds=2", environment={"TF_CONFIG": first.tf_config})
    try:
        assert alone.end(120) == 1
        assert f"error: start: worker 1 at {second.address} did not connect within 2 s" in alone.printed
        assert "Traceback" not in alone.printed
        assert alone.summary()["status"] == alone.status_in_mlflow() == "FAILED"
    finally:
        alone.process.kill()
