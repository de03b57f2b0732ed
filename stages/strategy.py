"""The `strategy` stage: replicas on devices, found by name or made of the CPU, in this process or a cluster's."""

import os
import re
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import tensorflow as tf

from stages.collectives import mean_over_workers
from stages.errors import UserError
from stages.results import Record, Strategy
from stages.settings import strategy as kinds
from stages.settings.strategy import StrategySettings

PACK_BYTES = 4 * 2**20
"""At least so many bytes of gradients are summed at once. The last layers' are there first: their sum overlaps the
backward pass of the others.
"""

LOOK_SECONDS = 2.0
LOST = 3
"""Failed connections in a row after which a chief that has answered before counts as lost."""

NEVER_CAME = 150
"""The same for a chief that has never answered: five minutes."""


def strategy(settings: StrategySettings) -> Strategy:
    """Return the strategy that `settings` describe.

    Raises:
        UserError: where a device does not exist, or TensorFlow has started with fewer logical devices.
    """
    if settings.deterministic:
        tf.config.experimental.enable_op_determinism()
    share_gpu_memory()
    names = _names(settings)
    make_logical_cpus(names)
    places = tuple(_find(device) for device in names)
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
            result = _multi_worker(settings)
        case kinds.ParameterServerSettings():
            result = _parameter_server()
        case kinds.TpuSettings():
            result = _tpu(settings)
        case _:
            raise TypeError(f"no strategy for {type(settings).__name__}")
    params = {"replicas": result.replicas, "devices": ",".join(result.devices)}
    return replace(result, record=replace(result.record, params=params))


def refuse_more_devices(settings: StrategySettings) -> None:
    """Raise UserError where TensorFlow has started with fewer logical devices than `settings` need."""
    make_logical_cpus(_names(settings))


def _names(settings: StrategySettings) -> list[str]:
    """Return the devices of this machine that `settings` need, those that compute first; none for a cluster."""
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


def _reduction(name: str, devices: Sequence[str]) -> tf.distribute.CrossDeviceOps:
    """Return the reduction of gradients: between GPUs NCCL, unless one device is asked for.

    Collectives between CPU devices give the same sums at the same speed, but abort where one process makes a second
    strategy with another number of replicas ("joining a group with size4"), so CPUs use one device.
    """
    by_nccl = name == "auto" and all("GPU" in device for device in devices)
    return tf.distribute.NcclAllReduce() if by_nccl else tf.distribute.ReductionToOneDevice()


def all_gpus_or(cpus: Sequence[str]) -> list[str]:
    """Return the names of all GPUs; where there is none, `cpus`."""
    gpus = tf.config.list_physical_devices("GPU")  # to list logical ones starts TensorFlow: no CPU is split after that
    return [f"/gpu:{index}" for index in range(len(gpus))] or list(cpus)


def share_gpu_memory() -> None:
    """Have this process take memory of GPUs as it needs it, not all at once, so that other processes can use the rest.

    A process that has started TensorFlow, or has split its GPUs, keeps what it chose. TF_FORCE_GPU_ALLOW_GROWTH takes
    precedence, in TensorFlow itself.
    """
    with suppress(RuntimeError, ValueError):
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)


def make_logical_cpus(devices: Sequence[str]) -> None:
    """Split the CPU so that all of `devices` exist; keep logical devices made earlier where they suffice.

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
            f"the strategy needs {count} logical CPU devices, but TensorFlow has already started with {existing}",
            "the same number of logical devices throughout a process",
            "the command again in a new process",
        ) from error


def _find(device: str) -> str:
    listed = [one for one in tf.config.list_logical_devices() if one.device_type in ("CPU", "GPU", "TPU")]
    names = {one.name.lower().replace("device:", "").strip("/"): one.name for one in listed}
    short = device.lower().replace("device:", "").strip("/")
    if short not in names:
        fix = "strategy=one_device strategy.device=/cpu:0"
        raise UserError(f"device {device} does not exist", [f"/{name}" for name in names], fix)
    return str(names[short])


def _multi_worker(settings: kinds.MultiWorkerSettings) -> Strategy:
    """Return a MultiWorkerMirroredStrategy; this process is the worker that `TF_CONFIG` names."""
    gpus = len(tf.config.list_physical_devices("GPU"))
    communication = "NCCL" if gpus and settings.communication == "auto" else "RING"
    implementation = tf.distribute.experimental.CommunicationImplementation[communication]
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=PACK_BYTES, implementation=implementation)
    distribution = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    cluster = distribution.cluster_resolver.cluster_spec()
    names = [
        f"/job:{job}/task:{task}/device:{'GPU' if gpus else 'CPU'}:{index}"
        for job in sorted(cluster.jobs)
        for task in range(cluster.num_tasks(job))
        for index in range(len(distribution.extended.worker_devices))
    ]
    strategy = Strategy(distribution, tuple(names))
    # The others would take a worker that ends early for dead: each waits for all.
    return replace(strategy, record=Record(on_exit=partial(mean_over_workers, strategy, 0.0)))


def _parameter_server() -> Strategy:
    """Return a ParameterServerStrategy with its coordinator; this process is the chief that `TF_CONFIG` names."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    distribution = tf.distribute.experimental.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(distribution)
    names = tuple(f"/job:worker/task:{task}" for task in range(resolver.cluster_spec().num_tasks("worker")))
    return Strategy(distribution, names, coordinator=coordinator)


class Serving:
    """A worker or a parameter server of `TF_CONFIG`: serves the chief, in threads of TensorFlow's own.

    It is over when the chief is lost: when nothing answers at its address any more.

    Args:
        chief: its address.
        tf32: whether this process may compute float32 in TF32.
    """

    def __init__(self, chief: str, tf32: bool = False) -> None:
        # The stages `model` and `strategy` only run in the chief.
        tf.config.experimental.enable_tensor_float_32_execution(tf32)
        share_gpu_memory()
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        self._server = tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
        )
        self._over = threading.Event()
        threading.Thread(target=self._watch, args=(chief,), daemon=True).start()

    def is_over(self) -> bool:
        return self._over.is_set()

    def wait(self, seconds: float) -> None:
        """Wait for the chief's end, `seconds` at most."""
        self._over.wait(seconds)

    def _watch(self, chief: str) -> None:
        host, _, port = chief.rpartition(":")
        is_known, missed = False, 0
        while missed < (LOST if is_known else NEVER_CAME):
            time.sleep(LOOK_SECONDS)
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
                is_known, missed = True, 0
            except OSError:
                missed += 1
        self._over.set()


def _tpu(settings: kinds.TpuSettings) -> Strategy:
    """Return a TPUStrategy over all cores of the TPU `settings.name`."""
    name = settings.name or os.environ.get("TPU_NAME") or "local"
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
    if name != "local":
        tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    distribution = tf.distribute.TPUStrategy(resolver)
    names = tuple(device.name for device in tf.config.list_logical_devices("TPU"))
    return Strategy(distribution, names, fixed_shapes=True)
