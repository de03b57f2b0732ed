"""Launchers: each determines its place in the cluster from its environment, and reports errors in one line."""

import os
import re
import signal
import socket
import stat
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.config.cluster import HostsCluster, RayCluster, SlurmCluster
from pipeline.console import Console
from pipeline.decide.decision import decide
from pipeline.decide.job import Job
from pipeline.exit_codes import FAILED
from pipeline.launch.joined import Hosts
from pipeline.launch.launcher import launcher_of
from pipeline.launch.ray import RayJob
from pipeline.launch.remote import Elsewhere, RemoteJob
from pipeline.launch.run import carry_out, run_job
from pipeline.launch.slurm import SlurmTask, expand_counts
from pipeline.system import signals
from stages.errors import UserError
from stages.settings.strategy import MultiWorkerSettings, ParameterServerSettings
from tests.pipeline.experiments import Patch, Printed, experiment

TWO = MultiWorkerSettings(deterministic=False)
SERVERS = ParameterServerSettings(deterministic=False, workers=1, servers=1)
OWN, ELSEWHERE = "localhost:23457", "b.invalid:23457"
WHICH = "does not identify this process"


def test_a_host_finds_itself_in_the_list() -> None:
    task = Hosts(HostsCluster(hosts=[ELSEWHERE, OWN])).task(TWO)
    assert (task.job, task.index, task.cluster) == ("worker", 1, {"worker": [ELSEWHERE, OWN]})
    named = f"{socket.gethostname()}:23457"
    assert Hosts(HostsCluster(hosts=[named, ELSEWHERE])).task(TWO).index == 0


def test_the_order_of_a_parameter_server_cluster_is_chief_servers_workers() -> None:
    hosts = [OWN, "localhost:23458", "localhost:23459"]
    tasks = [Hosts(HostsCluster(hosts=hosts, index=index)).task(SERVERS) for index in range(3)]
    assert [task.name for task in tasks] == ["chief-0", "server-0", "worker-0"]
    assert [task.address for task in tasks] == hosts


COUNTED = r"the cluster has 2 members\. Expected .*: 1 chief, 1 ps, 1 worker"


@pytest.mark.parametrize(
    ("hosts", "index", "message"),
    [([OWN, "127.0.0.1:23458"], None, WHICH), ([ELSEWHERE, "c.invalid:1"], None, WHICH), ([OWN, ELSEWHERE], 2, WHICH),
     (["nonsense"], None, "'nonsense' is not the address"), ([OWN, ELSEWHERE], None, COUNTED)],
)  # fmt: skip
def test_wrong_hosts_are_refused(hosts: list[str], index: int | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Hosts(HostsCluster(hosts=hosts, index=index)).task(SERVERS if message == COUNTED else TWO)


def test_counts_of_tasks_are_expanded() -> None:
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
    assert expand_counts("1") == [1]


STEP = {
    "SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NODELIST": "localhost",
    "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NUM_TASKS": "2",
}  # fmt: skip


@pytest.fixture
def step(monkeypatch: Patch, tmp_path: Path) -> Patch:
    """Set the variables of a Slurm task, and provide a fake `scontrol`. The tests in tests/engines use a real Slurm."""
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\necho localhost\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_a_task_of_srun_is_the_worker_of_its_rank(step: Patch) -> None:
    task = SlurmTask(SlurmCluster()).task(TWO)
    assert (task.job, task.index) == ("worker", 1)
    assert task.cluster == {"worker": ["localhost:10768", "localhost:10769"]}
    assert SlurmTask(SlurmCluster(port=2222)).task(TWO).address == "localhost:2223"


@pytest.mark.parametrize(
    ("variables", "settings", "message"),
    [({}, {"workers": 3}, r"srun started 2 tasks. Expected the members of the strategy: 3 worker"),
     ({"SLURM_STEP_TASKS_PER_NODE": "x"}, {}, "not started by"), ({"SLURM_JOB_ID": "x"}, {}, "not started by"),
     ({"SLURMD_NODENAME": "n2"}, {}, "task 1 is not on localhost. Expected srun --distribution=block")],
)  # fmt: skip
def test_tasks_that_do_not_fit_the_strategy_are_refused(
    variables: dict[str, str], settings: dict[str, Any], message: str, step: Patch
) -> None:
    for name, value in variables.items():
        step.setenv(name, value)
    with pytest.raises(UserError, match=message):
        SlurmTask(SlurmCluster()).task(MultiWorkerSettings(deterministic=False, **settings))


def test_without_slurm_a_job_is_refused(monkeypatch: Patch, tmp_path: Path) -> None:
    for name in STEP:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"Slurm rejected the job \(Could not detect .srun."):
        run_job(Job(experiment("cluster=slurm", "tracking=off", outputs=tmp_path)), Console())
    assert not list(tmp_path.glob("runs/*/*"))


def test_a_target_that_is_not_a_launcher_is_refused(tmp_path: Path) -> None:
    for target in ("pathlib.Path", "no_such_package.Launcher", "x"):
        with pytest.raises(UserError, match=rf"cluster._target_={target} (cannot be imported|does not extend)"):
            launcher_of(experiment("cluster=local", f"cluster._target_={target}", outputs=tmp_path))


class Remote(RemoteJob):
    """A job that ends at the third call of `look`, or when it is stopped. A signal arrives at the second call."""

    looks = 0
    has_stopped = False

    def look(self) -> int | None:
        self.looks += 1
        is_signalled = self.job.experiment.seed == 1
        if is_signalled and self.looks == 2:
            signal.raise_signal(signal.SIGTERM)
        return 7 if self.has_stopped else 0 if self.looks == 3 and not is_signalled else None

    def stop(self, request: signals.Request, count: int = 1) -> None:
        self.has_stopped = True


class Somewhere(Elsewhere):
    """A launcher of such jobs."""

    def submit(self, job: Job, console: Console) -> Remote:
        assert job.folder is not None
        (job.folder.path / "output.log").write_text("begun\nsubmitit says\nlast words\nhalf a line")
        return Remote(job, job.folder.path / "output.log", console)


def test_a_command_waits_for_a_job_elsewhere_and_shows_its_output(outputs: Path, capsys: Printed) -> None:
    job = Job(experiment(f"cluster._target_={__name__}.Somewhere", outputs=outputs))
    assert carry_out(decide(job), Console()) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["begun", "last words"]


def test_a_job_elsewhere_is_stopped_by_a_signal(outputs: Path) -> None:
    job = Job(experiment(f"cluster._target_={__name__}.Somewhere", "seed=1", outputs=outputs))
    with signals.listening(), pytest.raises(signals.Interrupted) as stopped:
        carry_out(decide(job), Console())
    assert stopped.value.exit_code == 143


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_an_error_names_the_package_to_install(tmp_path: Path, pipeline_command: Any) -> None:
    ran = pipeline_command("cluster=ray", "tracking=off", f"outputs={tmp_path}/outputs", trains=False)
    assert ran.returncode == 2
    assert re.fullmatch(r".*cluster=ray: the package ray is not installed.*pip install.*\n", ran.stderr)


def test_an_actor_that_cannot_be_started_is_reported_in_one_line(monkeypatch: Patch, capsys: Printed) -> None:
    """This happens on a node without this project's code. The test does not need Ray."""

    def get(*_: Any, **__: Any) -> None:
        raise RuntimeError("The actor died\nModuleNotFoundError: No module named 'pipeline'")

    groups = SimpleNamespace(placement_group=lambda bundles: bundles, remove_placement_group=lambda group: None)
    parts = {"exceptions": SimpleNamespace(RayError=RuntimeError), "get": get, "kill": lambda host: None}
    fake: Any = SimpleNamespace(**parts, wait=lambda found, **_: (found, []))
    for name, module in {"ray": fake, "ray.util": fake, "ray.util.placement_group": groups}.items():
        monkeypatch.setitem(sys.modules, name, module)
    job: Any = object.__new__(RayJob)
    job._claim, job._counts, job._request = {}, {"worker": 1}, None
    job._settings, job._console = RayCluster(), Console()
    job._host = lambda *_: SimpleNamespace(free_address=SimpleNamespace(remote=lambda: "an address"))
    with pytest.raises(StopIteration) as ended:
        next(job._attempt())
    assert ended.value.value == FAILED
    reason = "a Ray actor cannot be started (ModuleNotFoundError: No module named 'pipeline')"
    assert job._lost == reason
    assert f"{reason}: the run cannot continue" in capsys.readouterr().out
