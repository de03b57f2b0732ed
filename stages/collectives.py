"""Sums over replicas, and collectives between the workers of a cluster outside a training step.

With a single process the collectives are no-ops. All workers must call them in the same order. If a worker does not
call one, the others wait for it.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from stages.errors import UserError
from stages.results import Strategy

CHUNK = 2**22
"""Number of values of 8 bytes in one message."""

ABORTED = "Collective ops is aborted by:"
"""Beginning of TensorFlow's error if a collective ends without its result. The error codes differ: a worker that
receives nothing reports a missed deadline, and the others report that it is not available.
"""


def has_workers(strategy: Strategy) -> bool:
    """Return whether several processes train together, each with its own copy of the variables."""
    return isinstance(strategy.distribution, tf.distribute.MultiWorkerMirroredStrategy)


def is_chief(strategy: Strategy) -> bool:
    """Return whether this process is the one that writes."""
    return not has_workers(strategy) or bool(strategy.distribution.extended.should_checkpoint)


def replicas_here(distribution: tf.distribute.Strategy) -> tuple[range, int]:
    """Return the replicas of this process, and the number of all replicas."""
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
    """Turn TensorFlow's error for a lost worker, raised inside the block, into one line.

    Args:
        when: When the worker was lost, such as "at step 5"; empty if only the stage is known.

    Raises:
        UserError: If another worker is lost.
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
            "all workers to run until the end",
            "the same command again; the log of that worker may show the cause",
        ) from error


def sum_over_workers(strategy: Strategy, values: np.ndarray) -> np.ndarray:
    """Return the sum of the workers' arrays, which have the same shape and a dtype that collectives support."""
    if not has_workers(strategy) or not values.size:
        return values
    reduce = _reduction(strategy.distribution)
    flat = values.ravel()
    sums = []
    with others_needed("while this one waited for it"):
        for start in range(0, len(flat), CHUNK):
            sums.append(reduce(tf.constant(flat[start : start + CHUNK])).numpy())
    return np.concatenate(sums).reshape(values.shape)


def mean_over_workers(strategy: Strategy, value: float) -> float:
    """Return the mean of the workers' values. It is also a barrier."""
    total, count = sum_over_workers(strategy, np.array([value, 1.0], np.float32))
    return float(total / count)


def any_worker(strategy: Strategy, flags: Sequence[bool]) -> list[bool]:
    """Return for each flag whether any worker has set it."""
    return [bool(total > 0) for total in sum_over_workers(strategy, np.array(flags, np.float32))]


def from_chief(strategy: Strategy, content: bytes) -> bytes:
    """Return the chief's `content`. The content of other workers is ignored."""
    if not has_workers(strategy):
        return content
    content = content if is_chief(strategy) else b""
    length = int(sum_over_workers(strategy, np.array([len(content)]))[0])
    padded = content + bytes(-(-length // 8) * 8 - len(content))
    return sum_over_workers(strategy, np.frombuffer(padded, np.int64)).tobytes()[:length]


@functools.cache
def _reduction(distribution: tf.distribute.Strategy) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return a function, traced once, that sums a vector over the workers, each of which counts once."""

    @tf.function(reduce_retracing=True, autograph=False)
    def reduced(numbers: tf.Tensor) -> tf.Tensor:
        def reduce() -> tf.Tensor:
            replica = tf.distribute.get_replica_context()
            local = tf.identity(numbers)  # on the replica's device, which the reduction goes by
            counts = replica.replica_id_in_sync_group % len(distribution.extended.worker_devices) == 0
            return replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.where(counts, local, tf.zeros_like(local)))

        return distribution.experimental_local_results(distribution.run(reduce))[0]

    return reduced


class Totals:
    """Named float64 sums: each replica adds to its own, and reading returns the sum of all.

    Keras' metrics read, add and write back, which loses counts if replicas share a variable. Create this in the
    strategy's scope, call `add` in a replica, and `read` and `reset` outside.
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
