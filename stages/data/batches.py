"""From a split to batches: the place of each example is a pure function of (seed, epoch, position).

An element of the input is the batch of one replica at one step, so TensorFlow never cuts up or shards a batch: each
replica computes its own rows. The same code serves one device, many devices and many workers. It can start at any step,
and gives every replica its part of a batch that cannot be divided evenly.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops

from stages.augmentations.transforms import Example, Transform
from stages.data.examples import SplitReader
from stages.data.split import Split
from stages.results import Dataset, Strategy
from stages.seeds import derive

InputFunction = Callable[[tf.distribute.InputContext], tf.data.Dataset]
"""An argument of `tf.distribute.Strategy.distribute_datasets_from_function`."""

WITHOUT_AUTOTUNER = tf.data.Options()
"""Options of every dataset that is iterated over. The destructor of an iterator waits for the thread of its autotuner,
which sleeps for up to 60 seconds at a time. Cancellation wakes that thread before `IsCancelled` becomes true, so on a
busy machine the thread may check too early and go back to sleep (tensorflow/core/framework: `OptimizeLoop` in model.cc,
`StartCancel` in cancellation.cc)."""
WITHOUT_AUTOTUNER.autotune.enabled = False

_ENDLESS = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
"""Declares a dataset endless. Otherwise `tf.distribute` asks all workers at every step, in a collective, whether one
has a batch left. No worker takes more steps than there are batches."""

_FOREVER = 2**31
"""Passes of an endless input."""

_as_written = tf.autograph.experimental.do_not_convert
"""A decorator for functions without a loop or a branch on tensors: AutoGraph would need most of a second for each."""


def steps_per_epoch(split: Split, batch_size: int) -> int:
    """Return the number of batches that contain every example once. The last one may be smaller."""
    return -(-len(split) // batch_size)


def training_input(
    dataset: Dataset, batch_size: int, seed: int, epochs: int, first_step: int = 0, fixed_shapes: bool = False
) -> InputFunction:
    """Return an input of `epochs` shuffled passes over the training split, from `first_step` on.

    If `Dataset.is_shuffled`, each epoch has a different order, a uniform permutation of the whole split. With
    `fixed_shapes`, every replica's part of every batch has the same number of rows; missing ones are filled up with
    rows of weight 0.
    """
    changes = RandomChanges(dataset, batch_size, seed)
    return _input(dataset.train, batch_size, epochs, first_step, changes, fixed_shapes)


def distributed(strategy: tf.distribute.Strategy, source: InputFunction) -> Iterable[Example]:
    """Return the batches of `source` for the replicas of `strategy`. No iterator over them has an autotuner."""
    _keep_autotuners_from_devices()  # also for one CPU, whose batches Keras' fit distributes again
    is_one = isinstance(strategy, tf.distribute.OneDeviceStrategy)
    if is_one and "CPU" in strategy.extended.worker_devices[0].upper():
        # Nothing has to be copied to it ahead, and TensorFlow traces 0.1 s to do so.
        return source(tf.distribute.InputContext())
    batches: Iterable[Example] = strategy.distribute_datasets_from_function(
        lambda context: source(context).apply(_ENDLESS)
    )
    return batches


@cache
def _keep_autotuners_from_devices() -> None:
    """Set `WITHOUT_AUTOTUNER` for the iterators that TensorFlow creates on each device.

    No public option reaches them in TensorFlow 2.21 (tensorflow/python/data/ops/multi_device_iterator_ops.py).
    """
    create = multi_device_iterator_ops._create_device_dataset

    def create_without_autotuner(*arguments: Any) -> tf.data.Dataset:
        return create(*arguments).with_options(WITHOUT_AUTOTUNER)

    multi_device_iterator_ops._create_device_dataset = create_without_autotuner


def evaluation_input(split: Split, batch_size: int, fixed_shapes: bool = False, passes: int = 1) -> InputFunction:
    """Return an input of `passes` over `split` in its own order, without transforms."""
    return _input(split, batch_size, passes, 0, None, fixed_shapes)


def first_batch(dataset: Dataset, batch_size: int, seed: int) -> Example:
    """Return the global batch of the first step of a training."""
    with tf.device("/cpu:0"):
        in_order = order(len(dataset.train), seed if dataset.is_shuffled else None, tf.constant(0, tf.int64))
        changes, first = RandomChanges(dataset, batch_size, seed), tf.constant(0, tf.int64)
        return replica_batch(SplitReader.of(dataset.train), in_order, first, (0, 1), batch_size, changes)


def passes(strategy: Strategy, split: Split, batch_size: int) -> tf.data.Iterator:
    """Return the batches of endless passes over `split` in its own order, without transforms."""
    source = evaluation_input(split, batch_size, strategy.fixed_shapes, passes=_FOREVER)
    return iter(distributed(strategy.distribution, source))


def _input(
    split: Split, batch_size: int, epochs: int, first_step: int, changes: "RandomChanges | None", fixed_shapes: bool
) -> InputFunction:
    per_epoch = steps_per_epoch(split, batch_size)
    seed = changes.seed if changes is not None and changes.dataset.is_shuffled else None

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        with tf.device("/cpu:0"):
            reader = SplitReader.of(split)
        replicas = context.num_replicas_in_sync
        local_replicas = replicas // context.num_input_pipelines
        first_replica = context.input_pipeline_id * local_replicas
        fixed_rows = fixed_rows_of(batch_size, replicas, fixed_shapes)

        @_as_written
        def positions(epoch: tf.Tensor) -> tf.data.Dataset:
            """Yield (order of the epoch, step of the run, replica) for each per-replica batch of this pipeline."""
            in_order = order(len(split), seed, epoch)
            start = tf.maximum(epoch * per_epoch, first_step)
            numbers = tf.data.Dataset.range(start * local_replicas, (epoch + 1) * per_epoch * local_replicas)
            return numbers.map(
                _as_written(lambda n: (in_order, n // local_replicas, first_replica + n % local_replicas))
            )

        @_as_written
        def batch(in_order: tf.Tensor, step: tf.Tensor, replica: tf.Tensor) -> Example:
            return replica_batch(reader, in_order, step, (replica, replicas), batch_size, changes, fixed_rows)

        options = tf.data.Options()
        options.deterministic = True
        # TensorFlow would copy images in memory into a graph to look for rewrites, of which it finds none here.
        options.experimental_optimization.apply_default_optimizations = False
        elements = tf.data.Dataset.range(first_step // per_epoch, epochs).flat_map(positions)
        prefetched = 2 * local_replicas + 2
        batches = elements.map(batch, num_parallel_calls=min(prefetched, os.cpu_count() or 1)).prefetch(prefetched)
        return batches.with_options(options).with_options(WITHOUT_AUTOTUNER)

    return make


def replica_batch(  # noqa: PLR0913  # each is another fact of one batch
    reader: SplitReader,
    in_order: tf.Tensor,
    step: tf.Tensor,
    place: tuple[tf.Tensor | int, int],
    batch_size: int | tf.Tensor,
    changes: "RandomChanges | None" = None,
    fixed_rows: int | None = None,
) -> Example:
    """Return a replica's part of the global batch of `step`.

    Args:
        reader: Reads the split.
        in_order: The numbers of the examples in the order of the epoch, int64 [N].
        step: The step of the run.
        place: The replica, and the number of replicas.
        batch_size: The global batch size.
        changes: The transforms of training examples, if any.
        fixed_rows: See `share_of_replica`.
    """
    replica, replicas = place
    start, count = _examples_of_step(step, tf.size(in_order, tf.int64), batch_size)
    first, end, weight = share_of_replica(count, replica, replicas, fixed_rows)
    rows, weights = tf.range(first, end), tf.fill([end - first], weight)
    if fixed_rows is not None:
        missing = tf.maximum(fixed_rows - tf.size(rows), 0)
        rows, weights = tf.pad(rows, [[0, missing]])[:fixed_rows], tf.pad(weights, [[0, missing]])[:fixed_rows]
    batch = batch_of_rows(reader, in_order[start : start + count], (rows, weights), step, changes)
    return tf.nest.map_structure(lambda part: tf.ensure_shape(part, [fixed_rows, *part.shape[1:]]), batch)


def batch_of_rows(
    reader: SplitReader,
    numbers: tf.Tensor,
    rows: tuple[tf.Tensor, tf.Tensor],
    step: tf.Tensor,
    changes: "RandomChanges | None",
) -> Example:
    """Return some rows of the global batch of `step`.

    Args:
        reader: Reads the split.
        numbers: The numbers of the examples of the whole global batch in the split, int64 [count].
        rows: The rows, int64 [b], and their weights, float64 [b].
        step: The step of the run.
        changes: The transforms of training examples, if any.
    """
    chosen, weights = rows
    example = reader.read(tf.gather(numbers, chosen)) if changes is None else changes(reader, numbers, chosen, step)
    return example._replace(weights=weights if reader.weights is None else weights * example.weights)


def augmented(example: Example, transforms: Sequence[Transform]) -> Example:
    """Return an example with the transforms that the training step applies."""
    for transform, numbers in zip(transforms, example.uniforms, strict=True):
        example = transform(example, numbers)
    return example._replace(uniforms=())


@dataclass(frozen=True)
class RandomChanges:
    """Random changes of training batches: the transforms of a data set, in order.

    Their random numbers are those of a step and of each example's row in its global batch, whoever computes it.
    """

    dataset: Dataset
    batch_size: int
    seed: int

    def __call__(self, reader: SplitReader, numbers: tf.Tensor, rows: tf.Tensor, step: tf.Tensor) -> Example:
        """Return some rows of the global batch of `step`, changed.

        Transforms that the training step applies are left to it, with their random numbers in `uniforms`.

        Args:
            reader: Reads the training split.
            numbers: The numbers of the examples of the whole global batch in the split, int64 [count].
            rows: int64 [b].
            step: The step of the run, int64 [].
        """

        def key(purpose: str) -> tf.Tensor:
            return tf.stack([derive(self.seed, purpose), tf.cast(step, tf.int32)])

        def changed(rows: tf.Tensor, transforms: Sequence[Transform]) -> Example:
            if not transforms:
                return reader.read(tf.gather(numbers, rows))
            *before, last = transforms
            if not last.combines:
                example = changed(rows, before)
                return last(example, tf.gather(last.draw(self.batch_size, key), rows))
            partners = last.partners(rows, tf.size(numbers, tf.int64), key)
            # A row that is also a partner, or a partner twice, is computed once.
            needed, places = tf.unique(tf.concat([rows, partners], axis=0))
            example = changed(needed, before)
            own, partner = (_rows_of(example, part) for part in tf.split(places, 2))
            return last.combine(own, partner, tf.gather(last.draw(self.batch_size, key), rows))

        transforms = self.dataset.transforms
        example = changed(rows, [one for one in transforms if not one.in_step])
        uniforms = [tf.gather(one.draw(self.batch_size, key), rows) for one in transforms if one.in_step]
        return example._replace(uniforms=tuple(uniforms))


def _rows_of(example: Example, rows: tf.Tensor) -> Example:
    picked: Example = tf.nest.map_structure(lambda values: tf.gather(values, rows), example)
    return picked


def order(examples: int, seed: int | None, epoch: tf.Tensor) -> tf.Tensor:
    """Return a permutation of the numbers of the examples, int64 [examples]; without a seed, the identity.

    It sorts random numbers, once per epoch. `tf.random.experimental.index_shuffle` would need no memory, but its
    permutations are far from uniform: in 20,000 permutations of 100 examples, mean positions are off by 26 standard
    errors.
    """
    if seed is None:
        return tf.range(examples, dtype=tf.int64)
    key = tf.stack([derive(seed, "shuffle"), tf.cast(epoch, tf.int32)])
    numbers = tf.random.stateless_uniform([examples], key, minval=None, maxval=None, dtype=tf.int64)
    return tf.cast(tf.argsort(numbers), tf.int64)


def share_of_replica(
    count: tf.Tensor, replica: tf.Tensor | int, replicas: int, fixed_rows: int | None = None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the first row of a replica in a batch of `count` examples, the row after its last one, and their weight.

    The numbers of rows of replicas differ by at most one. If there are fewer examples than replicas, each gets all of
    them with weight 1 / replicas. An empty batch would fail (convolutions of empty batches on CPUs) or change the
    weights of gradients. A batch filled up with rows of weight 0 would change the statistics of a synchronized
    BatchNorm.

    Args:
        count: The number of examples, int64 [].
        replica: The replica.
        replicas: The number of replicas.
        fixed_rows: The number of rows to which every per-replica batch is filled up, if shapes are fixed. Then a batch
            may be empty, unless all examples fit into one.
    """
    one = tf.constant(1.0, tf.float64)
    if replicas == 1:  # nothing to divide: a dozen operations less in the graph of every step
        return tf.zeros_like(count), count, one
    replica = tf.cast(replica, tf.int64)
    is_short = count < replicas if fixed_rows is None else tf.logical_and(count < replicas, count <= fixed_rows)
    start = tf.where(is_short, tf.zeros_like(count), replica * count // replicas)
    end = tf.where(is_short, count, (replica + 1) * count // replicas)
    return start, end, tf.where(is_short, tf.constant(1.0 / replicas, tf.float64), one)


def fixed_rows_of(batch_size: int, replicas: int, fixed_shapes: bool) -> int | None:
    """Return the number of rows to which every per-replica batch is filled up; None if shapes are not fixed."""
    return -(-batch_size // replicas) if fixed_shapes else None


def first_row_of_step(
    step: tf.Tensor, examples: int, batch_size: int, place: tuple[tf.Tensor | int, int], fixed_rows: int | None = None
) -> tf.Tensor:
    """Return the first row of the global batch of `step` that `replica_batch` takes, int64 [].

    Args:
        step: The step of the run.
        examples: The number of examples in the split.
        batch_size: The global batch size.
        place: The replica, and the number of replicas.
        fixed_rows: See `share_of_replica`.
    """
    _, count = _examples_of_step(step, tf.constant(examples, tf.int64), batch_size)
    return share_of_replica(count, *place, fixed_rows)[0]


def _examples_of_step(step: tf.Tensor, examples: tf.Tensor, batch_size: int | tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the place in the order of its epoch at which the batch of `step` begins, and its number of examples."""
    start = (step % -(-examples // batch_size)) * batch_size
    return start, tf.minimum(examples - start, batch_size)


def places(count: int, batch_size: int, replica: int, replicas: int, fixed_shapes: bool = False) -> np.ndarray:
    """Return the places, in `count` examples, of the rows that a replica computes, batch after batch, int64 [rows].

    A place of -1 is a row that is filled up, or that another replica computes too.
    """
    parts = []
    fixed_rows = fixed_rows_of(batch_size, replicas, fixed_shapes)
    for size, starts in (
        (batch_size, np.arange(count // batch_size) * batch_size),
        (count % batch_size, np.array([count - count % batch_size])),
    ):
        if size and len(starts):
            first, end, _ = share_of_replica(tf.constant(size, tf.int64), replica, replicas, fixed_rows)
            rows = np.arange(first, end)
            examples = starts[:, np.newaxis] + rows
            if size < replicas and replica and (fixed_rows is None or size <= fixed_rows):
                examples[:] = -1
            if fixed_rows is not None:
                missing = max(fixed_rows - len(rows), 0)
                examples = np.pad(examples, [(0, 0), (0, missing)], constant_values=-1)[:, :fixed_rows]
            parts.append(examples.ravel())
    return np.concatenate(parts)
