"""Batches of steps: made within the step from images in memory, or ahead of it by tf.data.

On CPUs that compute the steps anyway, tf.data can take nothing off them: its iterators cost a tenth of a second each,
its threads take turns with the step's, and its elements ahead take memory. So a replica gathers the rows of a split in
memory as the first part of its step. Everything else (reading, decoding, augmenting, feeding GPUs) is done ahead.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from stages.data.batches import (
    RandomChanges,
    distributed,
    evaluation_input,
    order,
    replica_batch,
    steps_per_epoch,
    training_input,
)
from stages.data.examples import Batch, Examples, gathering, in_memory, weights_of
from stages.data.split import Split
from stages.results import Dataset, Strategy

_FOREVER = 2**31
"""Passes of an endless input."""


class Rows(NamedTuple):
    """A split in memory, of which a replica gathers its rows of a step.

    inputs: columns by name, [N, ...]; targets: [N, ...]; weights: of the examples, float64 [N], or None; order: of an
    epoch, int64 [N]; batch_size: int64 [].
    """

    inputs: dict[str, tf.Tensor]
    targets: tf.Tensor
    weights: tf.Tensor | None
    order: tf.Tensor
    batch_size: tf.Tensor


Source: TypeAlias = Any
"""`Rows`, or an iterator of batches: an argument of a compiled function that takes steps."""


def taken(source: Source) -> Any:
    """Returns, in the cross-replica context, an argument of `tf.distribute.Strategy.run` for the next step."""
    return source if isinstance(source, Rows) else next(source)


def batch_of(argument: Any, step: tf.Tensor, changes: RandomChanges | None = None) -> Batch:
    """Returns, in a replica, its batch of `step`, int64 [] of the run, from the argument that `taken` returned."""
    if not isinstance(argument, Rows):
        return argument
    replica = tf.distribute.get_replica_context()
    readers = {name: gathering(column) for name, column in argument.inputs.items()}
    examples = Examples(readers, argument.targets, argument.weights)
    place = replica.replica_id_in_sync_group, replica.num_replicas_in_sync
    return replica_batch(examples, argument.order, step, place, argument.batch_size, changes)


class StepInput:
    """Batches of steps, as source for compiled functions: of a split in memory its rows, else `batches`.

    Args:
        seed: of the order of each epoch; None: the split's own.
    """

    def __init__(
        self, split: Split, batch_size: int, seed: int | None, batches: tf.data.Iterator | None = None
    ) -> None:
        self._examples = len(split)
        self._per_epoch = steps_per_epoch(split, batch_size)
        self._seed = seed
        self._epoch = 0
        self._source: Source = batches
        if batches is None:
            with tf.device("/cpu:0"):
                columns = {name: in_memory(np.asarray(column)) for name, column in split.inputs.items()}
                targets, size = tf.constant(split.targets), tf.constant(batch_size, tf.int64)
                self._source = Rows(columns, targets, weights_of(split), self._order(0), size)

    def at(self, step: int, steps: int) -> tuple[Source, int]:
        """Returns the source of the next steps, from the run's `step` on, and for how many of `steps` it serves."""
        if not isinstance(self._source, Rows):
            return self._source, steps
        epoch, done = divmod(step, self._per_epoch)
        if epoch != self._epoch and self._seed is not None:
            with tf.device("/cpu:0"):
                self._source = self._source._replace(order=self._order(epoch))
            self._epoch = epoch
        return self._source, min(steps, self._per_epoch - done)

    def _order(self, epoch: int) -> tf.Tensor:
        return order(self._examples, self._seed, tf.constant(epoch, tf.int64))


def training_steps(
    strategy: Strategy, dataset: Dataset, batch_size: int, seed: int, epochs: int, first_step: int
) -> StepInput:
    """Returns the input of a training's steps from `first_step` on; see `stages.data.batches.training_input`."""
    if gathers(strategy, dataset.train) and not is_augmented_ahead(dataset):
        return StepInput(dataset.train, batch_size, seed if dataset.is_shuffled else None)
    source = training_input(dataset, batch_size, seed, epochs, first_step, strategy.fixed_shapes)
    return StepInput(dataset.train, batch_size, seed, iter(distributed(strategy.distribution, source)))


def first_batch(dataset: Dataset, batch_size: int, seed: int) -> Batch:
    """Returns the global batch of a training's first step."""
    with tf.device("/cpu:0"):
        in_order = order(len(dataset.train), seed if dataset.is_shuffled else None, tf.constant(0, tf.int64))
        changes, first = RandomChanges(dataset, batch_size, seed), tf.constant(0, tf.int64)
        return replica_batch(Examples.of_split(dataset.train), in_order, first, (0, 1), batch_size, changes)


def is_augmented_ahead(dataset: Dataset) -> bool:
    """Returns whether the input changes the images, and not the training step."""
    return dataset.augmentation is not None and not dataset.augments_in_step


def passes(strategy: Strategy, split: Split, batch_size: int) -> StepInput:
    """Returns the input of endless passes over `split` in its own order, unchanged."""
    if gathers(strategy, split):
        return StepInput(split, batch_size, None)
    source = evaluation_input(split, batch_size, strategy.fixed_shapes, passes=_FOREVER)
    return StepInput(split, batch_size, None, iter(distributed(strategy.distribution, source)))


def gathers(strategy: Strategy, split: Split) -> bool:
    """Returns whether the replicas of `strategy` gather their rows of `split` in their steps."""
    return split.is_in_memory and all("CPU" in device.upper() for device in strategy.devices)
