"""TensorFlow's devices: found by name, and logical CPU devices made where they are needed."""

import re
from collections.abc import Sequence

import tensorflow as tf

from stages.errors import UserError


def all_gpus_or(cpus: Sequence[str]) -> list[str]:
    """Returns the names of all GPUs; where there is none, `cpus`."""
    gpus = tf.config.list_physical_devices(
        "GPU"
    )  # listing logical ones would start TensorFlow, after which the CPU cannot be split
    return [f"/gpu:{index}" for index in range(len(gpus))] or list(cpus)


def find(devices: Sequence[str]) -> tuple[str, ...]:
    """Returns the full names of logical devices; CPU devices are made first, as many as the names ask for.

    Raises:
        UserError: where a device does not exist, or TensorFlow has started with fewer logical devices.
    """
    make_logical_cpus(devices)
    return tuple(_find(device) for device in devices)


def make_logical_cpus(devices: Sequence[str]) -> None:
    """Splits the CPU so that all of `devices` exist; keeps logical devices made earlier where they suffice.

    Raises:
        UserError: where TensorFlow has started with fewer.
    """
    numbers = [re.fullmatch(r"/?(?:device:)?cpu:(\d+)", device.lower()) for device in devices]
    count = max((int(number.group(1)) + 1 for number in numbers if number), default=1)
    cpu = tf.config.list_physical_devices("CPU")[0]
    existing = max(len(tf.config.get_logical_device_configuration(cpu) or []), 1)
    if existing >= count:
        return
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    except RuntimeError as error:
        raise UserError(
            f"{count} logical CPU devices are wanted, but TensorFlow has started with {existing}",
            "one number of logical devices in a process",
            "the command again in a new process",
        ) from error


def _find(device: str) -> str:
    names = [
        logical.name for logical in tf.config.list_logical_devices() if logical.device_type in ("CPU", "GPU", "TPU")
    ]
    short = device.lower().replace("device:", "").strip("/")
    for name in names:
        if name.lower().replace("device:", "").strip("/") == short:
            return name
    raise UserError(
        f"device {device} does not exist",
        [name.replace("device:", "").lower() for name in names],
        "strategy=one_device, or the names of devices that exist",
    )
