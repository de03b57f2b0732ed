"""The engine of ParameterServerStrategy: workers take steps at their own pace."""

from collections.abc import Callable
from typing import Any, ClassVar

import tensorflow as tf

from stages.data.batches import WITHOUT_AUTOTUNER, RandomChanges, batch_of_rows, order, steps_per_epoch
from stages.data.examples import SplitReader, gathering, target_tensor, weights_of
from stages.errors import UserError
from stages.networks.keras_internals import count_in_place
from stages.optimization.xla import choose_jit
from stages.results import Dataset, Model, Strategy
from stages.settings.train import TrainSettings
from stages.training.engine import Setup
from stages.training.own_steps import OwnSteps
from stages.training.step import TrainStep

CALL_SECONDS = 3.0
"""Length of a call: so long that workers rarely wait for each other, and so short that progress is visible."""


class ParameterServer(OwnSteps):
    """Schedules steps on workers. The unfinished steps of a lost worker go to a different one.

    A worker holds the training split, and receives the numbers of the examples of each step. Every example is trained
    on once per epoch, whichever worker takes it, and again if a worker dies between its update and its answer.
    """

    no_features: ClassVar[str] = "the strategy distributes the model over devices"

    def __init__(self, setup: Setup) -> None:
        assert setup.strategy.coordinator is not None
        self._setup = setup
        self._coordinator = setup.strategy.coordinator
        self._per_epoch = steps_per_epoch(setup.dataset.train, setup.settings.batch_size)
        self.steps_per_call = 8
        self.waited: float | None = None  # workers make their batches within a step
        self.is_compiled = choose_jit(setup.settings, setup.strategy, setup.model)
        self.step = TrainStep(setup, self.is_compiled)
        self.state = self.step.state
        count_in_place(setup.optimizer)
        self.scored = self.whole = setup.whole.on_one_device()

    @classmethod
    def check(cls, model: Model, dataset: Dataset, strategy: Strategy, settings: TrainSettings) -> None:
        super().check(model, dataset, strategy, settings)
        if not dataset.train.is_in_memory:
            problem = "strategy=parameter_server requires training examples that fit in memory, but these do not"
            raise UserError(problem, "data.memory_gib=<more>, or strategy=multi_worker", "strategy=multi_worker")

    def begin(self, first_step: int, epochs: int) -> None:
        """Send the training split to the workers. The batches of each step are made when it is scheduled."""
        split = self._setup.dataset.train
        columns = {name: tf.constant(column[:]) for name, column in split.inputs.items()}
        held = columns, target_tensor(split.target_values), weights_of(split)
        once = tf.data.Dataset.from_tensors
        whole = tf.function(lambda: once(held).repeat().with_options(WITHOUT_AUTOTUNER), autograph=False)
        self._splits = iter(self._coordinator.create_per_worker_dataset(whole))
        self._compiled = _steps(self._setup, self.step)

    def run(self, first_step: int, steps: int) -> dict[str, float]:
        """Have the workers take `steps` steps of one epoch, and wait for them."""
        settings = self._setup.settings
        size, together = settings.batch_size, settings.steps_per_call or 4
        epoch, done = divmod(first_step, self._per_epoch)
        examples = order(len(self._setup.dataset.train), settings.seed, tf.constant(epoch, tf.int64))
        for step in range(done, done + steps, together):
            end = min(step + together, done + steps)
            start = tf.constant(epoch * self._per_epoch + step, tf.int64)
            self._coordinator.schedule(self._compiled, (self._splits, examples[step * size : end * size], start))
        self._coordinator.join()
        return self.step.means()

    def adapt(self, seconds: float) -> None:
        """Choose `steps_per_call` again after each call: a call should take about `CALL_SECONDS`."""
        self.steps_per_call = max(int(CALL_SECONDS / seconds), 1)

    def refresh(self) -> None:
        self.whole.network.set_weights(self._setup.whole.network.get_weights())


# A function, not a method: the iterator must not be left to the garbage collector.
def _steps(setup: Setup, step: TrainStep) -> Callable[[Any, tf.Tensor, tf.Tensor], None]:
    """Return a function by which a worker takes the steps of some examples of the split."""
    distribution, size = setup.strategy.distribution, setup.settings.batch_size
    changes = RandomChanges(setup.dataset, size, setup.settings.seed)

    @tf.function(reduce_retracing=True)
    def compiled(splits: Any, examples: tf.Tensor, first_step: tf.Tensor) -> None:
        columns, targets, weights = next(splits)
        readers = {name: gathering(column) for name, column in columns.items()}
        held = SplitReader(readers, lambda rows: tf.gather(targets, rows), weights)

        for index in tf.range(-(-tf.size(examples) // size)):
            in_batch = examples[index * size : (index + 1) * size]
            number = first_step + tf.cast(index, tf.int64)
            count = tf.size(in_batch, tf.int64)
            rows = tf.range(count), tf.ones([count], tf.float64)
            batch = batch_of_rows(held, in_batch, rows, number, changes)
            distribution.run(step, args=(batch, number))

    return compiled
