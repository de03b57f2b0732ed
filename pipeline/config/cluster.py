"""Settings of the group `cluster`: where a run runs, one schema per launcher."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from omegaconf import MISSING

from stages.errors import UserError
from stages.settings.ranges import number, option


def _timeout(awaited: str) -> Any:
    return number(60.0, at_least=1, at_most=7 * 24 * 3600, unit=f"seconds to wait for {awaited}")


@dataclass(kw_only=True)
class ClusterSettings:
    """Base of the settings of every launcher."""

    _target_: str = "???"
    """A class that extends `pipeline.launch.launcher.Launcher`."""

    submits_jobs: ClassVar[bool] = False
    """Whether jobs of a sweep run elsewhere. Otherwise they share the devices of this machine."""

    def replicas(self, workers: int, gpus: int) -> int | None:
        """Return the number of replicas of `multi_worker`; None if it depends on the environment of the members.

        Args:
            workers: The value of `strategy.workers`.
            gpus: The number of GPUs of this machine.
        """
        return None


@option("cluster", "local")
@dataclass(kw_only=True)
class LocalCluster(ClusterSettings):
    """Processes on this machine."""

    _target_: str = "pipeline.launch.local.Local"
    restarts: int = number(0, at_least=0, unit="times to restart the cluster after a member dies")

    def replicas(self, workers: int, gpus: int) -> int | None:
        return max(gpus, workers)


@option("cluster", "ray")
@dataclass(kw_only=True)
class RayCluster(ClusterSettings):
    """Ray actors, on the nodes of a Ray cluster."""

    submits_jobs: ClassVar[bool] = True

    _target_: str = "pipeline.launch.ray.Ray"
    address: str | None = None
    """`host:port` of a Ray cluster; null: the cluster in RAY_ADDRESS, or a local one that ends with the command."""
    cpus: int = number(1, at_least=1, unit="CPU cores per worker")
    gpus: int = number(0, at_least=0, unit="GPUs per worker")
    restarts: int = number(0, at_least=0, unit="times to restart a run after one of its processes dies")
    timeout_seconds: float = _timeout("Ray, free resources and the other members")

    def replicas(self, workers: int, gpus: int) -> int | None:
        return workers * max(self.gpus, 1)


@dataclass(kw_only=True)
class JoinedCluster(ClusterSettings):
    """Members that are started by something else, all with the same command; the environment identifies each one."""

    timeout_seconds: float = _timeout("the other members")


@option("cluster", "tf_config")
@dataclass(kw_only=True)
class TfConfigCluster(JoinedCluster):
    """Members that are started by Kubernetes' TFJob, Vertex AI or something else, each with its own `TF_CONFIG`."""

    _target_: str = "pipeline.launch.joined.TfConfig"


@option("cluster", "custom")
@dataclass(kw_only=True)
class CustomCluster(JoinedCluster):
    """Members whose addresses a custom class determines: see `pipeline.launch.joined.Joined`."""

    options: dict[str, Any] = field(default_factory=dict)
    """Settings of a custom class, such as `+cluster.options.port=2222`."""


@option("cluster", "hosts")
@dataclass(kw_only=True)
class HostsCluster(JoinedCluster):
    """Members on a list of addresses, each started on its own host with the same list."""

    _target_: str = "pipeline.launch.joined.Hosts"
    hosts: list[str] = MISSING
    """`host:port` of every member: the workers, or for `parameter_server` the chief, the servers, then the workers."""
    index: int | None = number(
        None, at_least=0, unit="position of this process in hosts, from 0; null: found by this host's addresses"
    )

    def replicas(self, workers: int, gpus: int) -> int | None:
        return None if gpus else len(self.hosts)


@option("cluster", "slurm")
@dataclass(kw_only=True)
class SlurmCluster(ClusterSettings):
    """Tasks of a Slurm job; a command outside of a job submits one."""

    submits_jobs: ClassVar[bool] = True

    _target_: str = "pipeline.launch.slurm.Slurm"
    timeout_seconds: float = _timeout("the other members")
    nodes: int = number(1, at_least=1, unit="nodes to spread the members over")
    cpus_per_task: int | None = number(None, at_least=1, unit="CPUs per member; null: Slurm's default, one")
    gpus_per_task: int | None = number(None, at_least=1, unit="GPUs per member; null: none")
    memory_gib: float | None = number(None, above=0, unit="GiB of memory per node; null: Slurm's default")
    partition: str | None = None
    account: str | None = None
    minutes: int = number(60, at_least=1, unit="minutes of the job's time limit; a requeued job resumes")
    signal_seconds: int = number(
        90, at_least=5, at_most=3600, unit="seconds before the time limit at which the job saves and ends"
    )
    requeues: int = number(10, at_least=0, unit="times to requeue a job that reached its time limit")
    wait: bool = True
    """Whether the command waits for the job and shows its output; otherwise it ends once the job is in the queue."""
    port: int | None = number(
        None,
        at_least=1024,
        at_most=65000,
        unit="port of the first member, the others use the next ones; null: derived from the job's id",
    )
    options: dict[str, Any] = field(default_factory=dict)
    """Other options of sbatch, such as `+cluster.options.constraint=a100`."""

    def check(self, path: str) -> None:
        if self.signal_seconds >= 60 * self.minutes:
            raise UserError(
                f"{path}.signal_seconds={self.signal_seconds} is not shorter than the job's time limit",
                f"fewer seconds than {path}.minutes={self.minutes}",
                f"{path}.signal_seconds={20 * self.minutes}",
            )

    def replicas(self, workers: int, gpus: int) -> int | None:
        return workers * (self.gpus_per_task or 1)
