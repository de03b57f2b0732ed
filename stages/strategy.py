"""The `strategy` stage: devices and replicas, before TensorFlow starts them."""

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
        devices = [settings.device or _all_gpus_or(["/cpu:0"])[0]]
    elif isinstance(settings, MirroredSettings):
        devices = list(settings.devices) or _all_gpus_or(_logical_cpus(settings.cpu_replicas))
    else:
        raise TypeError(f"no strategy for {type(settings).__name__}")
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
    gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
    return gpus or cpus


def _logical_cpus(count: int) -> list[str]:
    """Splits the CPU into `count` logical devices; more, made earlier in this process, will do as well."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    if not tf.config.list_physical_devices("GPU"):
        made = tf.config.get_logical_device_configuration(cpu) or []
        if len(made) < count:
            try:
                one = tf.config.LogicalDeviceConfiguration()
                tf.config.set_logical_device_configuration(cpu, [one] * count)
            except RuntimeError as error:
                raise UserError(
                    f"strategy.cpu_replicas={count}, but TensorFlow has started with {max(len(made), 1)} CPU devices",
                    "one number of logical devices in a process",
                    "the command again in a new process",
                ) from error
    return [f"/cpu:{index}" for index in range(count)]


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
        "strategy.device=/cpu:0",
    )
