"""Batches of steps, made ahead of them by tf.data."""

import tensorflow as tf

from stages.data.batches import RandomChanges, distributed, evaluation_input, order, replica_batch, training_input
from stages.data.examples import Batch, Examples
from stages.data.split import Split
from stages.results import Dataset, Strategy

_FOREVER = 2**31
"""Passes of an endless input."""


def training_steps(
    strategy: Strategy, dataset: Dataset, batch_size: int, seed: int, epochs: int, first_step: int
) -> tf.data.Iterator:
    """Returns the batches of a training's steps from `first_step` on; see `stages.data.batches.training_input`."""
    source = training_input(dataset, batch_size, seed, epochs, first_step, strategy.fixed_shapes)
    return iter(distributed(strategy.distribution, source))


def first_batch(dataset: Dataset, batch_size: int, seed: int) -> Batch:
    """Returns the global batch of a training's first step."""
    with tf.device("/cpu:0"):
        in_order = order(len(dataset.train), seed if dataset.is_shuffled else None, tf.constant(0, tf.int64))
        changes, first = RandomChanges(dataset, batch_size, seed), tf.constant(0, tf.int64)
        return replica_batch(Examples.of_split(dataset.train), in_order, first, (0, 1), batch_size, changes)


def passes(strategy: Strategy, split: Split, batch_size: int) -> tf.data.Iterator:
    """Returns the batches of endless passes over `split` in its own order, unchanged."""
    source = evaluation_input(split, batch_size, strategy.fixed_shapes, passes=_FOREVER)
    return iter(distributed(strategy.distribution, source))
