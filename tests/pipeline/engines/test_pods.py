"""The processes of pods, by the very arguments and variables of `docs/kubernetes`, on hosts with the pods' names."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import commands
from tests.pipeline.engines.hosts import Host, bridged_hosts, two_hosts
from tests.pipeline.engines.test_kubernetes import pods_of_job, pods_of_tfjob, pods_with_servers
from tests.pipeline.experiments import BARE, losses

pytestmark = [pytest.mark.slow, pytest.mark.engines]

SMALL = ("train.epochs=1", "model.network.filters=[8,16]", "seed=3", "tracking=off", *BARE)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Losses of the same training on this machine."""
    folder = tmp_path_factory.mktemp("alone")
    alone = commands.run("strategy=multi_worker", *SMALL, f"outputs={folder}", cwd=folder)
    assert alone.returncode == 0, alone.stderr
    return losses(folder)


@pytest.mark.parametrize(
    ("pods", "names"),
    [
        (pods_of_job, ("train-0.train", "train-1.train")),
        (pods_of_tfjob, ("train-worker-0.default.svc", "train-worker-1.default.svc")),
    ],
    ids=["job", "tfjob"],
)
def test_pods_train_as_one_machine_does(
    pods: Callable[[], list[tuple[list[str], dict[str, str]]]],
    names: tuple[str, str],
    expected: list[float],
    tmp_path: Path,
) -> None:
    with two_hosts(names) as hosts:
        codes, printed = ended(hosts, pods(), tmp_path)
    assert codes == [0, 0], printed
    assert losses(tmp_path / "outputs") == pytest.approx(expected, rel=1e-6), printed


def test_pods_of_a_cluster_with_servers_train(tmp_path: Path) -> None:
    """Workers go at their own pace, so that no loss is the same twice; servers and workers end with the chief."""
    pods = pods_with_servers()
    tasks = [json.loads(variables["TF_CONFIG"]) for _, variables in pods]
    names = [task["cluster"][task["task"]["type"]][task["task"]["index"]].partition(":")[0] for task in tasks]
    with bridged_hosts(names) as hosts:
        codes, printed = ended(hosts, pods, tmp_path)
    assert codes == [0, 0, 0, 0], printed
    [path] = (tmp_path / "outputs").glob("runs/*/*/summary.json")
    summary = json.loads(path.read_text())
    assert (summary["status"], summary["replicas"]) == ("FINISHED", 2)
    assert summary["metrics"]["train/loss"] < 10


def ended(hosts: list[Host], pods: list[tuple[list[str], dict[str, str]]], folder: Path) -> tuple[list[int], str]:
    """Starts each pod's process on its host; returns the exit codes and all that they have printed."""
    started = [
        host.start(
            *[text for text in arguments if not text.startswith("tracking")],
            *SMALL,
            f"outputs={folder / 'outputs'}",
            log=folder / f"{index}.log",
            environment={**variables, "CUDA_VISIBLE_DEVICES": "-1"},
        )
        for index, (host, (arguments, variables)) in enumerate(zip(hosts, pods, strict=True))
    ]
    try:
        codes = [process.wait(240) for process in started]
    finally:
        for process in started:
            process.kill()
    return codes, "\n".join(path.read_text() for path in sorted(folder.glob("*.log")))
