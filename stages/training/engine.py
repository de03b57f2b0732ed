"""The interface of engines, which take the steps of a training, and the parts that they are built from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import keras
import tensorflow as tf

from stages.reporter import Reporter
from stages.results import Dataset, Model, Strategy
from stages.settings.train import TrainSettings
from stages.tasks.task import Task
from stages.training.state import TrainState
from stages.training.task_loss import TaskLoss


@dataclass(frozen=True)
class Setup:
    """The parts that the steps of a phase are built from."""

    strategy: Strategy
    whole: Model
    """The model, whose weights checkpoints hold."""
    model: Model
    """The model that is trained: `whole`, or only its layers behind a frozen backbone."""
    dataset: Dataset
    """The examples of the steps, which may be features of the backbone."""
    task: Task
    """The task with the loss of the training."""
    settings: TrainSettings
    optimizer: keras.optimizers.Optimizer
    """An optimizer that is not built."""
    loss: TaskLoss
    """The loss that the network is compiled with."""
    reporter: Reporter


class Engine(Protocol):
    """Takes the steps of a phase, several per call.

    There are three: `Synchronous`, for one device and all strategies whose replicas take each step together;
    `ParameterServer`, whose workers take steps at their own pace; and `KerasFit`, which calls the step of Keras.
    """

    no_features: ClassVar[str]
    """Reason why the engine cannot train on cached features of a frozen backbone; empty if it can."""

    state: TrainState
    """All variables that the steps change."""
    scored: Model
    """The model that validation scores, on one device or on the replicas."""
    whole: Model
    """The model with all its layers, which training returns."""
    is_compiled: bool
    """Whether XLA compiles the steps."""
    steps_per_call: int
    """The number of steps that the next call should take."""
    waited: float | None
    """Seconds of the last call in which it waited for batches; None if this cannot be measured."""

    def __init__(self, setup: Setup) -> None:
        """Create the variables of the steps, and trace what can be traced without batches."""

    @classmethod
    def check(cls, model: Model, dataset: Dataset, strategy: Strategy, settings: TrainSettings) -> None:
        """Refuse what the steps would compute incorrectly or never call.

        Raises:
            UserError: If another engine has to be used.
        """

    @staticmethod
    def logged(task: Task) -> Sequence[str]:
        """Return the names of the task's metrics that training logs in each epoch."""

    @staticmethod
    def seen_by_callbacks(network: keras.Model) -> keras.Model:
        """Return the network that callbacks receive."""

    def begin(self, first_step: int, epochs: int) -> None:
        """Prepare the batches of the epochs up to `epochs`, from the run's `first_step` on."""

    def reset(self) -> None:
        """Reset the sums of the metrics, at the start of an epoch."""

    def run(self, first_step: int, steps: int) -> dict[str, float]:
        """Take `steps` steps of one epoch, and return the loss and the metrics of the epoch so far.

        Args:
            first_step: The number of steps that the run has taken before.
            steps: The number of steps to take.
        """

    def adapt(self, seconds: float) -> None:
        """Choose `steps_per_call` by the seconds that a step took in the last call."""

    def refresh(self) -> None:
        """Copy the current weights to `scored` and `whole`, if servers hold them."""

    def is_of_xla(self, error: tf.errors.OpError) -> bool:
        """Return whether XLA, and not the network, raised `error`."""
