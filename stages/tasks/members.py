"""Members: a network that returns several answers for an example, whose mean is the answer of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import tensorflow as tf

from stages.tasks.parts import Head, Loss

if TYPE_CHECKING:
    import keras

    from stages.data.columns import Column
    from stages.settings.train import TrainSettings
    from stages.tasks.task import Task


@dataclass(frozen=True)
class MemberHead(Head):
    """The outputs of several members, [b, members, ...]. What the model predicts is the mean of their predictions.

    Everything else that is known of an example follows from this mean, as for a network without members.
    """

    one: Head
    """The head of a member."""

    members: int

    @property
    def answer(self) -> str:  # type: ignore[override]
        """See `Head`."""
        return self.one.answer

    @property
    def units(self) -> int:
        """See `Head`."""
        return self.one.units

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Head`."""
        return (self.members, *self.one.shape)

    @property
    def width(self) -> int:
        """See `Head`."""
        return self.one.width

    @property
    def saved(self) -> dict[str, Any]:
        """See `Head`."""
        return self.one.saved

    def of_network(self, outputs: str) -> Self:
        """See `Head`."""
        return replace(self, one=self.one.of_network(outputs))

    def check(self, outputs: np.ndarray) -> None:
        """See `Head`."""
        self.one.check(outputs.reshape(-1, *self.one.shape))

    def predictions(self, outputs: tf.Tensor) -> tf.Tensor:
        """See `Head`."""
        return self.one.predictions(self.one.merged(outputs))

    def as_layers(self, outputs: keras.KerasTensor) -> keras.KerasTensor:
        """See `Head`."""
        return self.one.merged_as_layers(outputs)

    def known(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """See `Head`."""
        return self.one.known(targets, self.one.merged(outputs))

    def for_keras_loss(self, targets: tf.Tensor, outputs: tf.Tensor, as_logits: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Head`."""
        return self.one.for_keras_loss(targets, self.one.merged(outputs), as_logits)

    def rows(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """See `Head`."""
        return self.one.rows(targets, self.one.merged(outputs))

    def columns(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """See `Head`."""
        return self.one.columns(rows)

    def derived(self, predictions: tf.Tensor) -> dict[str, tf.Tensor]:
        """See `Head`."""
        return self.one.derived(predictions)

    def explained(self, predictions: tf.Tensor, names: tf.Tensor) -> dict[str, tf.Tensor]:
        """See `Head`."""
        return self.one.explained(predictions, names)

    def differ(self, ours: np.ndarray, theirs: np.ndarray, allowed: float) -> tuple[float, float]:
        """See `Head`."""
        return self.one.differ(ours, theirs, allowed)

    def standard(self, model: Any, targets: np.ndarray) -> dict[str, np.ndarray] | None:
        """See `Head`."""
        return self.one.standard(model, targets)


@dataclass(frozen=True)
class MemberLoss(Loss):
    """The mean of the members' losses: each learns by itself, as members of an ensemble do."""

    head: MemberHead

    one: Loss
    """The loss of a member."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """See `Loss`."""
        return self.one.settings

    def of_each(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """See `Loss`."""
        members = self.head.members
        rows = tf.reshape(outputs, [-1, *self.head.one.shape])
        return tf.reduce_mean(tf.reshape(self.one.of_each(tf.repeat(targets, members, axis=0), rows), [-1, members]), 1)

    def weights(self, targets: tf.Tensor, dtype: tf.DType) -> tf.Tensor | None:
        """See `Loss`."""
        return self.one.weights(targets, dtype)

    def with_head(self, head: Head) -> Self:
        """See `Loss`."""
        assert isinstance(head, MemberHead)
        return replace(self, head=head, one=self.one.with_head(head.one))

    def for_training(self, settings: TrainSettings, targets: Column) -> Self:
        """See `Loss`."""
        return replace(self, one=self.one.for_training(settings, targets))


def with_members(task: Task, members: int) -> Task:
    """Return the task of a network that returns the outputs of several members, [b, members, ...]."""
    head = MemberHead(task.targets, task.head, members)
    return replace(task, head=head, loss=MemberLoss(head, task.loss))
