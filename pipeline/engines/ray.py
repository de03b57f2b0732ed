"""`cluster=ray`: the members of a cluster, or the jobs of a sweep, are processes beside actors of Ray."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from pipeline.config.cluster import RayCluster
from pipeline.config.experiment import Experiment
from pipeline.console import Console
from pipeline.engines.ray_process import Host, RayProcess, Surroundings
from pipeline.engines.rendezvous import split_address, wait_for_members
from pipeline.engines.supervisor import Place, supervise
from pipeline.planning.job import Job
from pipeline.planning.plan import PlannedStage
from pipeline.run.engine import Engine, Task, tasks_at
from pipeline.system import machine, pulse, signals
from pipeline.system.environment import thread_variables
from pipeline.system.processes import Start
from pipeline.targets import check_installed
from stages.errors import UserError

OBJECT_STORE_BYTES = 80_000_000
"""The least that Ray takes; only messages pass through it."""

POLL_SECONDS = 0.2

CONCURRENT_CALLS = 8
"""Calls of an actor at the same time: a report waits while signals arrive."""

OF_RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_COLOR_PREFIX": "0"}
"""Variables that Ray reads as it is imported and started."""

OF_OWN = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # with it, Ray's servers listen on all interfaces
    "RAY_gcs_server_request_timeout_seconds": "20",  # 60 by default, by which its agents outlive a killed command
}
"""The same for a Ray that this command starts."""

Claim = Mapping[str, float]
"""Resources by Ray's names, `CPU` and `GPU`; empty for a process that mostly waits."""


class Ray(Engine):
    """Runs each member beside an actor that holds its resources, and a job without a cluster beside one, too.

    A sweep keeps an actor for each job that runs at the same time, with the resources of all its workers.
    """

    settings: RayCluster

    def run(self, job: Job, plan: Sequence[PlannedStage], console: Console) -> int:
        counts = job.experiment.members or {"worker": 1}
        claims = [self._claim(1) if name == "worker" else {} for name, count in counts.items() for _ in range(count)]
        with self._actors(claims, [job.experiment], console) as actors:
            threads = thread_variables(self.settings.cpus, job.experiment.deterministic)
            prepare = partial(_prepare, threads, not job.experiment.members)
            place = Place("in Ray's actors", partial(actors.tasks, counts), actors.start_member, prepare)
            return supervise(job, plan, console, place, self.settings.restarts)

    @contextmanager
    def starts(self, count: int, experiments: Sequence[Experiment], console: Console) -> Iterator[Sequence[Start]]:
        workers = max(experiment.members.get("worker", 1) for experiment in experiments)
        with self._actors([self._claim(workers)] * count, experiments, console) as actors:
            yield [partial(actors.start, number) for number in range(count)]

    def _claim(self, workers: int) -> Claim:
        claim = {"CPU": workers * self.settings.cpus, "GPU": workers * self.settings.gpus}
        return {name: float(count) for name, count in claim.items() if count}

    @contextmanager
    def _actors(
        self, claims: Sequence[Claim], experiments: Sequence[Experiment], console: Console
    ) -> Iterator["_Actors"]:
        """Connect to Ray, or start one, and place an actor for each of `claims`, all or none; end them with the block.

        Raises:
            UserError: where Ray is not there or does not have the resources within `cluster.timeout_seconds`.
        """
        outputs = experiments[0].outputs
        outputs.mkdir(parents=True, exist_ok=True)
        os.environ.update(OF_RAY if _address(self.settings) else {**OF_RAY, **OF_OWN})
        check_installed("cluster=ray", ["ray"], "ray")
        import ray

        around = Surroundings.of_this_process(str(outputs))
        try:
            with console.working("starting Ray"):
                _connect(self.settings)
                actors = _Actors(self.settings, claims, around)
            console.log(f"Ray {ray.__version__} at {ray.util.get_node_ip_address()}: {len(claims)} actors")
            yield actors
        finally:
            with signals.ending():  # else a signal's limit may be over by now, and Ray would be left
                ray.shutdown()  # and with it the actors and what they hold


def _address(settings: RayCluster) -> str | None:
    """Return the address of the Ray to use, None for one of this command's own."""
    return settings.address or os.environ.get("RAY_ADDRESS")


def _connect(settings: RayCluster) -> None:
    """Connect this process to the Ray of the settings or of RAY_ADDRESS, or start one that ends with this process."""
    import ray

    address = _address(settings)
    handler = signal.getsignal(signal.SIGTERM)
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
        if address is not None:
            _check_health(address, settings.timeout_seconds)
        ray.init(log_to_driver=False, configure_logging=False, **options)
    except Exception as error:  # Exception itself, ConnectionError, RuntimeError, ValueError …
        failed = isinstance(error, subprocess.SubprocessError)
        reason = "`ray health-check` fails" if failed else str(error).strip().splitlines()[0]
        raise UserError(
            f"cluster=ray cluster.address={address}: there is no Ray to be used ({reason})",
            "host:port of a Ray cluster that this machine is a node of, as `ray start --head` prints it",
            "unset RAY_ADDRESS" if settings.address is None and address else "cluster.address=null",
        ) from error
    finally:
        with suppress(ValueError):  # in a thread, where Ray does not take it
            signal.signal(signal.SIGTERM, handler)
    signals.check()


def _check_health(address: str, seconds: float) -> None:
    """Raise an error where no Ray answers at `address`; `ray.init` would wait for minutes."""
    split_address(address)
    command = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "health-check"]
    subprocess.run([*command, f"--address={address}"], capture_output=True, timeout=seconds, check=True)


class _Actors:
    """An actor for each of `claims`, by its number; one that has died is started again when it is needed."""

    def __init__(self, settings: RayCluster, claims: Sequence[Claim], around: Surroundings) -> None:
        import ray
        from ray.util.placement_group import placement_group

        self._settings = settings
        self._claims = claims
        self._around = around
        self._members: list[str] = []
        self._processes: dict[int, RayProcess] = {}
        total = {name: sum(claim.get(name, 0.0) for claim in claims) for name in ("CPU", "GPU")}
        if any(count > ray.cluster_resources().get(name, 0.0) for name, count in total.items()):
            raise self._no_room(total, ray.cluster_resources())
        self._group = placement_group([dict(claim) for claim in claims if claim])
        if not self._waits_for(self._group.ready()):
            raise self._no_room(total, ray.available_resources())
        self._actors = [self._actor(number) for number in range(len(claims))]

    def tasks(self, counts: Mapping[str, int]) -> list[Task]:
        """Return the tasks of a cluster with an actor for each member."""
        tasks = tasks_at(counts, [self._address(number) for number in range(len(self._claims))])
        self._members = [task.name for task in tasks]
        limit = self._settings.timeout_seconds
        return [replace(task, meet=partial(wait_for_members, task, limit)) for task in tasks]  # firewalls between

    def start_member(self, task: Task, target: Callable[..., None], arguments: tuple[Any, ...]) -> RayProcess:
        return self.start(self._members.index(task.name), target, arguments)

    def _address(self, number: int) -> str:
        """Return `host:port` of a free port on the node of an actor."""
        import ray

        answer = self._alive(number).free_address.remote()
        if not self._waits_for(answer):
            limit = self._settings.timeout_seconds
            problem = f"after {limit:g} s an actor of Ray has not started"
            raise UserError(problem, "nodes that start Python sooner", f"cluster.timeout_seconds={2 * limit:g}")
        return str(ray.get(answer))

    def start(self, number: int, target: Callable[..., None], arguments: tuple[Any, ...]) -> RayProcess:
        """Start a process beside an actor."""
        around = replace(self._around, hides_gpus=not self._claims[number].get("GPU"))
        self._processes[number] = RayProcess(self._alive(number), target, arguments, around)
        return self._processes[number]

    def _alive(self, number: int) -> Any:
        process = self._processes.pop(number, None)
        if process is not None and process.lost is not None:
            self._actors[number] = self._actor(number)
        return self._actors[number]

    def _actor(self, number: int) -> Any:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        claim = self._claims[number]
        bundle = sum(1 for before in self._claims[:number] if before)
        return (
            ray.remote(Host)
            .options(
                num_cpus=claim.get("CPU", 0),
                num_gpus=claim.get("GPU", 0),
                max_concurrency=CONCURRENT_CALLS,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, bundle) if claim else "DEFAULT",
            )
            .remote()
        )

    def _waits_for(self, answer: Any) -> bool:
        """Wait for an answer of Ray's, at most `cluster.timeout_seconds`; return whether it is there."""
        import ray

        def is_there() -> bool:
            pulse.beat()
            return bool(ray.wait([answer], timeout=0)[0])

        return signals.until(is_there, self._settings.timeout_seconds, POLL_SECONDS)

    def _no_room(self, needed: Claim, there: Claim) -> UserError:
        texts = [" and ".join(f"{part.get(name, 0):g} {name}s" for name in ("CPU", "GPU")) for part in (needed, there)]
        limit = self._settings.timeout_seconds
        return UserError(
            f"cluster=ray: {texts[0]} are needed in all, and Ray has {texts[1]}",
            "what is free within cluster.timeout_seconds: fewer workers or jobs at a time, or fewer cluster.cpus",
            f"cluster.timeout_seconds={10 * limit:g}",
        )


def _prepare(threads: Mapping[str, str], is_alone: bool, task: Task) -> Task | None:
    """Set the variables of a member, in its process; Ray has chosen its GPUs."""
    if task.job == "worker":
        os.environ.update(threads)
    if is_alone:
        return None
    os.environ["TF_CONFIG"] = task.tf_config
    return task
