"""Examples as networks get them, and transforms: random changes of training examples, seeded by row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import tensorflow as tf

Key = Callable[[str], tf.Tensor]
"""From a purpose to the seed, int32 [2], of its random numbers in a step."""


class Example(NamedTuple):
    """A batch of examples: a structure of tensors, with one row per example."""

    inputs: dict[str, tf.Tensor]
    """The network's inputs by name, float32 or int32 [b, ...], such as images [b, H, W, C]."""
    targets: tf.Tensor
    """int32 or float32 [b, ...], as the task defines them; float32 [b, outputs] if examples are mixed."""
    weights: tf.Tensor
    """float64 [b]. Over all replicas they add up to the number of examples, or to the sum of their weights."""
    uniforms: tuple[tf.Tensor, ...] = ()
    """Random numbers, float32 [b, n], for each transform that the training step has yet to apply."""


class Transform(ABC):
    """A random change of training examples: a pure function of an example and of random numbers.

    The numbers of an example follow from the seed, the step and its row in the global batch. So a resumed run gets the
    same examples again, and so does any number of replicas. The result for an example must depend neither on the
    other examples in the batch nor on its place among them, except through `combine`.

    To write a transform, set `randoms` and define `__call__`. A stage after `load` adds it to `Dataset.transforms`.
    """

    combines: ClassVar[bool] = False
    """Whether it combines each example with a second one, as `Mixing` does. If so, `combine` is called instead."""
    purpose: ClassVar[str] = ""
    """A word from which its random numbers are derived; the name of the class if empty."""

    @property
    def randoms(self) -> int:
        """The number of uniform random numbers per example."""
        return 0

    @property
    def in_step(self) -> bool:
        """Whether the training step applies it, on its device. By default the input pipeline does."""
        return False

    def draw(self, batch_size: int, key: Key) -> tf.Tensor:
        """Return random numbers for each row of a global batch, [batch_size, n]; by default in [0, 1), float32."""
        return tf.random.stateless_uniform([batch_size, self.randoms], key(self.purpose or type(self).__name__))

    def spec(self, example: Example) -> Example:
        """Return the shapes and dtypes of examples after the change; by default they stay the same."""
        return example

    @abstractmethod
    def __call__(self, example: Example, numbers: tf.Tensor) -> Example:
        """Return the changed example.

        Args:
            example: A batch of examples, b rows.
            numbers: The rows of `draw` for these examples, [b, n].
        """

    def partners(self, rows: tf.Tensor, count: tf.Tensor, key: Key) -> tf.Tensor:
        """Return the rows of the global batch to combine `rows` with, if `combines`.

        Args:
            rows: int64 [b].
            count: The number of examples in the global batch, int64 [].
            key: Seeds for random numbers.
        """
        raise NotImplementedError

    def combine(self, example: Example, partner: Example, numbers: tf.Tensor) -> Example:
        """Return the example combined with its partner, if `combines`; see `__call__`."""
        raise NotImplementedError
