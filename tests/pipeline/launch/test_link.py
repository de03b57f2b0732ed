"""Two hosts (network namespaces) train together, and the link between them is cut."""

import json
import time
from pathlib import Path
from subprocess import Popen

import pytest

from pipeline.runs.summary import Summary
from tests import commands
from tests.pipeline.experiments import BARE, only_folder
from tests.pipeline.launch.hosts import Host, linked_hosts

pytestmark = [pytest.mark.slow, pytest.mark.engines]

SETTINGS = (
    "strategy=multi_worker", "model.network.filters=[8,16]", "train.epochs=60", "train.steps_per_call=8", "seed=5",
    "train.checkpoint_every_seconds=1", "deterministic=true", "tracking=off", *BARE,
)  # fmt: skip
NOTICED_SECONDS = 150
"""TensorFlow checks a silent worker every 30 s, and waits 10 s for a response, three times."""


def start(hosts: list[Host], folder: Path) -> list["Popen[bytes]"]:
    """Start worker 0 on the first host and worker 1 on the second, with the same `outputs`."""
    cluster = {"worker": ["a:2222", "b:2222"]}
    return [
        host.start(
            *SETTINGS,
            "cluster=tf_config",
            f"outputs={folder / 'outputs'}",
            log=folder / f"{index}.log",
            environment={
                "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}),
                "CUDA_VISIBLE_DEVICES": "-1",
            },
        )
        for index, host in enumerate(hosts)
    ]


def test_a_run_ends_when_the_link_is_cut_and_resumes_when_it_is_back(tmp_path: Path) -> None:
    whole = commands.run(*SETTINGS, f"outputs={tmp_path / 'whole'}", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    with linked_hosts("a", "b") as hosts:
        members = start(hosts, tmp_path)
        try:
            deadline = time.monotonic() + 120
            while not list(tmp_path.glob("outputs/runs/*/*/checkpoints/step-*.npz")):
                assert time.monotonic() < deadline
                assert [member.poll() for member in members] == [None, None]
                time.sleep(0.2)
            hosts[1].link("down")
            assert [member.wait(NOTICED_SECONDS) for member in members] == [1, 1]
            [summary] = tmp_path.glob("outputs/runs/*/*/summary.json")
            assert json.loads(summary.read_text())["status"] == "FAILED"
            assert "another worker of the cluster was lost" in (tmp_path / "0.log").read_text()
            hosts[1].link("up")
            members = start(hosts, tmp_path)
            assert [member.wait(150) for member in members] == [0, 0]
        finally:
            for member in members:
                member.kill()
    assert "resuming training after step" in (tmp_path / "0.log").read_text()
    resumed, uninterrupted = (Summary.read(only_folder(tmp_path / name)).metrics for name in ("outputs", "whole"))
    for name in ("train/loss", "val/loss", "test/loss"):
        assert resumed[name] == pytest.approx(uninterrupted[name], rel=1e-6)
