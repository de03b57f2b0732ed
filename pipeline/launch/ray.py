"""`cluster=ray`: each member of a job is a process next to an actor of Ray, which reserves its resources."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import suppress
from importlib.metadata import entry_points
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from pipeline.config.cluster import ClusterSettings, LocalCluster, RayCluster, TfConfigCluster
from pipeline.console import Console
from pipeline.decide.job import Job
from pipeline.execute.child import POLL_SECONDS, leave
from pipeline.execute.task import Task, tasks_at
from pipeline.exit_codes import FAILED, WRONG_CONFIGURATION
from pipeline.launch.joined import split_address
from pipeline.launch.local import Members, starts_again
from pipeline.launch.remote import Elsewhere, Member, RemoteJob
from pipeline.runs.summary import one_line
from pipeline.system import machine, signals, streams
from pipeline.system.environment import thread_variables
from pipeline.system.processes import LocalProcess, become_independent, warm_up, watch
from pipeline.targets import check_installed
from pipeline.tracking.ending import LOST
from pipeline.tracking.pending import end_lost
from stages.errors import UserError

OBJECT_STORE_BYTES = 80_000_000
"""The smallest object store that Ray accepts. Only messages pass through it."""

CONCURRENT_CALLS = 4
"""Number of calls that an actor runs at the same time: it receives signals while it watches its process."""

KILL_SECONDS = 2.0
"""Seconds that the actors have to kill their processes, before they are killed themselves."""

LOG = "output.log"
"""The file in the run's folder with the output of the chief."""

OF_RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_COLOR_PREFIX": "0"}
"""Environment variables that Ray reads when it is imported and started."""

OF_THE_NODE = ("CUDA_VISIBLE_DEVICES", "HOSTNAME", "LD_LIBRARY_PATH", "TMPDIR")
"""Environment variables that a process takes from its node. It takes all others from the command."""


class Ray(Elsewhere):
    """Runs each member next to an actor that reserves its resources. A job without a cluster has one actor."""

    settings: RayCluster

    def submit(self, job: Job, console: Console) -> "RayJob":
        check_installed("cluster=ray", ["ray"], "ray")
        _connect(self.settings, console)
        return RayJob(job, self.settings, console)

    def close(self) -> None:
        with signals.ending():  # else the time limit of an earlier signal could end this process before Ray has ended
            if "ray" in sys.modules:
                sys.modules["ray"].shutdown()  # which also ends the actors and frees their resources


def _connect(settings: RayCluster, console: Console) -> None:
    """Connect this process to the Ray cluster in the settings or in RAY_ADDRESS.

    If neither names one, start a Ray cluster that ends with this process.

    Raises:
        UserError: If Ray is not available.
    """
    address = settings.address or os.environ.get("RAY_ADDRESS")
    os.environ.update(OF_RAY)
    if address is None:
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # else Ray's servers listen on all interfaces
    import ray

    if ray.is_initialized():
        return
    options: dict[str, Any] = {"address": address}
    if address is None:
        options = {
            "address": "local",
            "num_cpus": machine.usable_cores(),
            "num_gpus": len(machine.gpus()),
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
        }
    try:
        with console.working("starting Ray"):
            if address is not None:
                _check_health(address, settings.timeout_seconds)
            ray.init(log_to_driver=False, configure_logging=False, **options)
    except Exception as error:  # Exception itself, ConnectionError, RuntimeError, ValueError …
        failed = isinstance(error, subprocess.SubprocessError)
        reason = "`ray health-check` failed" if failed else one_line(error)
        problem = f"cluster=ray cluster.address={address}: Ray is not available ({reason})"
        fix = "unset RAY_ADDRESS" if settings.address is None and address else "cluster.address=null"
        raise UserError(problem, "host:port of a Ray cluster that includes this machine", fix) from error
    signals.check()  # also restores the handler of SIGTERM, which Ray replaces
    console.log(f"Ray {ray.__version__} at {ray.util.get_node_ip_address()}")


def _check_health(address: str, seconds: float) -> None:
    """Raise an error if no Ray responds at `address`; `ray.init` would wait for minutes."""
    split_address(address)
    [script] = entry_points(group="console_scripts", name="ray")
    code = f"from {script.module} import {script.attr} as main; main()"
    command = [sys.executable, "-c", code, "health-check", f"--address={address}"]
    subprocess.run(command, capture_output=True, timeout=seconds, check=True)


class RayJob(RemoteJob):
    """A job whose members run next to actors. It restarts from its last checkpoint up to `cluster.restarts` times.

    Raises:
        UserError: If it needs more CPUs or GPUs than Ray has in total.
    """

    def __init__(self, job: Job, settings: RayCluster, console: Console) -> None:
        import ray

        assert job.folder is not None
        job.folder.path.mkdir(parents=True, exist_ok=True)
        super().__init__(job, job.folder.path / LOG, console)
        self._shown = self.log.stat().st_size if self.log.exists() else 0  # what a run that is resumed printed before
        self._settings = settings
        self._counts = job.experiment.members or {"worker": 1}
        self._claim = {name: float(count) for name, count in (("CPU", settings.cpus), ("GPU", settings.gpus)) if count}
        self._total = {name: self._counts["worker"] * count for name, count in self._claim.items()}
        self._hosts: list[Any] = []
        self._request: signals.Request | None = None
        self._asked = 0
        self._lost: str | None = None
        self._steps = self._work()
        if any(count > ray.cluster_resources().get(name, 0.0) for name, count in self._total.items()):
            raise self._no_room(ray.cluster_resources())

    def __str__(self) -> str:
        return f"{sum(self._counts.values())} Ray actors"

    def look(self) -> int | None:
        try:
            next(self._steps)
        except StopIteration as ended:
            return int(ended.value)
        return None

    def stop(self, request: signals.Request, count: int = 1) -> None:
        """Ask only the chief to end, because it needs the others to save a checkpoint."""
        if self._hosts and (self._request is None or count > self._asked):
            self._hosts[0].stop.remote(request, count)
        self._request, self._asked = request, count

    def _work(self) -> Generator[None, None, int]:
        """Run the job, and end its run; yields while it waits, and returns the exit code."""
        code = FAILED
        for left in reversed(range(self._settings.restarts + 1)):
            self._lost = None
            try:
                code = yield from self._attempt()
            except UserError as error:
                self._console.error(str(error))
                self.folder.remove_if_unused()
                return WRONG_CONFIGURATION
            if not starts_again(code, self._lost, left, self._console):
                break
        with signals.ending():
            end_lost(self.folder, self.job.experiment, code, self._console, self._lost or LOST)
        return code

    def _attempt(self) -> Generator[None, None, int]:
        """Run all members once, and return the exit code of the chief."""
        import ray
        from ray.util.placement_group import placement_group, remove_placement_group

        group = placement_group([self._claim] * self._counts["worker"])  # reserves all resources or none
        try:
            self._hosts = [
                self._host(job, group, index) for job, count in self._counts.items() for index in range(count)
            ]
            addresses = [host.free_address.remote() for host in self._hosts]
            deadline = time.monotonic() + self._settings.timeout_seconds
            while len(ray.wait(addresses, num_returns=len(addresses), timeout=0)[0]) < len(addresses):
                if self._request is not None:
                    return self._request.exit_code
                if time.monotonic() > deadline:
                    raise self._no_room(ray.available_resources())
                yield
            try:
                tasks = tasks_at(self._counts, ray.get(addresses))
            except ray.exceptions.RayError as error:  # the node does not have this code, or has died
                self._lost = f"a Ray actor cannot be started ({str(error).strip().splitlines()[-1]})"
                self._console.error(f"{self._lost}: the run cannot continue")
                return FAILED
            runs = {task.name: self._start(host, task) for host, task in zip(self._hosts, tasks, strict=True)}
            stop = self._hosts[0].stop
            members = Members(
                tasks[::-1],
                lambda task: _end_of(runs[task.name]),
                lambda: stop.remote(signals.signal_request(signal.SIGTERM), 1),
                self._console,
            )
            while (ended := members.poll()) is None:
                yield
            self._lost = members.lost
            return ended
        finally:
            with suppress(Exception):
                ray.get([host.kill.remote() for host in self._hosts], timeout=KILL_SECONDS)
            for host in self._hosts:
                ray.kill(host)
            self._hosts = []
            remove_placement_group(group)

    def _host(self, job: str, group: Any, index: int) -> Any:
        """Return a new actor. The actor of a worker reserves the worker's CPUs and GPUs."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        claim = self._claim if job == "worker" else {}
        options = ray.remote(Host).options(
            num_cpus=claim.get("CPU", 0),
            num_gpus=claim.get("GPU", 0),
            max_concurrency=CONCURRENT_CALLS,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, index) if claim else "DEFAULT",
        )
        return options.remote()

    def _start(self, host: Any, task: Task) -> Any:
        """Start the process of a member on its actor's node, and return a future of its exit code."""
        experiment = self.job.experiment
        variables = {name: text for name, text in os.environ.items() if name not in OF_THE_NODE}
        cluster: ClusterSettings = LocalCluster()
        if experiment.members:
            variables["TF_CONFIG"] = task.tf_config
            cluster = TfConfigCluster(timeout_seconds=self._settings.timeout_seconds)
        if task.job == "worker":
            variables |= thread_variables(self._settings.cpus, experiment.deterministic)
        if not (task.job == "worker" and self._settings.gpus):  # else those that Ray has given its actor
            variables["CUDA_VISIBLE_DEVICES"] = "-1"
        log = self.log if task.is_chief else self.log.with_name(f"{task.name}.log")
        return host.run.remote(Member.of(self.job), cluster, log, variables)

    def _no_room(self, there: Mapping[str, float]) -> UserError:
        parts = (self._total, there)
        texts = [" and ".join(f"{part.get(name, 0):g} {name}s" for name in ("CPU", "GPU")) for part in parts]
        problem = f"cluster=ray: {texts[0]} are needed in total, but Ray has {texts[1]}"
        fix = f"cluster.timeout_seconds={10 * self._settings.timeout_seconds:g}"
        return UserError(
            problem,
            "resources that become free in time: fewer workers, fewer parallel jobs or a smaller cluster.cpus",
            fix,
        )


def _end_of(run: Any) -> tuple[int, str] | None:
    """Return the exit code of a member and how it ended; None while it runs."""
    import ray

    if not ray.wait([run], timeout=0)[0]:
        return None
    try:
        code, how = ray.get(run)
    except ray.exceptions.RayActorError:
        return 128 + signal.SIGKILL, "is lost, because its Ray actor or node died"
    except Exception as error:  # what the node cannot unpickle or start
        return FAILED, f"cannot be started on its node ({str(error).strip().splitlines()[-1]})"
    return int(code), str(how)


class Host:
    """An actor with one process. Several of its calls may run at the same time, in threads."""

    def __init__(self) -> None:
        # else every process would import the main module of Ray's worker, and Ray with it
        vars(sys.modules["__main__"]).pop("__file__", None)
        warm_up()
        self._process: LocalProcess | None = None
        self._asked: tuple[signals.Request, int] | None = None

    def free_address(self) -> str:
        """Return `host:port` of this node, with a port that is free now."""
        import ray

        with socket.create_server(("", 0)) as free:
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def run(self, member: Member, cluster: ClusterSettings, log: Path, variables: Mapping[str, str]) -> tuple[int, str]:
        """Run a member in a process, which is killed if it hangs.

        Args:
            member: The member.
            cluster: The settings by which it finds the other members.
            log: The file that it prints to.
            variables: The environment variables of the command, without the variables in OF_THE_NODE.

        Returns:
            Its exit code, and how it ended if it did not end by itself.
        """
        for folder in (member.folder, log.parent):
            if not folder.is_dir():
                raise FileNotFoundError(f"{folder} was not found; all nodes must share this folder")
        limit = member.document.hang_seconds
        # Not `supervise`: signals arrive as calls from the command's process, which watches all members.
        self._process = process = LocalProcess(_begin, (member, cluster, log, variables), limit)
        while (ended := process.end()) is None:
            wait([process.sentinel], POLL_SECONDS)
            if self._asked is not None:
                process.stop(*self._asked)
        return ended

    def stop(self, request: signals.Request, count: int) -> None:
        """Ask the process to save and end, as by `count` signals."""
        self._asked = request, count

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()


def _begin(member: Member, cluster: ClusterSettings, log: Path, variables: Mapping[str, str]) -> None:
    """Run a member: the main function of its process."""
    streams.append_to(log)
    of_node = {name: os.environ[name] for name in OF_THE_NODE if name in os.environ}
    os.environ.clear()
    os.environ.update({**of_node, **variables})
    member.enter()
    become_independent(stop=signal.SIGINT if log.name == LOG else None)
    watch(member.document.hang_seconds)
    console = Console()
    leave(lambda: member.run(console, cluster), console, refused=WRONG_CONFIGURATION)
