"""The `strategy` stage: devices and replicas, before TensorFlow initializes them."""

from dataclasses import replace

import tensorflow as tf

from stages.distribution import devices
from stages.distribution.cluster_strategies import multi_worker, parameter_server, tpu
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
    match settings:
        case kinds.DefaultSettings():
            names = devices.find(devices.all_gpus_or(["/cpu:0"])[:1])
            result = Strategy(tf.distribute.get_strategy(), names)
        case kinds.OneDeviceSettings():
            chosen = [settings.device] if settings.device else devices.all_gpus_or(["/cpu:0"])[:1]
            names = devices.find(chosen)
            result = Strategy(tf.distribute.OneDeviceStrategy(names[0]), names)
        case kinds.MirroredSettings():
            names = devices.find(_names(settings))
            reduction = _reduction(settings.reduction, names)
            result = Strategy(tf.distribute.MirroredStrategy(list(names), cross_device_ops=reduction), names)
        case kinds.CentralStorageSettings():
            *computing, parameters = devices.find([*_names(settings), settings.parameter_device])
            names = tuple(computing)
            central = tf.distribute.experimental.CentralStorageStrategy(list(names), parameters)
            result = Strategy(central, names)
        case kinds.ModelParallelSettings():
            computing = _names(settings)
            places = devices.find([*computing, *settings.layers.values()])  # all at once: the CPU is split only once
            names = places[: len(computing)]
            layers = dict(zip(settings.layers, places[len(computing) :], strict=True))
            result = Strategy(tf.distribute.get_strategy(), names, layers=layers)
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
    if isinstance(settings, kinds.OneDeviceSettings) and settings.device:
        devices.make_logical_cpus([settings.device])
    if isinstance(settings, kinds.CentralStorageSettings):
        devices.make_logical_cpus([settings.parameter_device])
    if isinstance(settings, kinds.ModelParallelSettings):
        devices.make_logical_cpus([*settings.layers.values()])
    if isinstance(settings, kinds.DevicesSettings):
        devices.make_logical_cpus(_names(settings))


def _names(settings: kinds.DevicesSettings) -> list[str]:
    cpus = [f"/cpu:{index}" for index in range(settings.cpu_replicas)]
    return list(settings.devices) or devices.all_gpus_or(cpus)


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
