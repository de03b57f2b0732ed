"""Collectives between the workers of a cluster outside a training step; no-ops with a single process.

All workers must call these functions, in the same order: one that is waited for and does not come stops all.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from stages.errors import UserError
from stages.results import Strategy

CHUNK = 2**22
"""Numbers of 8 bytes that are sent at a time."""


def has_workers(strategy: Strategy) -> bool:
    """Returns whether several processes train together, each with variables of its own."""
    return isinstance(strategy.distribution, tf.distribute.MultiWorkerMirroredStrategy)


def is_chief(strategy: Strategy) -> bool:
    """Returns whether this process is the one that writes."""
    if not has_workers(strategy):
        return True
    resolver = strategy.distribution.cluster_resolver
    return resolver.task_type == "chief" or (
        resolver.task_type == "worker" and not resolver.task_id and "chief" not in resolver.cluster_spec().jobs
    )


@contextmanager
def others_needed(where: str) -> Iterator[None]:
    """Turns TensorFlow's error inside the block, that another worker is lost, into one line.

    Raises:
        UserError: then.
    """
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
        reason = str(error).partition("aborted by:")[2].strip() or str(error)
        raise UserError(
            f"another worker of the cluster was lost {where} ({reason.splitlines()[0]})",
            "all workers until the end",
            "the same command again, or a look at that worker's log",
        ) from error


def mean_over_workers(strategy: Strategy, value: float) -> float:
    """Returns the mean of what each worker gives. Also a barrier."""
    if not has_workers(strategy):
        return value
    meet = _reduction(strategy.distribution, tf.distribute.ReduceOp.MEAN)
    return float(meet(tf.constant([value], tf.float32))[0])


def any_worker(strategy: Strategy, flags: Sequence[bool]) -> list[bool]:
    """Returns for each flag whether some worker has raised it."""
    if not has_workers(strategy):
        return list(flags)
    meet = _reduction(strategy.distribution, tf.distribute.ReduceOp.MEAN)
    return [bool(mean > 0) for mean in meet(tf.constant(flags, tf.float32)).numpy()]


def sum_over_workers(strategy: Strategy, values: np.ndarray) -> np.ndarray:
    """Returns the sum of what the workers give, arrays of one shape and of a dtype that collectives send."""
    if not has_workers(strategy):
        return values
    meet = _reduction(strategy.distribution, tf.distribute.ReduceOp.SUM)
    flat = values.ravel()
    sums = [meet(tf.constant(flat[start : start + CHUNK])).numpy() for start in range(0, len(flat), CHUNK)]
    return np.concatenate(sums).reshape(values.shape)


def from_chief(strategy: Strategy, content: bytes) -> bytes:
    """Returns what the chief gives; what others give is not looked at."""
    if not has_workers(strategy):
        return content
    chief = is_chief(strategy)
    meet = _reduction(strategy.distribution, tf.distribute.ReduceOp.SUM)
    length = int(meet(tf.constant([len(content) if chief else 0], tf.int64))[0])
    numbers = np.zeros(-(-length // 8), np.int64)
    if chief:
        numbers = np.frombuffer(content + bytes(-len(content) % 8), np.int64)
    sums = [meet(tf.constant(numbers[start : start + CHUNK])).numpy() for start in range(0, len(numbers), CHUNK)]
    return b"".join(part.tobytes() for part in sums)[:length]


@functools.cache
def _reduction(distribution: tf.distribute.Strategy, how: tf.distribute.ReduceOp) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function of a vector that each worker has, traced once; in a sum each counts once."""

    @tf.function(reduce_retracing=True)
    def meet(numbers: tf.Tensor) -> tf.Tensor:
        def reduce() -> tf.Tensor:
            replica = tf.distribute.get_replica_context()
            here = tf.identity(numbers)  # on the replica's device: the reduction goes by that
            if how == tf.distribute.ReduceOp.SUM:
                own = replica.replica_id_in_sync_group % len(distribution.extended.worker_devices) == 0
                here = tf.where(own, here, tf.zeros_like(here))
            return replica.all_reduce(how, here)

        return distribution.experimental_local_results(distribution.run(reduce))[0]

    def meet_or_say(numbers: tf.Tensor) -> tf.Tensor:
        with others_needed("while it was waited for"):
            return meet(numbers)

    return meet_or_say
