"""Settings of the `strategy` stage."""

from dataclasses import dataclass, field

from omegaconf import II

from stages.errors import UserError
from stages.settings.ranges import number


@dataclass(kw_only=True)
class StrategySettings:
    """What every strategy shares."""

    _target_: str = "stages.strategy.strategy"
    deterministic: bool = II("deterministic")


@dataclass(kw_only=True)
class OneDeviceSettings(StrategySettings):
    """One replica on one device."""

    device: str | None = None
    """A TensorFlow device such as `/cpu:0`; null: the first GPU, else the CPU."""


@dataclass(kw_only=True)
class MirroredSettings(StrategySettings):
    """One replica on each device of this machine, variables mirrored, gradients summed."""

    devices: list[str] = field(default_factory=list)
    """TensorFlow devices such as `[/gpu:0,/gpu:1]`; empty: all GPUs, else `cpu_replicas` logical CPU devices."""
    cpu_replicas: int = number(2, at_least=1, at_most=64, unit="logical CPU devices, where there is no GPU")

    def check(self, path: str) -> None:
        plain = {device.lower().replace("device:", "").strip("/") for device in self.devices}
        if len(plain) != len(self.devices):
            raise UserError(
                f"{path}.devices={','.join(self.devices)} names a device twice",
                "each device once",
                f"'{path}.devices=[{','.join(f'/{device}' for device in sorted(plain))}]'",
            )
