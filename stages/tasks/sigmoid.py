"""Tasks whose outputs are logits or probabilities, and outputs of which each is a probability of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import tensorflow as tf

from stages.errors import UserError
from stages.tasks.task import Task

if TYPE_CHECKING:
    from stages.settings.train import TrainSettings


@dataclass(frozen=True)
class Probabilities(Task):
    """A task whose answers are probabilities.

    given: what the network returns, `logits` or `probabilities`.
    label_smoothing: part of a target that is spread over all answers alike (Szegedy et al. 2016, arXiv:1512.00567,
        section 7). class_weights: factor of the loss by class or label; None: 1.
    """

    given: str = "logits"
    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] | None = None

    answer: ClassVar[str] = "probabilities"

    def of_network(self, outputs: str) -> Self:
        """See `Task`."""
        return replace(self, given=outputs)

    def for_training(self, settings: TrainSettings, targets: np.ndarray) -> Self:
        """See `Task`.

        Raises:
            UserError: where there are not as many weights as names.
        """
        super().for_training(settings, targets)
        weights = settings.class_weights
        if weights == "balanced":
            weights = self.balanced(targets)
        elif weights is not None and len(weights) != len(self.names):
            raise UserError(
                f"train.class_weights has {len(weights)} numbers",
                f"{len(self.names)}, one for each of {', '.join(self.names)}",
                "train.class_weights=balanced",
            )
        factors = None if weights is None else tuple(map(float, weights))
        return replace(self, label_smoothing=settings.label_smoothing, class_weights=factors)

    def balanced(self, targets: np.ndarray) -> Sequence[float]:
        """Returns the weights that `train.class_weights=balanced` means for the targets of the training split."""
        raise NotImplementedError


def binary_losses(wanted: tf.Tensor, outputs: tf.Tensor, given: str, smoothing: float) -> tf.Tensor:
    """Returns the cross-entropy of each output, [b, k].

    Args:
        wanted: targets of 0 to 1, [b, k]. given: what the network returns, `logits` or `probabilities`.
        smoothing: part of a target that is replaced by one half.
    """
    smooth = tf.cast(wanted, outputs.dtype) * (1.0 - smoothing) + smoothing / 2
    if given == "logits":
        return tf.nn.sigmoid_cross_entropy_with_logits(smooth, outputs)
    clipped = tf.clip_by_value(outputs, 1e-7, 1 - 1e-7)  # Keras' own bounds
    return -smooth * tf.math.log(clipped) - (1 - smooth) * tf.math.log(1 - clipped)


def refuse_outside(given: str, outputs: np.ndarray) -> None:
    """Raises UserError for outputs that cannot be the probabilities that they are said to be."""
    if given == "probabilities" and not np.all((outputs >= 0) & (outputs <= 1)):
        raise UserError(
            "model.outputs=probabilities, but the network's output is not all between 0 and 1",
            "what the last layer of the network returns",
            "model.outputs=logits",
        )
