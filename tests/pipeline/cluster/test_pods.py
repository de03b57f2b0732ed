"""The processes of pods, by the very arguments and variables of `docs/kubernetes`, on hosts with the pods' names."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import commands
from tests.pipeline.cluster.hosts import two_hosts
from tests.pipeline.cluster.test_kubernetes import pods_of_job, pods_of_tfjob
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
        started = [
            host.start(
                *[text for text in arguments if not text.startswith("tracking")],
                *SMALL,
                f"outputs={tmp_path / 'outputs'}",
                log=tmp_path / f"{index}.log",
                environment={**variables, "CUDA_VISIBLE_DEVICES": "-1"},
            )
            for index, (host, (arguments, variables)) in enumerate(zip(hosts, pods(), strict=True))
        ]
        try:
            codes = [process.wait(240) for process in started]
        finally:
            for process in started:
                process.kill()
    printed = "\n".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert codes == [0, 0], printed
    assert losses(tmp_path / "outputs") == pytest.approx(expected, rel=1e-6), printed
