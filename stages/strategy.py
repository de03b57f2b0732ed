"""The `strategy` stage: devices, found by name or made of the CPU, and replicas, before TensorFlow initializes them."""

import re
from collections.abc import Sequence
from dataclasses import replace

import tensorflow as tf

from stages.distribution.cluster_strategies import multi_worker, parameter_server, tpu
from stages.errors import UserError
from stages.results import Strategy
from stages.settings import strategy as kinds
from stages.settings.strategy import StrategySettings


def strategy(settings: StrategySettings) -> Strategy:
    """Returns the strategy that `settings` describe.

    Raises:
        UserError: where a device does not exist, or TensorFlow has started with fewer logical devices.
    """
    if settings.deterministic:
        tf.config.experimental.enable_op_determinism()
    places = find(_names(settings))  # all at once: the CPU is split only once
    match settings:
        case kinds.DefaultSettings():
            result = Strategy(tf.distribute.get_strategy(), places)
        case kinds.OneDeviceSettings():
            result = Strategy(tf.distribute.OneDeviceStrategy(places[0]), places)
        case kinds.MirroredSettings():
            reduction = _reduction(settings.reduction, places)
            result = Strategy(tf.distribute.MirroredStrategy(list(places), cross_device_ops=reduction), places)
        case kinds.CentralStorageSettings():
            *computing, parameters = places
            central = tf.distribute.experimental.CentralStorageStrategy(computing, parameters)
            result = Strategy(central, tuple(computing))
        case kinds.ModelParallelSettings():
            count = len(places) - len(settings.layers)
            layers = dict(zip(settings.layers, places[count:], strict=True))
            result = Strategy(tf.distribute.get_strategy(), places[:count], layers=layers)
        case kinds.MultiWorkerSettings():
            result = multi_worker(settings)
        case kinds.ParameterServerSettings():
            result = parameter_server()
        case kinds.TpuSettings():
            result = tpu(settings)
        case _:
            raise TypeError(f"no strategy for {type(settings).__name__}")
    params = {"replicas": result.replicas, "devices": ",".join(result.devices)}
    return replace(result, record=replace(result.record, params=params))


def refuse_more_devices(settings: StrategySettings) -> None:
    """Raises UserError where TensorFlow has started with fewer logical devices than `settings` need."""
    make_logical_cpus(_names(settings))


def _names(settings: StrategySettings) -> list[str]:
    """Returns the devices of this machine that `settings` need, those that compute first; none for a cluster."""
    if isinstance(settings, kinds.DevicesSettings):
        cpus = [f"/cpu:{index}" for index in range(settings.cpu_replicas)]
        computing = list(settings.devices) or all_gpus_or(cpus)
        parameters = [settings.parameter_device] if isinstance(settings, kinds.CentralStorageSettings) else []
        layers = settings.layers.values() if isinstance(settings, kinds.ModelParallelSettings) else ()
        return [*computing, *parameters, *layers]
    if isinstance(settings, kinds.OneDeviceSettings) and settings.device:
        return [settings.device]
    is_alone = isinstance(settings, (kinds.DefaultSettings, kinds.OneDeviceSettings))
    return all_gpus_or(["/cpu:0"])[:1] if is_alone else []


def _reduction(name: str, names: tuple[str, ...]) -> tf.distribute.CrossDeviceOps | None:
    """Returns the reduction of gradients.

    Collectives between CPU devices give the same sums at the same speed, but abort where one process makes a second
    strategy with another number of replicas ("joining a group with size4"), so CPUs use one device by default.
    """
    if name == "auto":
        name = "nccl" if all("GPU" in device for device in names) else "one_device"
    return {
        "nccl": tf.distribute.NcclAllReduce,
        "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
        "one_device": tf.distribute.ReductionToOneDevice,
    }[name]()


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
