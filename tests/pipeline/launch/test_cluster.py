"""Clusters of real processes: what two commands say works, and nobody outlives a run."""

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.clusters import run_chief, run_workers
from pipeline.exit_codes import FAILED, HUNG
from pipeline.launch.local import local_tasks
from pipeline.runs.summary import Summary
from pipeline.system.signals import until
from stages.load.digits import digits
from stages.results import Dataset
from stages.settings.data import DigitsSettings
from stages.settings.strategy import MultiWorkerSettings, ParameterServerSettings, StrategySettings
from tests import commands
from tests.pipeline.experiments import BARE, LONG, SMALL, TRAINED, only_folder, only_run

pytestmark = pytest.mark.slow

SHORT = ("train.epochs=7", "model.network.filters=[8,16]", *TRAINED)
"""Of 23 steps each."""


class Running:
    """A command that runs, and the processes of its cluster."""

    def __init__(self, outputs: Path, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self.outputs = outputs
        self.log = outputs.parent / f"printed-{time.monotonic_ns()}.txt"
        streams: dict[str, Any] = {"stdout": self.log.open("w"), "stderr": subprocess.STDOUT}
        env = {**os.environ, **(environment or {})}
        self.process = commands.start(*arguments, f"outputs={outputs}", cwd=outputs.parent, env=env, **streams)
        self.everyone: list[psutil.Process] = []

    @property
    def printed(self) -> str:
        return self.log.read_text()

    def wait_for(self, pattern: str, seconds: float = 300) -> None:
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.printed):
            assert time.monotonic() < deadline, self.printed
            assert self.process.poll() is None, self.printed
            time.sleep(0.1)
        self.everyone = psutil.Process(self.process.pid).children(recursive=True)

    def member(self, name: str) -> psutil.Process:
        """Return the process that writes `<name>.log`; the chief is the one that writes `pipeline.log`."""
        wanted = "pipeline.log" if name == "chief" else f"{name}.log"
        for process in self.everyone:
            if any(f"/{wanted}" in os.path.realpath(path) for path in Path(f"/proc/{process.pid}/fd").iterdir()):
                return process
        raise AssertionError(f"no {name} among {self.everyone}")

    def end(self, seconds: float = 300, others_seconds: float = 15) -> int:
        """Return the exit code; all other processes have ended by `others_seconds` later."""
        code = self.process.wait(seconds)
        _gone, alive = psutil.wait_procs(self.everyone, timeout=others_seconds)
        assert not alive, alive
        return code

    def summary(self) -> dict[str, Any]:
        return json.loads((only_folder(self.outputs) / "summary.json").read_text())

    def status_in_mlflow(self) -> str:
        _, run = only_run(self.outputs)
        assert run.info.run_id == self.summary()["run_id"]
        return str(run.info.status)


Start = Callable[..., Running]


@pytest.fixture
def start(outputs: Path) -> Iterator[Start]:
    begun: list[Running] = []

    def run(*arguments: str, **options: Any) -> Running:
        begun.append(Running(outputs, *arguments, **options))
        return begun[-1]

    yield run
    for running in begun:
        if running.process.poll() is None:
            running.process.kill()
        for process in running.everyone:
            if process.is_running():
                process.kill()


def by_hand(strategy: StrategySettings) -> list[dict[str, str]]:
    """Return the environments of the members of a cluster that is started by hand, as on several machines."""
    return [{"TF_CONFIG": task.tf_config} for task in local_tasks(strategy.members())]


def test_two_workers_that_were_started_by_hand_end_as_one_device_does(start: Start, tmp_path: Path) -> None:
    """The whole command: equal numbers, one run, one export."""
    given = ("train.epochs=2", "train.batch_size=63", SHORT[1], BARE[0])
    words = ("strategy=multi_worker", "cluster=tf_config", *given)
    two, other = (start(*words, environment=own) for own in by_hand(MultiWorkerSettings(deterministic=False)))
    assert (two.end(), other.end()) == (0, 0), two.printed + other.printed
    commands.succeed(*given, "pipeline.export=null", "tracking=off", f"outputs={tmp_path}/one", cwd=tmp_path)
    expected, found = Summary.read(only_folder(tmp_path / "one")).metrics, two.summary()["metrics"]
    for name in ("train/loss", "val/loss", "test/loss", "test/accuracy"):
        assert found[name] == pytest.approx(expected[name], abs=1e-5), name
    assert found["export/max_abs_diff"] <= 1e-6
    assert (two.summary()["replicas"], two.status_in_mlflow()) == (2, "FINISHED")


def test_servers_that_were_started_by_hand_end_with_their_chief(start: Start) -> None:
    given = ("strategy=parameter_server", "cluster=tf_config", *SMALL, *TRAINED)
    environments = by_hand(ParameterServerSettings(deterministic=False, workers=1, servers=1))
    running = [start(*given, environment=own) for own in reversed(environments)]
    assert [one.end() for one in running] == [0] * 3, [one.printed for one in running]
    assert running[-1].summary()["status"] == running[-1].status_in_mlflow() == "FINISHED"


def test_a_signal_saves_and_ends_all_within_ten_seconds(start: Start) -> None:
    """Several workers agree to end, whichever has heard of it: one that is not the chief has, below."""
    running = start("strategy=parameter_server", *LONG)
    running.wait_for(r"epoch +3/5000")
    began = time.monotonic()
    running.process.send_signal(signal.SIGINT)
    assert (running.end(), time.monotonic() - began < commands.HEARD_SECONDS) == (130, True)
    assert list(Path(running.summary()["folder"]).glob("checkpoints/step-*.npz"))
    assert running.printed.count("listen on all network interfaces") == 1
    assert running.summary()["status"] == running.status_in_mlflow() == "KILLED"


def test_a_signal_to_one_worker_saves_and_ends_all_and_the_same_command_goes_on(start: Start) -> None:
    given = ("strategy=multi_worker", *SHORT, "train.steps_per_call=2")
    running = start(*given)
    running.wait_for(r"epoch +3/7")
    began = time.monotonic()
    running.member("worker-1").terminate()
    assert (running.end(), time.monotonic() - began < commands.HEARD_SECONDS) == (143, True), running.printed
    assert running.summary()["status"] == running.status_in_mlflow() == "KILLED"
    assert "resume      python -m pipeline strategy=multi_worker" in running.printed
    [folder] = running.outputs.glob("runs/*/*")
    saved = max(int(path.stem.removeprefix("step-")) for path in (folder / "checkpoints").glob("step-*.npz"))
    assert saved > 46
    again = start(*given)
    assert again.end() == 0, again.printed
    assert (again.summary()["resumed_from_step"], again.status_in_mlflow()) == (saved, "FINISHED")
    client, run = only_run(again.outputs)
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [point.step for point in history] == list(range(1, 8))


def hangs_once_as_worker_1() -> Any:
    """A callback that waits for ever in one of two processes, the first time that its fourth epoch begins."""
    import keras

    mark, index = Path(os.environ["HANGS_ONCE"]), json.loads(os.environ["TF_CONFIG"])["task"]["index"]

    def wait(epoch: int, logs: object) -> None:
        if epoch == 3 and index == 1 and not mark.exists():
            mark.touch()
            threading.Event().wait()

    return keras.callbacks.LambdaCallback(on_epoch_begin=wait)


def test_a_cluster_whose_worker_hangs_starts_again_by_itself(start: Start, tmp_path: Path) -> None:
    hangs = f"train.callbacks=[{{_target_: {__name__}.{hangs_once_as_worker_1.__name__}}}]"
    given = ("strategy=multi_worker", *SHORT, "train.checkpoint_every_steps=20", hangs)
    environment = {"HANGS_ONCE": str(tmp_path / "mark")}
    running = start("cluster.restarts=1", "hang_seconds=10", *given, environment=environment)
    running.wait_for(r"warning: restarting the cluster from its last checkpoint \(0 restarts left\)")
    assert "made no progress for" in running.printed, running.printed
    assert running.end() == 0, running.printed
    assert running.summary()["resumed_from_step"] >= 60
    assert running.status_in_mlflow() == "FINISHED"


def waits_as_worker_1(settings: DigitsSettings) -> Dataset:
    """A stage `load` that waits for ever in one of two processes; the other one waits for it as soon as it trains."""
    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
        threading.Event().wait()
    return digits(settings)


def test_members_that_hang_end_where_nobody_watches_them(start: Start) -> None:
    waiting = f"data._target_={__name__}.{waits_as_worker_1.__name__}"
    given = ("strategy=multi_worker", "cluster=tf_config", "hang_seconds=10", *SHORT, waiting)
    running = [start(*given, environment=own) for own in by_hand(MultiWorkerSettings(deterministic=False))]
    assert {one.end() for one in running} <= {FAILED, HUNG}, [one.printed for one in running]
    printed = [one.printed for one in running]
    assert any("it made no progress for 1" in text for text in printed), printed
    assert running[0].summary()["status"] == "FAILED"
    assert until(lambda: running[0].status_in_mlflow() == "FAILED", 20)  # by its follower, soon after


@pytest.mark.parametrize(
    ("killed", "code", "status", "said"),
    [("worker-1", 1, "FAILED", "error: worker-1 was killed by signal 9: the run cannot continue"),
     ("chief", 137, "FAILED", "the run ended as FAILED: its process was killed"), ("command", -9, "KILLED", "epoch")],
)  # fmt: skip
def test_whoever_is_killed_ends_all_and_the_run(killed: str, code: int, status: str, said: str, start: Start) -> None:
    """Of parameter servers, a chief that dies is one of those that start again, below."""
    running = start(f"strategy={'parameter_server' if killed == 'command' else 'multi_worker'}", *LONG)
    running.wait_for(r"epoch +3/5000")
    began = time.monotonic()
    (running.process if killed == "command" else running.member(killed)).kill()
    assert (running.end(), time.monotonic() - began < commands.HEARD_SECONDS) == (code, True)
    assert said in running.printed
    assert running.summary()["status"] == status
    if killed != "command":  # which would have sent it
        assert running.status_in_mlflow() == status


def test_parameter_servers_reach_95_percent_whoever_is_lost_on_the_way(start: Start) -> None:
    """Two workers and two servers, of which each kind is killed, and the chief.

    One worker does a lost one's steps. A lost server and then a lost chief start the cluster again from its checkpoint.
    """
    given = ("train.epochs=15", "train.restore_best=false", BARE[0])
    running = start("strategy=parameter_server", "cluster.restarts=2", "train.checkpoint_every_steps=46", *given)
    for epoch, name in ((2, "worker-0"), (9, "server-0"), (11, "chief")):
        running.wait_for(rf"epoch +{epoch}/15")
        running.member(name).kill()
    assert running.end() == 0, running.printed
    assert "worker-0 was killed by signal 9; the other workers take over its work" in running.printed
    assert running.summary()["resumed_from_step"] >= 184  # the ends of eight epochs
    metrics = running.summary()["metrics"]
    assert metrics["test/accuracy"] >= 0.95
    assert metrics["export/max_abs_diff"] <= 1e-6
    assert (running.summary()["replicas"], running.status_in_mlflow()) == (2, "FINISHED")


def test_workers_agree_on_what_each_has_measured(tmp_path: Path) -> None:
    """How many steps a call takes is chosen by the clock: workers that chose differently would wait for ever."""
    codes, printed = run_workers(2, "tests.meeting", str(tmp_path / "mean"), start=commands.start)
    assert codes == [0, 0], printed
    assert [(tmp_path / f"mean.{index}").read_text() for index in range(2)] == ["1.5", "1.5"]


def test_examples_and_steps_are_counted_exactly_and_variables_spread_over_the_servers(tmp_path: Path) -> None:
    code, printed = run_chief("tests.coordinator", str(tmp_path / "counts.json"), start=commands.start)
    assert code == 0, printed
    initial_weights_that_differ, *found = json.loads((tmp_path / "counts.json").read_text())
    assert initial_weights_that_differ == 0  # float64 against float32
    assert found == [[900.0] * 3, 45, ["task:0", "task:1"]]
