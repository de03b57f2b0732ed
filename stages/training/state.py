"""The state of a training: every variable that its steps change, in one tree that checkpoints save and restore."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from stages.checkpoints.names import AVERAGES, LOSS_SCALE, MODEL, RATE, SEEDS, SLOTS, STEPS, SUMS
from stages.collectives import has_workers, is_chief
from stages.optimization.ema import EMA
from stages.optimization.loss_scale import LossScale
from stages.results import Strategy

Variable: TypeAlias = keras.Variable | tf.Variable


@dataclass(frozen=True, eq=False)
class TrainState:
    """Every variable that the steps of a training change.

    It holds variables, not values, because TensorFlow's distributed variables cannot be passed through functions.
    `read` returns the values, and `assign` sets them.
    """

    strategy: Strategy
    """The strategy that the variables belong to."""
    network: Sequence[keras.Variable]
    """Weights and buffers (such as the statistics of BatchNorm) of the whole network, in its order."""
    slots: Sequence[keras.Variable]
    """Values that the optimizer keeps for each weight, such as the momentum."""
    iterations: keras.Variable
    """The number of updates so far."""
    rate: Sequence[keras.Variable]
    """The learning rate, if callbacks may set it. Empty if a schedule computes it from `iterations`."""
    ema: EMA
    """The EMA of weights and buffers."""
    loss_scale: LossScale | None
    """The loss scale of float16."""
    sums: Sequence[tf.Variable]
    """Sums of the loss and the metrics in this epoch. Each replica has its own."""
    seeds: Sequence[keras.Variable]
    """The states of random layers. Empty if random numbers are a function of the step, as in `train=loop`."""

    @classmethod
    def of(  # noqa: PLR0913  # one argument per part of the state
        cls,
        strategy: Strategy,
        network: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        ema: EMA,
        loss_scale: LossScale | None,
        sums: Iterable[Variable],
        seeds: Sequence[keras.Variable] = (),
    ) -> Self:
        """Return the state of a training of `network` with a built `optimizer`."""
        rate = [variable for variable in optimizer.variables if variable.name == "learning_rate"]
        others = {id(variable) for variable in (optimizer.iterations, *rate)}
        return cls(
            strategy=strategy,
            network=list(network.weights),
            slots=[variable for variable in optimizer.variables if id(variable) not in others],
            iterations=optimizer.iterations,
            rate=rate,
            ema=ema,
            loss_scale=loss_scale,
            sums=[variable.value if isinstance(variable, keras.Variable) else variable for variable in sums],
            seeds=list(seeds),
        )

    @property
    def parts(self) -> dict[str, Sequence[Variable]]:
        """The variables by the names that their parts have in checkpoints, without the sums."""
        return {
            MODEL: self.network,
            SLOTS: self.slots,
            STEPS: [self.iterations],
            SEEDS: self.seeds,
            RATE: self.rate,
            LOSS_SCALE: [] if self.loss_scale is None else self.loss_scale.variables,
            AVERAGES: self.ema.values,
        }

    @property
    def forms(self) -> dict[str, list[str]]:
        """The dtype and shape of each variable, by which a checkpoint is recognized. Those of the model have names."""
        parts = {name: [_form(variable) for variable in part] for name, part in self.parts.items()}
        parts[MODEL] = [f"{variable.name} {_form(variable)}" for variable in self.network]
        return {**parts, SUMS: [_form(variable) for variable in self.sums]}

    def read(self) -> dict[str, np.ndarray]:
        """Return a copy of all values, by part and index. All workers must call this."""
        values = {
            f"{name}.{index}": np.array(tf.convert_to_tensor(variable))  # a copy: the next step may overwrite it
            for name, part in self.parts.items()
            for index, variable in enumerate(part)
        }
        return values | {f"{SUMS}.{index}": self._read_sum(variable) for index, variable in enumerate(self.sums)}

    def assign(self, values: Mapping[str, np.ndarray], parts: Iterable[str]) -> None:
        """Set the variables of some `parts` to values that `read` has returned."""
        for name in parts:
            if name == SUMS:
                for index, variable in enumerate(self.sums):
                    self._assign_sum(variable, values[f"{SUMS}.{index}"])
                continue
            for index, variable in enumerate(self.parts[name]):
                variable.assign(values[f"{name}.{index}"])

    def _read_sum(self, variable: tf.Variable) -> np.ndarray:
        """Return the sums of the replicas, [replicas, …]; with several workers, the sum over all of them, [1, …]."""
        if has_workers(self.strategy):
            return np.array(variable.read_value())[None]
        parts = self.strategy.distribution.experimental_local_results(variable)
        return np.stack([np.array(part.read_value()) for part in parts])

    def _assign_sum(self, variable: tf.Variable, values: np.ndarray) -> None:
        parts = self.strategy.distribution.experimental_local_results(variable)
        if len(parts) != len(values) or has_workers(self.strategy):
            zeros = [np.zeros_like(values[0])] * len(parts)
            total = values.sum(axis=0, dtype=values.dtype) if is_chief(self.strategy) else zeros[0]
            values = np.stack([total, *zeros[1:]])
        for part, own_sum in zip(parts, values, strict=True):
            part.assign(own_sum)


def _form(variable: Variable) -> str:
    return f"{tf.as_dtype(variable.dtype).name} {list(map(int, variable.shape))}"
