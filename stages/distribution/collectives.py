"""Sums over replicas, and collectives between the workers of a cluster outside a training step.

With a single process the collectives are no-ops. All workers must call them, in the same order: a worker that does not
come stops the others.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from stages.errors import UserError
from stages.results import Strategy

CHUNK = 2**22
"""Numbers of 8 bytes in one message."""

ABORTED = "Collective ops is aborted by:"
"""Words of TensorFlow's error where a collective ends without its result. The code differs: a worker that hears from
nobody reports a missed deadline, the others that it is not available.
"""


def has_workers(strategy: Strategy) -> bool:
    """Returns whether several processes train together, each with its own copy of the variables."""
    return isinstance(strategy.distribution, tf.distribute.MultiWorkerMirroredStrategy)


def is_chief(strategy: Strategy) -> bool:
    """Returns whether this process is the one that writes."""
    if not has_workers(strategy):
        return True
    resolver = strategy.distribution.cluster_resolver
    return resolver.task_type == "chief" or (
        resolver.task_type == "worker" and not resolver.task_id and "chief" not in resolver.cluster_spec().jobs
    )


def replicas_here(distribution: tf.distribute.Strategy) -> tuple[range, int]:
    """Returns the replicas of this process, and how many there are."""
    contexts: list[tf.distribute.experimental.ValueContext] = []

    def note(context: tf.distribute.experimental.ValueContext) -> np.ndarray:
        contexts.append(context)
        return np.zeros(())

    with tf.init_scope():
        distribution.experimental_distribute_values_from_function(note)
    first = contexts[0].replica_id_in_sync_group
    return range(first, first + len(contexts)), contexts[0].num_replicas_in_sync


@contextmanager
def others_needed(when: str = "") -> Iterator[None]:
    """Turns TensorFlow's error for a lost worker, raised inside the block, into one line.

    when: it was lost, where that is known better than by the stage: "at step 5".

    Raises:
        UserError: where another worker is lost.
    """
    try:
        yield
    except tf.errors.OpError as error:
        _, aborted, reason = str(error).partition(ABORTED)
        if not aborted:
            raise
        first_line = reason.strip().partition("\n")[0]
        raise UserError(
            f"another worker of the cluster was lost{when and f' {when}'} ({first_line})",
            "all workers until the end",
            "the same command again, or a look at that worker's log",
        ) from error


def mean_over_workers(strategy: Strategy, value: float) -> float:
    """Returns the mean of the workers' values. Also a barrier."""
    if not has_workers(strategy):
        return value
    reduction = _reduction(strategy.distribution, tf.distribute.ReduceOp.MEAN)
    return float(reduction(tf.constant([value], tf.float32))[0])


def any_worker(strategy: Strategy, flags: Sequence[bool]) -> list[bool]:
    """Returns for each flag whether any worker has set it."""
    if not has_workers(strategy):
        return list(flags)
    reduction = _reduction(strategy.distribution, tf.distribute.ReduceOp.MEAN)
    return [bool(mean > 0) for mean in reduction(tf.constant(flags, tf.float32)).numpy()]


def sum_over_workers(strategy: Strategy, values: np.ndarray) -> np.ndarray:
    """Returns the sum of what the workers give, arrays of one shape and of a dtype that collectives send."""
    if not has_workers(strategy):
        return values
    meet = _reduction(strategy.distribution, tf.distribute.ReduceOp.SUM)
    flat = values.ravel()
    sums = [meet(tf.constant(flat[start : start + CHUNK])).numpy() for start in range(0, len(flat), CHUNK)]
    return np.concatenate(sums).reshape(values.shape)


def from_chief(strategy: Strategy, content: bytes) -> bytes:
    """Returns the chief's `content`; that of other workers is ignored."""
    if not has_workers(strategy):
        return content
    chief = is_chief(strategy)
    reduction = _reduction(strategy.distribution, tf.distribute.ReduceOp.SUM)
    length = int(reduction(tf.constant([len(content) if chief else 0], tf.int64))[0])
    numbers = np.zeros(-(-length // 8), np.int64)
    if chief:
        numbers = np.frombuffer(content + bytes(-len(content) % 8), np.int64)
    sums = [reduction(tf.constant(numbers[start : start + CHUNK])).numpy() for start in range(0, len(numbers), CHUNK)]
    return b"".join(part.tobytes() for part in sums)[:length]


@functools.cache
def _reduction(distribution: tf.distribute.Strategy, how: tf.distribute.ReduceOp) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the reduction of a vector over workers, traced once; in a sum each worker counts once."""

    @tf.function(reduce_retracing=True, autograph=False)
    def reduced(numbers: tf.Tensor) -> tf.Tensor:
        def reduce() -> tf.Tensor:
            replica = tf.distribute.get_replica_context()
            local = tf.identity(numbers)  # on the replica's device, which the reduction goes by
            if how == tf.distribute.ReduceOp.SUM:
                counts = replica.replica_id_in_sync_group % len(distribution.extended.worker_devices) == 0
                local = tf.where(counts, local, tf.zeros_like(local))
            return replica.all_reduce(how, local)

        return distribution.experimental_local_results(distribution.run(reduce))[0]

    def reduced_or_error(numbers: tf.Tensor) -> tf.Tensor:
        with others_needed("while it was waited for"):
            return reduced(numbers)

    return reduced_or_error


class Totals:
    """Named float64 sums: each replica adds to its own, and reading gives the sum of all.

    Keras' metrics read, add and write back, which loses counts where replicas share a variable.
    Make it in the strategy's scope; `add` in a replica, `read` and `reset` outside.
    """

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        self._variables = {
            name: tf.Variable(
                tf.zeros(shape, tf.float64),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
                name=f"total_{name}",
            )
            for name, shape in shapes.items()
        }

    @property
    def variables(self) -> list[tf.Variable]:
        return list(self._variables.values())

    def add(self, **values: tf.Tensor) -> None:
        for name, value in values.items():
            self._variables[name].assign_add(tf.cast(value, tf.float64))

    def read(self) -> dict[str, np.ndarray]:
        return {name: variable.read_value().numpy() for name, variable in self._variables.items()}

    def reset(self) -> None:
        for variable in self._variables.values():
            variable.assign(tf.zeros(variable.shape, tf.float64))
