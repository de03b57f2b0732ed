"""The base class of the engines that take the project's own steps."""

from collections.abc import Sequence
from typing import ClassVar

import keras
import tensorflow as tf

from stages.errors import UserError
from stages.results import Dataset, Model, Strategy
from stages.settings.train import TrainSettings
from stages.tasks.task import Task
from stages.training.engine import Engine
from stages.training.step import TrainStep


class OwnSteps(Engine):
    """An engine that takes `TrainStep`s, by whatever replicas or workers."""

    no_features: ClassVar[str] = ""

    step: TrainStep

    @classmethod
    def check(cls, model: Model, dataset: Dataset, strategy: Strategy, settings: TrainSettings) -> None:
        """See `Engine`: a network's own step would not be called."""
        network = type(model.network.core)
        if network.train_step is not keras.Model.train_step:
            raise UserError(
                f"{network.__name__} defines its own train_step, which train=loop does not call",
                "train=fit, which calls it, or a network that uses compute_loss, add_loss and metrics instead",
                "train=fit",
            )

    @staticmethod
    def logged(task: Task) -> Sequence[str]:
        """See `Engine`."""
        return task.measured

    @staticmethod
    def seen_by_callbacks(network: keras.Model) -> keras.Model:
        """See `Engine`."""
        return network

    def reset(self) -> None:
        """See `Engine`."""
        self.step.sums.reset()

    def is_of_xla(self, error: tf.errors.OpError) -> bool:
        """See `Engine`."""
        return self.step.gradients.is_of_xla(error)
