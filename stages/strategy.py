"""The `strategy` stage: devices and replicas, before TensorFlow starts them."""

import re

import tensorflow as tf

from stages.errors import UserError
from stages.results import Record, Strategy
from stages.settings.strategy import MirroredSettings, OneDeviceSettings, StrategySettings


def strategy(settings: StrategySettings) -> Strategy:
    """Returns the strategy that `settings` describe.

    Raises:
        UserError: where a device does not exist, or TensorFlow has started with fewer logical devices.
    """
    if settings.deterministic:
        tf.config.experimental.enable_op_determinism()
    if isinstance(settings, OneDeviceSettings):
        devices = [settings.device] if settings.device else _all_gpus_or(["/cpu:0"])[:1]
    elif isinstance(settings, MirroredSettings):
        cpus = [f"/cpu:{index}" for index in range(settings.cpu_replicas)]
        devices = list(settings.devices) or _all_gpus_or(cpus)
    else:
        raise TypeError(f"no strategy for {type(settings).__name__}")
    _make_logical_cpus(devices)
    found = tuple(_find(device) for device in devices)
    if isinstance(settings, OneDeviceSettings):
        distribution: tf.distribute.Strategy = tf.distribute.OneDeviceStrategy(found[0])
    else:
        distribution = _mirrored(found)
    return Strategy(distribution, found, Record(params={"replicas": len(found), "devices": ",".join(found)}))


def _mirrored(devices: tuple[str, ...]) -> tf.distribute.Strategy:
    on_gpus = all("GPU" in device for device in devices)
    # Collectives between CPU devices give the same sums at the same speed, but abort where one process
    # makes a second strategy with another number of replicas ("joining a group with size4").
    reduction = None if on_gpus else tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(list(devices), cross_device_ops=reduction)


def _all_gpus_or(cpus: list[str]) -> list[str]:
    gpus = tf.config.list_physical_devices("GPU")  # logical ones would start TensorFlow, and the CPU could not be split
    return [f"/gpu:{index}" for index in range(len(gpus))] or cpus


def _make_logical_cpus(devices: list[str]) -> None:
    """Splits the CPU so that all of `devices` exist; logical devices made earlier in this process will do as well."""
    numbers = [re.fullmatch(r"/?(?:device:)?cpu:(\d+)", device.lower()) for device in devices]
    count = max((int(number.group(1)) + 1 for number in numbers if number), default=1)
    cpu = tf.config.list_physical_devices("CPU")[0]
    made = max(len(tf.config.get_logical_device_configuration(cpu) or []), 1)
    if made >= count:
        return
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    except RuntimeError as error:
        raise UserError(
            f"{count} logical CPU devices are wanted, but TensorFlow has started with {made}",
            "one number of logical devices in a process",
            "the command again in a new process",
        ) from error


def _find(device: str) -> str:
    """Returns the full name of a logical device that the user or this module named shortly."""
    names = [found.name for found in tf.config.list_logical_devices() if found.device_type in ("CPU", "GPU", "TPU")]
    wanted = device.lower().replace("device:", "").strip("/")
    for name in names:
        if name.lower().replace("device:", "").strip("/") == wanted:
            return name
    raise UserError(
        f"device {device} does not exist",
        ", ".join(name.replace("device:", "").lower() for name in names),
        "strategy=one_device, or the names of devices that exist",
    )
