"""Settings of the `strategy` stage."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import II

from stages.settings.ranges import choice, number, option, text


def device(default: Any, example: str = "/cpu:0") -> Any:
    """Return a field for names of devices. TensorFlow checks later whether they exist."""
    return text(default, r"(?i)/?(device:)?(cpu|gpu|tpu):\d{1,3}", "a device, /cpu:<number> or /gpu:<number>", example)


@dataclass(kw_only=True)
class StrategySettings:
    """Settings that every strategy has."""

    _target_: str = "stages.strategy.strategy"
    deterministic: bool = II("deterministic")

    def members(self) -> dict[str, int]:
        """Return the number of processes of each kind, the chief first; empty for a single process."""
        return {}


@option("strategy", "default")
@dataclass(kw_only=True)
class DefaultSettings(StrategySettings):
    """No distribution strategy: one replica, on the devices that TensorFlow chooses."""


@option("strategy", "one_device")
@dataclass(kw_only=True)
class OneDeviceSettings(StrategySettings):
    """One replica on one device."""

    device: str | None = device(None)
    """TensorFlow device, such as `/cpu:0`. null: the first GPU, or the CPU if there is no GPU."""


@dataclass(kw_only=True)
class DevicesSettings(StrategySettings):
    """Several devices of this machine."""

    devices: list[str] = device([], "[/cpu:0,/cpu:1]")
    """TensorFlow devices, such as `[/gpu:0,/gpu:1]`. Empty: all GPUs, or `cpu_replicas` logical CPU devices if there is
    no GPU."""
    cpu_replicas: int = number(2, at_least=1, at_most=64, unit="logical CPU devices, if there is no GPU")


@option("strategy", "mirrored")
@dataclass(kw_only=True)
class MirroredSettings(DevicesSettings):
    """One replica per device, with mirrored variables. Gradients are summed over the replicas."""

    reduction: str = choice("auto", "auto", "one_device")
    """Method that sums the gradients. `auto`: by NCCL between GPUs, else on one device. `one_device`: on one device."""


@option("strategy", "central_storage")
@dataclass(kw_only=True)
class CentralStorageSettings(DevicesSettings):
    """One replica per device, with all variables on one device or on the CPU."""

    parameter_device: str = device("/cpu:0")
    """Device that holds the variables."""


@option("strategy", "model_parallel")
@dataclass(kw_only=True)
class ModelParallelSettings(DevicesSettings):
    """One replica whose layers are placed on several devices."""

    layers: dict[str, str] = field(default_factory=dict)
    """A mapping from patterns of layer names (`conv2d*`) to devices. The other layers are distributed over the devices
    in order, by the size of their weights in bytes."""


@option("strategy", "multi_worker")
@dataclass(kw_only=True)
class MultiWorkerSettings(StrategySettings):
    """One replica per worker process (per GPU, if it has GPUs), with mirrored variables. Collectives sum the
    gradients."""

    workers: int = number(2, at_least=1, at_most=64, unit="worker processes that cluster=local starts")
    communication: str = choice("auto", "auto", "ring")
    """Method by which workers communicate. `auto`: by NCCL for GPUs, else by gRPC in a ring. `ring`: by gRPC in a
    ring."""

    def members(self) -> dict[str, int]:
        return {"worker": self.workers}


@option("strategy", "parameter_server")
@dataclass(kw_only=True)
class ParameterServerSettings(StrategySettings):
    """Workers compute gradients asynchronously, and apply them to variables on parameter servers."""

    workers: int = number(2, at_least=1, at_most=64, unit="worker processes that cluster=local starts")
    servers: int = number(2, at_least=1, at_most=64, unit="parameter servers that cluster=local starts")

    def members(self) -> dict[str, int]:
        return {"chief": 1, "ps": self.servers, "worker": self.workers}


@option("strategy", "tpu")
@dataclass(kw_only=True)
class TpuSettings(StrategySettings):
    """One replica per core of a TPU."""

    name: str | None = None
    """Name or address of the TPU (grpc://host:port), or `local`. null: the environment variable TPU_NAME."""
