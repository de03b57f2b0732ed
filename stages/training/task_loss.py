"""The loss of a task as a Keras loss, for `compile`."""

import inspect

import keras
import tensorflow as tf

from stages.errors import UserError
from stages.results import Model
from stages.settings.train import TrainSettings
from stages.tasks.task import Task


class TaskLoss(keras.losses.Loss):
    """The loss of a task.

    It is a class, because Keras reshapes the targets of a function to the rank of the outputs, from [b] to [b, 1]. As
    in the training step, the sum of weighted losses is divided by the sum of the weights.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(reduction="mean_with_sample_weight")
        self._task = task
        self._is_used = False

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Return the loss of each example, [b]."""
        self._is_used = True
        return self._task.loss.of_each(y_true, y_pred)

    def check_use(self, model: Model, settings: TrainSettings) -> None:
        """Refuse settings that the network's own step or loss, once traced, has ignored."""
        network = model.network.core
        parameters = inspect.signature(network.compute_loss).parameters
        takes_weights = any(one.name == "sample_weight" or one.kind is one.VAR_KEYWORD for one in parameters.values())
        used = {
            "train.class_weights=null": not settings.class_weights or takes_weights,
            "train.label_smoothing=0": not settings.label_smoothing or self._is_used,
            "task.loss={}": not self._task.loss.settings or self._is_used,
        }
        for fix in (fix for fix, is_used in used.items() if not is_used):
            raise UserError(
                f"{fix.partition('=')[0]} has no effect, as {type(network).__name__} computes its own loss",
                "only one of the two, or a compute_loss that accepts sample_weight and calls super().compute_loss",
                fix,
            )
