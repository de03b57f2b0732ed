"""`cluster=slurm` on a real Slurm: equal to a local cluster, through the end of its time and a signal."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import mlflow
import psutil
import pytest

from tests import commands
from tests.engines.slurm.daemons import ask, processes, slurm
from tests.pipeline.experiments import BARE

pytestmark = pytest.mark.engines

TWO = (
    "strategy=multi_worker", "deterministic=true", "train.epochs=10", "train.checkpoint_every_steps=20",
    "model.network.filters=[8,16]", *BARE,
)  # fmt: skip
ON_SLURM = ("cluster=slurm", "cluster.nodes=2", "cluster.timeout_seconds=300")
ONE = ("cluster=slurm", "train.epochs=1", "model.network.filters=[8,16]", *BARE)
SECRET = "of-the-server-4711"
SECONDS = 400


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    with slurm() as folder:
        yield folder


class Submitted:
    """A command that runs, with the job that it has submitted."""

    def __init__(self, outputs: Path, *arguments: str) -> None:
        self.outputs, self.log = outputs, outputs.parent / f"{time.monotonic_ns()}.txt"
        self.process = commands.start(
            *arguments,
            f"outputs={outputs}",
            cwd=outputs.parent,
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
            env={**os.environ, "MLFLOW_TRACKING_PASSWORD": SECRET, "PYTHONPATH": str(commands.ROOT)},
        )

    @property
    def printed(self) -> str:
        return self.log.read_text()

    @property
    def job_id(self) -> str:
        return self.wait_for(r"Slurm job ([\d_]+)")[1]

    def wait_for(self, pattern: str, count: int = 1) -> re.Match[str]:
        """Wait until `pattern` has been printed `count` times, and return the last match."""
        deadline = time.monotonic() + SECONDS
        while len(found := list(re.finditer(pattern, self.printed))) < count:
            assert time.monotonic() < deadline, self.printed
            assert self.process.poll() is None, self.printed
            time.sleep(0.1)
        return found[-1]

    def end(self) -> int:
        return self.process.wait(SECONDS)

    def summary(self) -> dict[str, Any]:
        [path] = self.outputs.glob("runs/*/*/summary.json")
        return json.loads(path.read_text())


def ended(outputs: Path, *arguments: str) -> Submitted:
    """Return a command that has ended well."""
    submitted = Submitted(outputs, *arguments)
    try:
        assert submitted.end() == 0, submitted.printed
    finally:
        submitted.process.kill()
    return submitted


def nobody_is_left(cluster: Path) -> bool:
    """Whether the queue is empty and all processes of jobs end within seconds."""
    deadline = time.monotonic() + 30
    while processes(cluster) and time.monotonic() < deadline:
        time.sleep(0.2)
    return not processes(cluster) and ask("squeue", "--noheader") == ""


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The summary of the experiment on two workers of `cluster=local`, uninterrupted."""
    folder = tmp_path_factory.mktemp("local")
    done = commands.run(*TWO, f"outputs={folder}/outputs", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = folder.glob("outputs/runs/*/*/summary.json")
    return json.loads(path.read_text())


def test_two_nodes_equal_a_local_cluster_through_a_requeue(cluster: Path, outputs: Path, local: dict[str, Any]) -> None:
    """After the notice of the time limit, which `scancel` can send at any time."""
    submitted = Submitted(outputs, *TWO, *ON_SLURM)
    try:
        submitted.wait_for(r"epoch +2/")
        ask("scancel", "--signal=USR2", submitted.job_id)
        submitted.wait_for(r"requeueing it \(1 of 10\)")
        submitted.wait_for("resuming training after")
        assert submitted.end() == 0, submitted.printed
    finally:
        submitted.process.kill()
    found = submitted.summary()
    assert found["status"] == "FINISHED"
    for name in ("train/loss", "val/loss", "train/accuracy", "val/best_loss"):
        assert found["metrics"][name] == pytest.approx(local["metrics"][name], abs=1e-6), name
    tags = mlflow.MlflowClient(f"sqlite:///{outputs}/mlflow.db").get_run(found["run_id"]).data.tags
    assert tags["slurm.job_id"] == submitted.job_id
    assert tags["slurm.requeues"] == "1"
    assert nobody_is_left(cluster)
    shown = ask("scontrol", "show", "job", submitted.job_id, "--details") + submitted.printed
    files = [path.read_bytes() for path in (Path(found["folder"]) / "slurm").iterdir()]
    assert len(files) >= 4  # the script, the function, and the output of each task
    assert SECRET not in shown
    assert not [text for text in files if SECRET.encode() in text]


def test_a_job_that_loses_a_node_resumes_on_others(cluster: Path, outputs: Path, local: dict[str, Any]) -> None:
    """Slurm, which has noticed, queues the job again; its processes there are gone."""
    submitted, node = Submitted(outputs, *TWO, *ON_SLURM), ""
    try:
        node = "127.0.0." + submitted.wait_for(r"RUNNING on 127\.0\.0\.\[?(\d)")[1]
        submitted.wait_for(r"epoch +2/")
        ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")
        for process in processes(cluster, node):
            with suppress(psutil.Error):
                process.kill()
        submitted.wait_for("resuming training after")
        assert submitted.end() == 0, submitted.printed
    finally:
        submitted.process.kill()
        ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
    found = submitted.summary()
    assert found["status"] == "FINISHED"
    for name in ("train/loss", "val/loss", "train/accuracy", "val/best_loss"):
        assert found["metrics"][name] == pytest.approx(local["metrics"][name], abs=1e-6), name
    assert nobody_is_left(cluster)


def test_tasks_of_srun_find_their_places(cluster: Path, outputs: Path) -> None:
    """In an allocation of the user's own, with a task each for the chief, a server and a worker."""
    counts = ("strategy=parameter_server", "strategy.workers=1", "strategy.servers=1", "train.epochs=1")
    command = [
        "srun", "--nodes=2", "--ntasks=3", sys.executable, "-m", "pipeline", *ON_SLURM[::2], *counts, *BARE,
        f"outputs={outputs}",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=outputs.parent, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = outputs.glob("runs/*/*/summary.json")
    assert json.loads(path.read_text())["status"] == "FINISHED"
    assert nobody_is_left(cluster)


def test_ctrl_c_cancels_the_job_and_saves(cluster: Path, outputs: Path) -> None:
    submitted = Submitted(outputs, *ONE, "train.epochs=5000")
    try:
        submitted.wait_for(r"epoch +2/")
        submitted.process.send_signal(signal.SIGINT)
        assert submitted.end() == 130, submitted.printed
    finally:
        submitted.process.kill()
    assert submitted.summary()["status"] == "KILLED"
    assert list(outputs.glob("runs/*/*/checkpoints/step-*.npz"))
    assert nobody_is_left(cluster)


def test_a_job_has_what_was_asked_for_and_saves_where_its_user_cancels_it(cluster: Path, outputs: Path) -> None:
    """By `scancel` alone, which the command that waits for the job has not sent."""
    asked = ("cluster.cpus_per_task=2", "cluster.memory_gib=0.5", "cluster.minutes=7", "cluster.account=vision")
    submitted = Submitted(outputs, *ONE, "train.epochs=5000", *asked)
    try:
        submitted.wait_for(r"epoch +2/")
        shown = ask("scontrol", "show", "job", submitted.job_id)
        ask("scancel", submitted.job_id)
        assert submitted.end() == 143, submitted.printed
    finally:
        submitted.process.kill()
    for said in ("NumCPUs=2", "CPUs/Task=2", "MinMemoryNode=512M", "TimeLimit=00:07:00", "Account=vision"):
        assert said in shown
    assert submitted.summary()["status"] == "KILLED"
    assert list(outputs.glob("runs/*/*/checkpoints/step-*.npz"))
    assert nobody_is_left(cluster)


def test_a_job_whose_time_is_over_saves_is_queued_again_and_equals_one_that_had_the_time(
    cluster: Path, outputs: Path, tmp_path: Path
) -> None:
    """By Slurm's own clock, with its least limit, of a minute."""
    small = ("data=synthetic", "data.height=8", "data.width=8", "model=mlp", "deterministic=true", "train.epochs=150")
    given = (*small, "train.callbacks=[{_target_: tests.engines.slurm.slow.Slow}]", *BARE)
    whole = commands.run(*given, "tracking=off", f"outputs={tmp_path}/whole", cwd=commands.ROOT)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    [path] = tmp_path.glob("whole/runs/*/*/summary.json")
    submitted = ended(outputs, *given, "cluster=slurm", "cluster.minutes=1", "cluster.signal_seconds=5")
    assert re.search(r"the job reached its time limit: requeueing it \(1 of 10\)", submitted.printed), submitted.printed
    assert "resuming training after step" in submitted.printed
    found, expected = submitted.summary(), json.loads(path.read_text())
    assert found["resumed_from_step"] > 0
    for name in ("train/loss", "val/loss", "val/best_loss", "test/loss", "train/last_epoch"):
        assert found["metrics"][name] == expected["metrics"][name], name
    assert nobody_is_left(cluster)


def test_a_sweep_submits_its_jobs_and_is_resumed(cluster: Path, outputs: Path) -> None:
    given = ("-m", "train.batch_size=32,64", "sweep.n_jobs=2", *ONE)
    submitted = ended(outputs, *given)
    assert len(set(re.findall(r"Slurm job (\d+): RUNNING", submitted.printed))) == 2
    assert nobody_is_left(cluster)
    [sweep] = outputs.glob("sweeps/*")
    finished = sorted(sweep.glob("*/summary.json"))
    assert [json.loads(path.read_text())["status"] for path in finished] == ["FINISHED"] * 2
    finished[1].write_text(finished[1].read_text().replace("FINISHED", "KILLED"))
    (sweep / "sweep.json").write_text((sweep / "sweep.json").read_text().replace("FINISHED", "KILLED"))
    again = ended(outputs, *given)
    assert "resuming sweep" in again.printed
    assert again.printed.count("already finished, skipped") == 1
    assert len(set(re.findall(r"Slurm job (\d+): RUNNING", again.printed))) == 1


def ids(submitted: Submitted) -> list[str]:
    """Return the ids of the Slurm jobs that the command has named, each once."""
    return sorted(set(re.findall(r"Slurm job (\d+)[: ]", submitted.printed)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("cluster.partition=nowhere",), r"Slurm rejected the job \(invalid partition specified: nowhere"),
        (("+cluster.options.nonsense=1",), r"Slurm rejected the job \(.*nonsense"),
        (("tracking.tags.api_token=xyz-12345-abc",), r"tracking.tags.api_token contains a secret"),
    ],
)
def test_what_slurm_does_not_take_is_refused_in_one_line(
    given: tuple[str, ...], message: str, cluster: Path, outputs: Path
) -> None:
    done = commands.run(*ONE, *given, f"outputs={outputs}", cwd=outputs.parent, trains=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert re.fullmatch(rf"error: cluster.*{message}.*\n|error: {message}.*\n", done.stderr), done.stderr
    assert not list(outputs.glob("runs/*/*/summary.json"))
    assert "xyz-12345-abc" not in done.stdout + done.stderr
