"""Strategies whose devices are in other processes or on a TPU."""

import json
import os
import socket
import threading
import time
from dataclasses import replace
from functools import partial

import tensorflow as tf

from stages.distribution.collectives import mean_over_workers
from stages.errors import UserError
from stages.results import Record, Strategy
from stages.settings.strategy import MultiWorkerSettings, TpuSettings

PACK_BYTES = 4 * 2**20
"""At least so many bytes of gradients are summed at once. The last layers' are there first: their sum overlaps the
backward pass of the others.
"""

LOOK_SECONDS = 2.0
LOST = 3
"""Failed connections in a row after which a chief that has answered before counts as lost."""

NEVER_CAME = 150
"""The same for a chief that has never answered: five minutes."""


def multi_worker(settings: MultiWorkerSettings) -> Strategy:
    """Returns a MultiWorkerMirroredStrategy; this process is the worker that `TF_CONFIG` names."""
    gpus = len(tf.config.list_physical_devices("GPU"))
    communication = {"auto": "NCCL" if gpus else "RING", "ring": "RING", "nccl": "NCCL"}[settings.communication]
    implementation = tf.distribute.experimental.CommunicationImplementation[communication]
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=PACK_BYTES, implementation=implementation)
    distribution = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    replicas_per_worker = distribution.num_replicas_in_sync // _tasks("chief", "worker")
    kind = "GPU" if gpus else "CPU"
    names = [
        f"/job:{job}/task:{task}/device:{kind}:{index}"
        for job in ("chief", "worker")
        for task in range(_tasks(job))
        for index in range(replicas_per_worker)
    ]
    strategy = Strategy(distribution, tuple(names))
    # The others would take a worker that ends early for dead: each waits for all.
    return replace(strategy, record=Record(on_exit=partial(mean_over_workers, strategy, 0.0)))


def parameter_server() -> Strategy:
    """Returns a ParameterServerStrategy with its coordinator; this process is the chief that `TF_CONFIG` names."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    distribution = tf.distribute.experimental.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(distribution)
    names = tuple(f"/job:worker/task:{task}" for task in range(_tasks("worker")))
    return Strategy(distribution, names, coordinator=coordinator)


class Serving:
    """A worker or a parameter server of `TF_CONFIG`: serves the chief, in threads of TensorFlow's own.

    It is over when the chief is lost: when nothing answers at its address any more.

    Args:
        chief: its address.
    """

    def __init__(self, chief: str) -> None:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        self._server = tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
        )
        self._over = threading.Event()
        threading.Thread(target=self._watch, args=(chief,), daemon=True).start()

    def is_over(self) -> bool:
        return self._over.is_set()

    def wait(self, seconds: float) -> None:
        """Waits for the chief's end, `seconds` at most."""
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


def tpu(settings: TpuSettings) -> Strategy:
    """Returns a TPUStrategy over all cores of the TPU `settings.name`.

    Raises:
        UserError: where there is no such TPU.
    """
    name = settings.name or os.environ.get("TPU_NAME") or "local"
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        if name != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        distribution = tf.distribute.TPUStrategy(resolver)
    except (ValueError, IndexError, tf.errors.OpError) as error:
        raise UserError(
            f"strategy=tpu finds no TPU {name} ({str(error).strip().splitlines()[0]})",
            "the name or address of a TPU that this machine can reach",
            "strategy=mirrored, or strategy.name=grpc://<host>:8470",
        ) from error
    names = tuple(device.name for device in tf.config.list_logical_devices("TPU"))
    return Strategy(distribution, names, fixed_shapes=True)


def _tasks(*jobs: str) -> int:
    cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
    return sum(len(cluster.get(job, [])) for job in jobs)
