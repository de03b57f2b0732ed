"""Settings of the group `cluster`: the engine on which the members of a strategy run, one schema an engine."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from stages.settings.ranges import number


@dataclass(kw_only=True)
class ClusterSettings:
    """Base of the settings of every engine."""

    _target_: str = "???"
    """A class that extends `pipeline.run.engine.Engine`."""

    counts_members: ClassVar[bool] = True
    """Whether `strategy.workers` and `strategy.servers` say how many members there are; else the environment does."""
    takes_single: ClassVar[bool] = True
    """Whether an experiment of a single process runs on it, too."""
    takes_several: ClassVar[bool] = True
    """Whether jobs of a sweep run on it at the same time."""
    places_jobs: ClassVar[bool] = False
    """Whether it gives jobs of a sweep their devices; else they divide those of this machine."""

    def replicas(self, workers: int, gpus: int) -> int | None:
        """Returns the number of replicas of `multi_worker`; None where only the environment knows.

        Args:
            workers: `strategy.workers`. gpus: those of this machine.
        """
        return None

    def cores(self, workers: int) -> int | None:
        """Returns the cores of a job of a sweep with so many workers, where `places_jobs`."""
        return None

    def of_placed_job(self) -> "ClusterSettings":
        """Returns the settings for the process of a job that a sweep has placed, which starts its members beside it."""
        return self


@dataclass(kw_only=True)
class LocalCluster(ClusterSettings):
    """Processes on this machine."""

    _target_: str = "pipeline.engines.local.Local"
    restarts: int = number(0, at_least=0, unit="restarts of a cluster whose member has died")

    def replicas(self, workers: int, gpus: int) -> int | None:
        return max(gpus, workers)


@dataclass(kw_only=True)
class RayCluster(ClusterSettings):
    """Processes of Ray's actors, on its nodes."""

    places_jobs: ClassVar[bool] = True

    _target_: str = "pipeline.engines.ray.Ray"
    address: str | None = None
    """`host:port` of a Ray cluster; null: that of RAY_ADDRESS, else one on this machine that ends with the command."""
    cpus: int = number(1, at_least=1, unit="cores of each worker; of each job of a sweep, times its workers")
    gpus: int = number(0, at_least=0, unit="GPUs of each worker")
    restarts: int = number(0, at_least=0, unit="restarts of a run whose process has died")
    timeout_seconds: float = number(
        60.0, at_least=1, at_most=7 * 24 * 3600, unit="seconds to wait for Ray, for free resources, and for members"
    )

    def replicas(self, workers: int, gpus: int) -> int | None:
        return workers * max(self.gpus, 1)

    def cores(self, workers: int) -> int | None:
        return workers * self.cpus

    def of_placed_job(self) -> ClusterSettings:
        return LocalCluster(restarts=self.restarts)


@dataclass(kw_only=True)
class JoinedCluster(ClusterSettings):
    """Members that something else starts, each by the same command; the environment says which one this is."""

    counts_members: ClassVar[bool] = False
    takes_single: ClassVar[bool] = False
    takes_several: ClassVar[bool] = False

    timeout_seconds: float = number(
        60.0, at_least=1, at_most=7 * 24 * 3600, unit="seconds to wait for the other members"
    )


@dataclass(kw_only=True)
class TfConfigCluster(JoinedCluster):
    """The place is in `TF_CONFIG`, as Kubernetes' TFJob and Vertex AI set it."""

    _target_: str = "pipeline.engines.tf_config.TfConfig"


@dataclass(kw_only=True)
class CustomCluster(JoinedCluster):
    """The place is what one's own class says: see `pipeline.run.engine.Joined`."""

    options: dict[str, Any] = field(default_factory=dict)
    """For one's own class, such as `+cluster.options.port=2222`."""
