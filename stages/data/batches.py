"""From a split to batches: which example goes where is a pure function of (seed, epoch, position).

A batch element is made for one replica at one step, so no batch is ever cut up or sharded by TensorFlow: a replica
computes the rows that are its share. The same code serves one device, many devices and many workers, starts at any
step, and gives every replica its part of a batch that does not divide.
"""

import os
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops

from stages.images import ALIGNMENT, Images
from stages.results import Dataset, Split
from stages.seeds import derive

Batch = tuple[tf.Tensor, ...]
"""images float32 [b, H, W, C]; labels int32 [b], or float32 [b, classes] of mixed images, rows that add up to 1;
weights float64 [b], which add up to the number of examples over all replicas. Where the training step is to augment:
the random numbers for it, float32 [b, randoms]."""

InputFunction = Callable[[tf.distribute.InputContext], tf.data.Dataset]
"""What `tf.distribute.Strategy.distribute_datasets_from_function` takes."""

WITHOUT_AUTOTUNER = tf.data.Options()
"""For every dataset that is iterated over: an iterator's destructor waits for the thread of its autotuner, which
sleeps for up to 60 seconds at a time. Cancellation wakes that thread before `IsCancelled` turns true, so that on a busy
machine it looks too early and sleeps on (tensorflow/core/framework: `OptimizeLoop` in model.cc, `StartCancel` in
cancellation.cc)."""
WITHOUT_AUTOTUNER.autotune.enabled = False

_ENDLESS = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
"""What `tf.distribute` is told, so that it does not ask at every step, in a collective of all workers, who has a batch
left: no one takes a step more than there are."""

Reader = Callable[[tf.Tensor], tf.Tensor]
"""From examples of a split to their images."""

_as_written = tf.autograph.experimental.do_not_convert
"""For functions without a loop or a branch on tensors: AutoGraph would take most of a second over them."""


def steps_per_epoch(split: Split, batch_size: int) -> int:
    """Returns how many batches hold every example once; the last one may be smaller."""
    return -(-len(split) // batch_size)


def training_input(
    dataset: Dataset, batch_size: int, seed: int, epochs: int, first_step: int = 0, fixed_shapes: bool = False
) -> InputFunction:
    """Returns an input of `epochs` shuffled passes over the training split, from `first_step` on.

    The shuffle is a uniform permutation of the whole split, another one each epoch. With `fixed_shapes` every replica's
    part of every batch has the same number of rows, filled up with rows of weight 0.
    """
    return _input(dataset.train, batch_size, epochs, first_step, seed, dataset, fixed_shapes)


def distributed(strategy: tf.distribute.Strategy, source: InputFunction) -> Iterable[Batch]:
    """Returns the batches of `source` for the replicas of `strategy`; no iterator over them has an autotuner."""
    if _is_one_cpu(strategy):  # nothing has to be copied to it ahead, and TensorFlow traces 0.1 s to do so
        return source(tf.distribute.InputContext())
    _keep_autotuners_from_devices()
    batches: Iterable[Batch] = strategy.distribute_datasets_from_function(
        lambda context: source(context).apply(_ENDLESS)
    )
    return batches


def _is_one_cpu(strategy: tf.distribute.Strategy) -> bool:
    return (
        isinstance(strategy, tf.distribute.OneDeviceStrategy) and "CPU" in strategy.extended.worker_devices[0].upper()
    )


@cache
def _keep_autotuners_from_devices() -> None:
    """Sets `WITHOUT_AUTOTUNER` for the iterators that TensorFlow puts on each device, which no public option reaches.

    As of TensorFlow 2.21 (tensorflow/python/data/ops/multi_device_iterator_ops.py).
    """
    create = multi_device_iterator_ops._create_device_dataset

    def create_without_autotuner(*given: Any) -> tf.data.Dataset:
        return create(*given).with_options(WITHOUT_AUTOTUNER)

    multi_device_iterator_ops._create_device_dataset = create_without_autotuner


def evaluation_input(split: Split, batch_size: int, fixed_shapes: bool = False, passes: int = 1) -> InputFunction:
    """Returns an input of `passes` over `split` in its own order, unchanged."""
    return _input(split, batch_size, passes, 0, None, None, fixed_shapes)


def _input(
    split: Split,
    batch_size: int,
    epochs: int,
    first_step: int,
    seed: int | None,
    dataset: Dataset | None,
    fixed_shapes: bool,
) -> InputFunction:
    per_epoch = steps_per_epoch(split, batch_size)

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        with tf.device("/cpu:0"):
            read = reader(split.images)
            labels = tf.constant(split.labels)
        replicas = context.num_replicas_in_sync
        here = replicas // context.num_input_pipelines
        first_replica = context.input_pipeline_id * here
        fixed_rows = -(-batch_size // replicas) if fixed_shapes else None

        @_as_written
        def positions(epoch: tf.Tensor) -> tf.data.Dataset:
            """Yields (order of the epoch, step of the run, replica) for every share that is made here."""
            in_order = order(len(split), seed, epoch)
            start = tf.maximum(epoch * per_epoch, first_step)
            shares = tf.data.Dataset.range(start * here, (epoch + 1) * per_epoch * here)
            return shares.map(_as_written(lambda share: (in_order, share // here, first_replica + share % here)))

        @_as_written
        def batch(in_order: tf.Tensor, step: tf.Tensor, replica: tf.Tensor) -> Batch:
            start = (step % per_epoch) * batch_size
            count = tf.minimum(len(split) - start, batch_size)
            rows, weights = share(count, replica, replicas, fixed_rows)
            if fixed_rows is not None:
                missing = tf.maximum(fixed_rows - tf.size(rows), 0)
                rows, weights = tf.pad(rows, [[0, missing]])[:fixed_rows], tf.pad(weights, [[0, missing]])[:fixed_rows]
            examples = in_order[start : start + count]
            if dataset is None or seed is None:
                images, *rest = taken(read, labels, examples, rows)
            else:
                images, *rest = changed(read, labels, examples, rows, step, batch_size, seed, dataset)
            images = tf.ensure_shape(images, [fixed_rows, *split.images.shape[1:]])
            wanted, *numbers = (tf.ensure_shape(part, [fixed_rows, *part.shape[1:]]) for part in rest)
            return images, wanted, weights, *numbers

        options = tf.data.Options()
        options.deterministic = True
        # TensorFlow would copy images in memory into a graph to look for rewrites, of which it finds none here.
        options.experimental_optimization.apply_default_optimizations = False
        elements = tf.data.Dataset.range(first_step // per_epoch, epochs).flat_map(positions)
        ahead = 2 * here + 2
        made = elements.map(batch, num_parallel_calls=min(ahead, os.cpu_count() or 1)).prefetch(ahead)
        return made.with_options(options).with_options(WITHOUT_AUTOTUNER)

    return make


def reader(images: Images) -> Reader:
    """Returns what takes examples, int64 [b], to their images [b, H, W, C]: from memory, or from where they are."""
    if isinstance(images, np.ndarray):
        held = _in_memory(images)
        return lambda examples: tf.gather(held, examples)
    image_shape = images.shape[1:]
    dtype = tf.as_dtype(images.dtype)

    def read(examples: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(images.__getitem__, [examples], dtype), [None, *image_shape])

    return read


def _in_memory(images: np.ndarray) -> tf.Tensor:
    """Returns a tensor of the array's own memory where it lies as TensorFlow wants it, else a copy."""
    if images.ctypes.data % ALIGNMENT or not images.flags.c_contiguous or not images.flags.writeable:
        return tf.constant(images)
    return tf.experimental.dlpack.from_dlpack(images.__dlpack__())


def taken(read: Reader, labels: tf.Tensor, examples: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns images, float32 [b, H, W, C], and labels, int32 [b], of `rows` of a global batch.

    examples: which of the split's they are, int64 [count], all of the batch.
    """
    mine = tf.gather(examples, rows)
    return tf.cast(read(mine), tf.float32), tf.gather(labels, mine)


def changed(
    read: Reader,
    labels: tf.Tensor,
    examples: tf.Tensor,
    rows: tf.Tensor,
    step: tf.Tensor,
    batch_size: int,
    seed: int,
    dataset: Dataset,
) -> tuple[tf.Tensor, ...]:
    """Returns what `taken` does, augmented and mixed as `dataset` says; labels are float32 [b, classes] if mixed.

    Where the training step is to augment, images are as they were, and its random numbers follow. They are those of
    `step` and of each example's row in its global batch, whoever computes it.
    """

    def key(purpose: str) -> tf.Tensor:
        return tf.stack([derive(seed, purpose), tf.cast(step, tf.int32)])

    augmentation, mixing, wanted = dataset.augmentation, dataset.mixing, rows
    if mixing is not None:  # one that is there in its own right, or twice, is made once
        partners = mixing.partners(rows, tf.size(examples, tf.int64), key)
        wanted, places = tf.unique(tf.concat([rows, partners], axis=0))
    images, classes = taken(read, labels, examples, wanted)
    if augmentation is not None:
        uniforms = tf.random.stateless_uniform([batch_size, augmentation.randoms], key("augment"))
        uniforms = tf.gather(uniforms, wanted)
        if dataset.augments_in_step:
            return images, classes, uniforms
        images = tf.ensure_shape(augmentation(images, uniforms), images.shape)
    if mixing is None:
        return images, classes
    own, other = tf.split(places, 2)
    return mixing(
        (tf.gather(images, own), tf.gather(images, other)),
        (tf.gather(classes, own), tf.gather(classes, other)),
        tf.gather(mixing.draw(batch_size, key), rows),
    )


def order(examples: int, seed: int | None, epoch: tf.Tensor) -> tf.Tensor:
    """Returns a permutation, int64 [examples]; without a seed the identity.

    Sorting random numbers, once an epoch: `tf.random.experimental.index_shuffle` would need no memory, but its
    permutations are far from uniform (of 20,000 ones of 100 examples, mean positions are off by 26 standard errors).
    """
    if seed is None:
        return tf.range(examples, dtype=tf.int64)
    key = tf.stack([derive(seed, "shuffle"), tf.cast(epoch, tf.int32)])
    numbers = tf.random.stateless_uniform([examples], key, minval=None, maxval=None, dtype=tf.int64)
    return tf.cast(tf.argsort(numbers), tf.int64)


def share(
    count: tf.Tensor, replica: tf.Tensor | int, replicas: int, fixed_rows: int | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a replica's rows of a batch of `count` examples, int64 [b], and their weights, float64 [b].

    Shares differ by one row at most. Where there are fewer examples than replicas, every replica gets all of them with
    weight 1 / replicas. An empty share would fail (convolutions of nothing on CPUs) or give gradients of half the
    weight elsewhere; one filled up with rows of weight 0 would change the statistics of a synchronized BatchNorm.

    Args:
        fixed_rows: those that every share is filled up to, and so may be empty where not all examples fit into one.
    """
    replica = tf.cast(replica, tf.int64)
    few = count < replicas if fixed_rows is None else tf.logical_and(count < replicas, count <= fixed_rows)
    first = tf.where(few, tf.zeros_like(count), replica * count // replicas)
    last = tf.where(few, count, (replica + 1) * count // replicas)
    weight = tf.where(few, tf.constant(1.0 / replicas, tf.float64), tf.constant(1.0, tf.float64))
    return tf.range(first, last), tf.fill([last - first], weight)


def places(count: int, batch_size: int, replica: int, replicas: int, fixed_shapes: bool = False) -> np.ndarray:
    """Returns where in `count` examples, batch after batch, each row lies that a replica has computed, int64 [rows].

    -1: a row that is filled up, or that another replica has, too.
    """
    found = []
    fixed_rows = -(-batch_size // replicas) if fixed_shapes else None
    for size, starts in (
        (batch_size, np.arange(count // batch_size) * batch_size),
        (count % batch_size, np.array([count - count % batch_size])),
    ):
        if size and len(starts):
            rows = share(tf.constant(size, tf.int64), replica, replicas, fixed_rows)[0].numpy()
            here = starts[:, np.newaxis] + rows
            if size < replicas and replica and (fixed_rows is None or size <= fixed_rows):
                here[:] = -1
            if fixed_rows is not None:
                missing = max(fixed_rows - len(rows), 0)
                here = np.pad(here, [(0, 0), (0, missing)], constant_values=-1)[:, :fixed_rows]
            found.append(here.ravel())
    return np.concatenate(found)
