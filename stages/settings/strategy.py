"""Settings of the `strategy` stage."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import II

from stages.settings.ranges import choice, number, option, text


def device(default: Any, example: str = "/cpu:0") -> Any:
    """Returns a field for names of devices; whether they exist, TensorFlow knows."""
    return text(default, r"(?i)/?(device:)?(cpu|gpu|tpu):\d{1,3}", "a device, /cpu:<number> or /gpu:<number>", example)


@dataclass(kw_only=True)
class StrategySettings:
    """Settings of every strategy."""

    _target_: str = "stages.strategy.strategy"
    deterministic: bool = II("deterministic")

    def members(self) -> dict[str, int]:
        """Return how many processes there are of each kind, the chief's first; none where this one does all."""
        return {}


@option("strategy", "default")
@dataclass(kw_only=True)
class DefaultSettings(StrategySettings):
    """TensorFlow without a strategy: one replica, where TensorFlow puts it."""


@option("strategy", "one_device")
@dataclass(kw_only=True)
class OneDeviceSettings(StrategySettings):
    """One replica on one device."""

    device: str | None = device(None)
    """A TensorFlow device such as `/cpu:0`; null: the first GPU, else the CPU."""


@dataclass(kw_only=True)
class DevicesSettings(StrategySettings):
    """Several devices of this machine."""

    devices: list[str] = device([], "[/cpu:0,/cpu:1]")
    """TensorFlow devices such as `[/gpu:0,/gpu:1]`; empty: all GPUs, else `cpu_replicas` logical CPU devices."""
    cpu_replicas: int = number(2, at_least=1, at_most=64, unit="logical CPU devices, where there is no GPU")


@option("strategy", "mirrored")
@dataclass(kw_only=True)
class MirroredSettings(DevicesSettings):
    """One replica on each device, variables mirrored, gradients summed."""

    reduction: str = choice("auto", "auto", "one_device")
    """The way in which gradients are summed: `auto` is NCCL between GPUs, else on one device, as without NCCL."""


@option("strategy", "central_storage")
@dataclass(kw_only=True)
class CentralStorageSettings(DevicesSettings):
    """One replica on each device, the variables on one of them or on the CPU."""

    parameter_device: str = device("/cpu:0")
    """Device of the variables."""


@option("strategy", "model_parallel")
@dataclass(kw_only=True)
class ModelParallelSettings(DevicesSettings):
    """One replica, the layers of its model on several devices."""

    layers: dict[str, str] = field(default_factory=dict)
    """From patterns of layer names (`conv2d*`) to devices; layers that no pattern matches go to the
    devices in order, by the bytes of their weights."""


@option("strategy", "multi_worker")
@dataclass(kw_only=True)
class MultiWorkerSettings(StrategySettings):
    """One replica in each worker process (on each of its GPUs), variables mirrored, gradients summed by collectives."""

    workers: int = number(2, at_least=1, at_most=64, unit="processes that cluster=local starts")
    communication: str = choice("auto", "auto", "ring")
    """Between workers: `auto` is NCCL for GPUs, else gRPC in a ring, as without NCCL."""

    def members(self) -> dict[str, int]:
        return {"worker": self.workers}


@option("strategy", "parameter_server")
@dataclass(kw_only=True)
class ParameterServerSettings(StrategySettings):
    """Workers compute gradients, each at its own pace, and apply them to variables on servers."""

    workers: int = number(2, at_least=1, at_most=64, unit="processes that cluster=local starts to compute")
    servers: int = number(2, at_least=1, at_most=64, unit="processes that cluster=local starts to hold variables")

    def members(self) -> dict[str, int]:
        return {"chief": 1, "ps": self.servers, "worker": self.workers}


@option("strategy", "tpu")
@dataclass(kw_only=True)
class TpuSettings(StrategySettings):
    """One replica on each core of a TPU."""

    name: str | None = None
    """The TPU's name or address (grpc://host:port), or `local`; null: that of the environment (TPU_NAME)."""
