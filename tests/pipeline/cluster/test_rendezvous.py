"""`cluster=tf_config`: what cannot be a cluster is refused at once, and nobody is waited for without end."""

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.meeting import meet_all
from pipeline.cluster.rendezvous import meet
from pipeline.cluster.task import Task, local_tasks
from pipeline.console import Console
from pipeline.engines.tf_config import task_of_environment
from pipeline.system import signals
from pipeline.system.signal_listener import Interrupted
from stages.errors import UserError
from stages.settings.strategy import MultiWorkerSettings, ParameterServerSettings
from tests.pipeline.cluster.test_cluster import Running

pytestmark = pytest.mark.slow

TWO = MultiWorkerSettings(deterministic=False)
SERVERS = ParameterServerSettings(deterministic=False, workers=1, servers=1)
FIRST = {"type": "worker", "index": 0}


def config(workers: Any, task: Any = FIRST, **others: Any) -> str:
    return json.dumps({"cluster": {"worker": workers, **others}, "task": task})


WRONG = {
    "{": "no JSON",
    "[]": "no object with a `cluster`",
    '{"cluster": {"worker": ["a:1"]}}': "no `task`",
    config("a:1"): "`cluster.worker` is no list",
    config([]): "`cluster.worker` is no list",
    config([2222]): "`cluster.worker` is no list",
    config(["127.0.0.1:23451"], {"type": "evaluator", "index": 0}): "the task's type 'evaluator' is not in",
    config(["127.0.0.1:23451"], {"type": "worker", "index": 1}): "index 1 is not one of worker's 0 to 0",
    config(["127.0.0.1:23451"], {"type": "worker", "index": -1}): "index -1 is not",
    config(["127.0.0.1:23451"], {"type": "worker", "index": True}): "index True is not",
    config(["127.0.0.1:23451"], {"type": "worker", "index": 0.0}): "index 0.0 is not",
    config(["127.0.0.1:23451"], {"type": ["worker"], "index": 0}): "is not in `cluster`",
    config(["127.0.0.1:23451"], evaluator=["127.0.0.1:23452"]): "evaluator is no kind of task",
    config(["127.0.0.1:23451"], ps=["127.0.0.1:23452"]): "ps is no kind of task",
    config(["127.0.0.1:23451"], chief=["127.0.0.1:23452", "127.0.0.1:23453"]): "there are 2 chiefs",
    config(["127.0.0.1:23451", "127.0.0.1:23451"]): "worker 0 and worker 1 have the same address",
    config(["127.0.0.1:23451", "LOCALHOST:23451"]): "have the same address",
    config(["127.0.0.1:23451", "b:99999"]): "the port 99999 is not one of 1 to 65535",
    config(["127.0.0.1:23451", "b:0"]): "the port 0 is not one of",
    config(["127.0.0.1:23451", "b:x"]): "the port x is not one of",
    config(["127.0.0.1:23451", "b"]): "the host is missing",
    config(["127.0.0.1:23451", ":1"]): "the host is missing",
    config(["127.0.0.1:23451", "::1:2222"]): "stands in brackets",
    config(["127.0.0.1:23451", "http://b:1"]): "is no host:port",
    config(["no-such-host.invalid:23451"]): "this process's own host no-such-host.invalid is not known",
}


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
    with pytest.raises(UserError, match="there is no ps"):
        task_of_environment(SERVERS)


def test_a_port_that_is_taken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setenv("TF_CONFIG", config([f"127.0.0.1:{other.getsockname()[1]}"]))
        with pytest.raises(UserError, match=r"own port .* cannot be listened at"):
            task_of_environment(TWO)


def test_what_local_clusters_are_given_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings in (TWO, SERVERS):
        for task in local_tasks(settings):
            monkeypatch.setenv("TF_CONFIG", task.tf_config)
            assert task_of_environment(settings) == task


def waiting(tasks: list[Task], *limits: float, apart: float = 0.3) -> list[Exception | None]:
    """Returns how each of `tasks` has waited for the others, its own of `limits` (20 s), started `apart` seconds."""
    limits = limits or (20.0,) * len(tasks)
    ended: list[Exception | None] = [None] * len(tasks)

    def wait(number: int) -> None:
        try:
            meet(replace(tasks[number], timeout_seconds=limits[number]), Console().log)
        except Exception as error:
            ended[number] = error

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(len(tasks))]
    for thread in threads:
        thread.start()
        time.sleep(apart)
    for thread in threads:
        thread.join(30)
    return ended


def test_members_meet_whoever_comes_first_and_leave_their_ports_free() -> None:
    tasks = local_tasks(SERVERS)
    assert waiting(tasks) == [None] * 3
    for task in tasks:
        socket.create_server(("", int(task.address.rpartition(":")[2]))).close()


def test_one_that_does_not_come_is_named_when_the_limit_is_over() -> None:
    first, second = local_tasks(TWO)
    [error] = waiting([first], 1)  # its thread has ended, or there would be no error
    assert f"after 1 s there is no worker 1 at {second.address}" in str(error)
    assert "cluster.timeout_seconds=2" in str(error)


def test_a_line_names_a_few_of_many_missing_members() -> None:
    tasks = local_tasks(MultiWorkerSettings(deterministic=False, workers=20))
    [error] = waiting(tasks[:1], 1)
    assert f"worker 8 at {tasks[8].address} and 11 more" in str(error)


def test_a_member_that_has_come_and_left_is_missing() -> None:
    first, second, third = local_tasks(MultiWorkerSettings(deterministic=False, workers=3))
    errors = waiting([first, second, third], 3, 0.3, 2, apart=0.8)
    assert f"there is no worker 1 at {second.address}" in str(errors[0])
    assert "worker 2" not in str(errors[0])


def test_a_hundred_members_meet() -> None:
    meet_all(100)


def test_a_host_that_is_not_known_yet_is_waited_for() -> None:
    [first, _] = local_tasks(TWO)
    task = Task("worker", 0, {"worker": [first.address, "no-such-host.invalid:2222"]})
    [error] = waiting([task], 3)
    assert "worker 1 at no-such-host.invalid:2222 (its name is not known)" in str(error)


def test_members_with_different_clusters_say_so() -> None:
    first, second = local_tasks(TWO)
    other = replace(second, cluster={"worker": [*second.cluster["worker"], "127.0.0.1:1"]})
    errors = waiting([first, other], 5, 5)
    assert "worker 1" in str(errors[0])
    assert "was started with other members" in str(errors[0])


@pytest.fixture
def listening() -> Iterator[None]:
    with signals.listening():
        yield


def test_waiting_hears_a_signal(listening: None) -> None:
    threading.Timer(1.0, signal.raise_signal, [signal.SIGTERM]).start()
    with pytest.raises(Interrupted):  # not the UserError of its limit
        meet(replace(local_tasks(TWO)[0], timeout_seconds=60), Console().log)


def test_a_command_that_waits_in_vain_ends_its_run(outputs: Path) -> None:
    [first, second] = local_tasks(TWO)
    given = ("strategy=multi_worker", "cluster=tf_config", "train.epochs=1")
    alone = Running(outputs, *given, "cluster.timeout_seconds=2", environment={"TF_CONFIG": first.tf_config})
    try:
        assert alone.end(120) == 1
        assert f"error: cluster: after 2 s there is no worker 1 at {second.address}" in alone.printed
        assert "Traceback" not in alone.printed
        assert alone.summary()["status"] == alone.status_in_mlflow() == "FAILED"
    finally:
        alone.process.kill()
