"""Strategies whose devices are in other processes or on a TPU."""

import json
import os
import signal
import socket
import threading
import time

import tensorflow as tf

from stages.errors import UserError
from stages.results import Strategy
from stages.settings.strategy import MultiWorkerSettings, ParameterServerSettings, TpuSettings


def multi_worker(settings: MultiWorkerSettings) -> Strategy:
    """Returns a MultiWorkerMirroredStrategy; this process is the worker that `TF_CONFIG` says."""
    gpus = len(tf.config.list_physical_devices("GPU"))
    named = {"auto": "NCCL" if gpus else "RING", "ring": "RING", "nccl": "NCCL"}[settings.communication]
    implementation = tf.distribute.experimental.CommunicationImplementation[named]
    options = tf.distribute.experimental.CommunicationOptions(implementation=implementation)
    distribution = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    here = distribution.num_replicas_in_sync // _tasks("chief", "worker")
    kind = "GPU" if gpus else "CPU"
    found = [
        f"/job:{job}/task:{task}/device:{kind}:{index}"
        for job in ("chief", "worker")
        for task in range(_tasks(job))
        for index in range(here)
    ]
    return Strategy(distribution, tuple(found))


def parameter_server(settings: ParameterServerSettings) -> Strategy:
    """Returns a ParameterServerStrategy with its coordinator; this process is the chief that `TF_CONFIG` says."""
    partitioner = None
    if settings.shard_kib:
        partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
            min_shard_bytes=settings.shard_kib * 1024, max_shards=_tasks("ps")
        )
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    distribution = tf.distribute.experimental.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(distribution)
    found = tuple(f"/job:worker/task:{task}" for task in range(_tasks("worker")))
    return Strategy(distribution, found, coordinator=coordinator)


def serve(chief: str) -> None:
    """Is a worker or a parameter server of `TF_CONFIG`: does what the chief sends until the process is ended.

    Args:
        chief: its address; a server that has known it, and finds it gone, ends itself.
    """
    threading.Thread(target=_end_with_chief, args=(chief,), daemon=True).start()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python would not hear it while the server waits
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    server.join()


def _end_with_chief(address: str) -> None:
    host, _, port = address.rpartition(":")
    known, missed = False, 0
    while missed < 3:
        time.sleep(2)
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
            known, missed = True, 0
        except OSError:
            missed += known
    os._exit(0)


def tpu(settings: TpuSettings) -> Strategy:
    """Returns a TPUStrategy over all cores of the TPU that is named.

    Raises:
        UserError: where there is none.
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
    found = tuple(device.name for device in tf.config.list_logical_devices("TPU"))
    return Strategy(distribution, found, fixed_shapes=True)


def _tasks(*jobs: str) -> int:
    cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
    return sum(len(cluster.get(job, [])) for job in jobs)
