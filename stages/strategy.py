"""The `strategy` stage: devices and replicas, before TensorFlow starts them."""

from dataclasses import replace

import tensorflow as tf

from stages.distribution import devices
from stages.distribution.cluster_strategies import multi_worker, parameter_server, tpu
from stages.errors import UserError
from stages.results import Strategy
from stages.settings import strategy as known
from stages.settings.strategy import StrategySettings


def strategy(settings: StrategySettings) -> Strategy:
    """Returns the strategy that `settings` describe.

    Raises:
        UserError: where a device does not exist, or TensorFlow has started with fewer logical devices.
    """
    if settings.deterministic:
        tf.config.experimental.enable_op_determinism()
    match settings:
        case known.DefaultSettings():
            found = devices.find(devices.all_gpus_or(["/cpu:0"])[:1])
            made = Strategy(tf.distribute.get_strategy(), found)
        case known.OneDeviceSettings():
            chosen = [settings.device] if settings.device else devices.all_gpus_or(["/cpu:0"])[:1]
            found = devices.find(chosen)
            made = Strategy(tf.distribute.OneDeviceStrategy(found[0]), found)
        case known.MirroredSettings():
            found = devices.find(_names(settings))
            reduction = _reduction(settings.reduction, found)
            made = Strategy(tf.distribute.MirroredStrategy(list(found), cross_device_ops=reduction), found)
        case known.CentralStorageSettings():
            *found_devices, parameters = devices.find([*_names(settings), settings.parameter_device])
            found = tuple(found_devices)
            central = tf.distribute.experimental.CentralStorageStrategy(list(found), parameters)
            made = Strategy(central, found)
        case known.ModelParallelSettings():
            names = _names(settings)
            places = devices.find([*names, *settings.layers.values()])  # all at once: the CPU is split only once
            found, layers = places[: len(names)], dict(zip(settings.layers, places[len(names) :], strict=True))
            made = Strategy(tf.distribute.get_strategy(), found, layers=layers)
        case known.MultiWorkerSettings():
            made = multi_worker(settings)
        case known.ParameterServerSettings():
            made = parameter_server(settings)
        case known.TpuSettings():
            made = tpu(settings)
        case _:
            raise TypeError(f"no strategy for {type(settings).__name__}")
    params = {"replicas": made.replicas, "devices": ",".join(made.devices)}
    return replace(made, record=replace(made.record, params=params))


def _names(settings: known.DevicesSettings) -> list[str]:
    cpus = [f"/cpu:{index}" for index in range(settings.cpu_replicas)]
    return list(settings.devices) or devices.all_gpus_or(cpus)


def _reduction(name: str, found: tuple[str, ...]) -> tf.distribute.CrossDeviceOps | None:
    """Returns how gradients meet.

    Hierarchical copies add up two halves of the devices; of an odd number, TensorFlow 2.21 leaves one out in silence.

    Collectives between CPU devices give the same sums at the same speed, but abort where one process makes a second
    strategy with another number of replicas ("joining a group with size4"), so CPUs use one device unless told.
    """
    if name == "hierarchical_copy" and len(found) % 2:
        raise UserError(
            f"strategy.reduction=hierarchical_copy adds up halves, and loses a replica of {len(found)}",
            "an even number of replicas, or auto, nccl, one_device",
            "strategy.reduction=auto",
        )
    if name == "auto":
        name = "nccl" if all("GPU" in device for device in found) else "one_device"
    return {
        "nccl": tf.distribute.NcclAllReduce,
        "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
        "one_device": tf.distribute.ReductionToOneDevice,
    }[name]()
