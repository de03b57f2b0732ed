"""Hosts: actors on Ray's nodes, each with the resources that it claims, in which processes are started."""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config.cluster import RayCluster
from pipeline.console import Console
from pipeline.engines.ray_connection import address_of, connected
from pipeline.engines.ray_host import Host, Surroundings
from pipeline.engines.ray_process import RayProcess
from pipeline.system import machine, pulse, signals
from stages.errors import UserError

Claim = Mapping[str, float]
"""Resources by Ray's names, `CPU` and `GPU`; empty for a process that mostly waits."""

POLL_SECONDS = 0.5
CONCURRENT_CALLS = 8
"""Calls of an actor at the same time: a report waits while signals arrive."""


@contextmanager
def hosts_on_ray(settings: RayCluster, claims: Sequence[Claim], outputs: Path, console: Console) -> Iterator["Hosts"]:
    """Connects to Ray and places a host for each of `claims`, all or none; ends them with the block.

    Raises:
        UserError: where Ray does not have the resources, or not free within `cluster.timeout_seconds`; or where a
            node does not see `outputs`.
        Interrupted: on a signal.
    """
    if address_of(settings) is None:
        own = {"CPU": float(machine.usable_cores()), "GPU": float(len(machine.gpus()))}
        _refuse_too_many(claims, [own], "this machine")
    around = Surroundings.of_this_process()
    began = time.monotonic()
    held = ExitStack()
    try:
        with console.working("starting Ray"):
            held.enter_context(connected(settings))
            import ray

            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            at = address_of(settings)
            _refuse_too_many(claims, nodes, f"Ray at {at}" if at else "this machine")
            hosts = Hosts(settings, claims, around)
            held.callback(hosts.close)
            hosts.place()
            if at is not None:
                hosts.check_shared(outputs)
        where = f"Ray {ray.__version__} {f'at {at}' if at else 'on this machine'}"
        console.log(f"{where}: {len(claims)} actor(s) after {time.monotonic() - began:.1f} s")
        yield hosts
    finally:
        with signals.ending():  # else a signal's limit may be over by now, and Ray would be left
            held.close()


class Hosts:
    """Actors by the number of their claim; one that has died is started again when it is needed."""

    def __init__(self, settings: RayCluster, claims: Sequence[Claim], around: Surroundings) -> None:
        self._settings = settings
        self._claims = claims
        self._around = around
        self._actors: list[Any] = [None] * len(claims)
        self._bundles = {number: index for index, number in enumerate(n for n, claim in enumerate(claims) if claim)}
        self._group: Any = None

    def __len__(self) -> int:
        return len(self._claims)

    def place(self) -> None:
        """Reserves the resources of all claims, and starts the actors."""
        from ray.util.placement_group import placement_group

        if self._bundles:
            self._group = placement_group([dict(self._claims[number]) for number in self._bundles], strategy="PACK")
            deadline = time.monotonic() + self._settings.timeout_seconds
            while not self._group.wait(POLL_SECONDS):
                signals.check()
                pulse.beat()
                if time.monotonic() > deadline:
                    raise self._no_room()
        self._actors = [self._actor(number) for number in range(len(self._claims))]

    def address(self, number: int) -> str:
        """Returns `host:port` of a free port on the node of a host."""
        return str(self._ask(self._alive(number).free_address.remote()))

    def start(self, number: int, target: Callable[..., None], arguments: tuple[Any, ...]) -> RayProcess:
        """Starts a process in a host."""
        around = replace(self._around, hides_gpus=not self._claims[number].get("GPU"))
        return RayProcess(self._alive(number), target, arguments, around)

    def check_shared(self, outputs: Path) -> None:
        """Raises UserError where a node does not see the folder `outputs`."""
        outputs.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=outputs, prefix=".shared-") as file:
            for number, actor in enumerate(self._actors):
                if not self._ask(actor.exists.remote(file.name)):
                    host = self.address(number).rpartition(":")[0]
                    raise UserError(
                        f"outputs={outputs}: the node {host} of Ray does not see the folder",
                        "a folder that all nodes share, at the same path",
                        "outputs=/shared/outputs",
                    )

    def close(self) -> None:
        import ray
        from ray.util.placement_group import remove_placement_group

        for actor in self._actors:
            if actor is not None:
                ray.kill(actor)
        if self._group is not None:
            remove_placement_group(self._group)

    def _alive(self, number: int) -> Any:
        """Returns the actor, which is started again where it has died."""
        import ray

        try:
            self._ask(self._actors[number].__ray_ready__.remote())
        except ray.exceptions.RayActorError:
            self._actors[number] = self._actor(number)
            self._ask(self._actors[number].__ray_ready__.remote())
        return self._actors[number]

    def _actor(self, number: int) -> Any:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        claim = self._claims[number]
        where = None
        if claim:
            where = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=self._bundles[number])
        options = {
            "num_cpus": claim.get("CPU", 0),
            "num_gpus": claim.get("GPU", 0),
            "max_concurrency": CONCURRENT_CALLS,
            "scheduling_strategy": where or "DEFAULT",
        }
        return ray.remote(Host).options(**options).remote()

    def _ask(self, answer: Any) -> Any:
        """Returns what an actor answers, within `cluster.timeout_seconds`."""
        import ray

        deadline = time.monotonic() + self._settings.timeout_seconds
        while True:
            ready, _ = ray.wait([answer], timeout=POLL_SECONDS)
            if ready:
                return ray.get(answer)
            signals.check()
            pulse.beat()
            if time.monotonic() > deadline:
                limit = self._settings.timeout_seconds
                raise UserError(
                    f"after {limit:g} s an actor of Ray has not started",
                    "nodes that start Python within cluster.timeout_seconds",
                    f"cluster.timeout_seconds={2 * limit:g}",
                )

    def _no_room(self) -> UserError:
        import ray

        limit = self._settings.timeout_seconds
        free = ray.available_resources()
        needed = _total(self._claims)
        there = {name: free.get(name, 0.0) for name in ("CPU", "GPU")}
        return UserError(
            f"after {limit:g} s Ray has no room for {_text(needed)}: {_text(there)} are free",
            "room within cluster.timeout_seconds",
            f"cluster.timeout_seconds={10 * limit:g}",
        )


def _total(claims: Sequence[Claim]) -> dict[str, float]:
    names = {name for claim in claims for name in claim}
    return {name: sum(claim.get(name, 0.0) for claim in claims) for name in sorted(names)}


def _text(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{count:g} {name}s" for name, count in resources.items()) or "nothing"


def _refuse_too_many(claims: Sequence[Claim], nodes: Sequence[Mapping[str, float]], where: str) -> None:
    """Refuses claims that would wait for ever: in sum, or where one is larger than any node."""
    needed = _total(claims)
    for name, count in needed.items():
        there = [node.get(name, 0.0) for node in nodes]
        largest = max(claim.get(name, 0.0) for claim in claims)
        if count > sum(there) or largest > max(there, default=0.0):
            setting = f"cluster.{name.lower()}s"
            problem = f"{setting}={largest:g}: {count:g} {name}s are needed in all, and {where} has {sum(there):g}"
            fit = int(sum(there) * largest // count)
            fix = f"{setting}={fit}" if fit or name == "GPU" else "fewer workers or jobs at a time"
            raise UserError(problem, "what is there", fix)
