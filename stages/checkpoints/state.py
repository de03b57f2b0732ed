"""The state and progress of a training, which checkpoints save and restore, without settings and data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from stages.checkpoints.files import Checkpoint
from stages.collectives import has_workers, is_chief
from stages.data.batches import steps_per_epoch
from stages.errors import UserError
from stages.results import Dataset, Model, Strategy
from stages.settings.train import TrainSettings

Variable: TypeAlias = Any
"""A variable of Keras or of TensorFlow."""


EMA = "averages"
"""Name of the EMA among the parts of a checkpoint. It must not change, because existing files have it."""


MAX_WAITING = 0.1
"""Fraction of the time that training may wait for its input without a warning."""

MIN_SECONDS = 2.0
"""Seconds of waiting below which there is no warning."""


@dataclass
class Clock:
    """The time of training steps and their examples, without tracing, validation, callbacks and checkpoints."""

    seconds: float = 0.0
    steps: int = 0
    examples: int = 0
    waited: float | None = None
    """Seconds of these that training has waited for its input; None if this cannot be measured."""
    unit: str = "images"
    """Name of the examples; `features` are those of a frozen backbone."""

    def add(self, seconds: float, steps: int, examples: int, waited: float | None = None) -> None:
        self.seconds = self.seconds + seconds
        self.steps = self.steps + steps
        self.examples = self.examples + examples
        if waited is not None:
            self.waited = (self.waited or 0.0) + waited

    @property
    def speed(self) -> str:
        """Examples per second as text, such as `1,234 rows/s`; `-` before the second call."""
        return f"{self.examples / self.seconds:,.0f} {self.unit}/s" if self.steps else "-"

    def rates(self) -> dict[str, float]:
        """Return the rates of the run so far; empty after a single step. Rows and texts count as `examples`."""
        if not self.steps:
            return {}
        rate = self.examples / self.seconds
        name = self.unit if self.unit in ("images", "features") else "examples"
        rates = {f"train/{name}_per_second": rate, "train/step_milliseconds": 1000 * (self.seconds / self.steps)}
        return rates if self.waited is None else {**rates, "train/input_wait_fraction": self.waited / self.seconds}

    def advice(self) -> str:
        """Return advice if training waits too long for its input; otherwise an empty string."""
        fraction = self.waited / self.seconds if self.waited and self.seconds else 0.0
        if fraction <= MAX_WAITING or (self.waited or 0.0) < MIN_SECONDS:
            return ""
        return (
            f"training waited for its input {fraction:.0%} of the time; data.cache=disk, a larger data.memory_gib, a "
            "smaller data.size or augment.where=model may speed it up"
        )


@dataclass
class Progress:
    """Progress of a training."""

    epoch: int = 0
    """The current epoch, counted from 0."""
    done: int = 0
    """Number of steps completed in this epoch."""
    step: int = 0
    """Number of steps completed in all epochs."""
    rows: list[dict[str, float]] = field(default_factory=list)
    """The metrics of each epoch."""
    logs: dict[str, float] = field(default_factory=dict)
    """The last metrics that callbacks have received."""
    clock: Clock = field(default_factory=Clock)
    stopping: bool = False
    """Whether a callback stops training."""
    finished: bool = False
    """Whether the phase has no more steps."""
    phase: int = 0
    """The current phase, counted from 0."""
    began: int = 0
    """The first epoch of this phase."""
    planned: int = 0
    """The first epoch of this phase if the previous phase had not stopped early."""
    shift: int = 0
    """Number of steps by which the learning-rate schedule is ahead of a fork's new optimizer."""

    @property
    def first_epoch(self) -> int:
        """The epoch of the first of `rows`, counted from 1. A fork has no rows of epochs before its start."""
        return self.epoch - len(self.rows) + 1

    def of_next_phase(self, steps_per_epoch: int, planned: int) -> "Progress":
        """Return the progress at the start of the next phase, with a new clock.

        A phase starts with a whole epoch, even if a callback has cut the last epoch short.
        """
        step, phase = self.epoch * steps_per_epoch, self.phase + 1
        start = Progress(self.epoch, step=step, phase=phase, began=self.epoch, planned=planned)
        start.rows, start.logs = self.rows, self.logs
        return start

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Progress":
        """Return the progress from the result of `dataclasses.asdict`, without fields that no longer exist."""
        known = {name: value for name, value in values.items() if name in vars(cls())}
        return cls(**{**known, "clock": Clock(**values["clock"])})


class State:
    """The variables and callbacks of a training.

    Attributes:
        optimizer: For a fork, a description of what happens to the state of the other run's optimizer.

    Args:
        strategy: The distribution strategy.
        model: The model.
        dataset: The data set.
        settings: The settings of the training.
        callbacks: Each callback with its attributes before and after `on_train_begin`, which also sets them when a run
            is resumed. A checkpoint contains the attributes that differ from either.
        step: The training step, of the training loop or of Keras.
    """

    def __init__(
        self,
        strategy: Strategy,
        model: Model,
        dataset: Dataset,
        settings: TrainSettings,
        callbacks: Sequence[tuple[keras.callbacks.Callback, Sequence[Mapping[str, Any]]]],
        step: Any,
    ) -> None:
        self.optimizer = ""
        self._strategy = strategy
        self._callbacks = callbacks
        self._per_epoch = steps_per_epoch(dataset.train, settings.batch_size)
        optimizer = model.network.optimizer
        self._iterations = optimizer.iterations
        rates = [v for v in optimizer.variables if v.name == "learning_rate"]  # a schedule has no such variable
        scale, self._ema = step.loss_scale, step.ema
        excluded = {id(v) for v in (self._iterations, *rates, *self._ema.values)}
        self._parts: dict[str, list[Variable]] = {
            "model": list(model.network.weights),
            "optimizer": [v for v in optimizer.variables if id(v) not in excluded],
            "steps": [self._iterations],
            "seeds": list(step.seeds),
            "rate": rates,
            "loss scale": scale.own_variables if scale else [],
            EMA: self._ema.values,
        }
        self._sums = [v.value if isinstance(v, keras.Variable) else v for v in step.sums]
        forms = {
            name: [(f"{v.name} " if name == "model" else "") + _form(v) for v in part]
            for name, part in self._parts.items()
        }
        self._facts: dict[str, Any] = {
            "data": {
                "name": dataset.name,
                "fingerprint": dataset.fingerprint,
                "classes": dataset.task.outputs,
                "examples": len(dataset.train),
            },
            "parts": {**forms, "sums": [_form(variable) for variable in self._sums]},
            "order": {"seed": settings.seed, "batch_size": settings.batch_size},
            "optimizer": type(optimizer).__name__,
            "callbacks": [{"kind": type(callback).__name__} for callback, _ in callbacks],
            "result": {"restore_best": settings.restore_best, "monitor": settings.monitor},
        }

    def read(
        self, progress: Progress, is_secret: Callable[[str, object], bool] = lambda name, value: False
    ) -> Checkpoint:
        """Return the current state. All workers must call this.

        Args:
            progress: The progress of the training.
            is_secret: Returns whether an attribute of a callback, with this name and value, is left out.
        """
        arrays = {
            f"{name}.{index}": np.array(tf.convert_to_tensor(variable))  # a copy: the next step may overwrite it
            for name, part in self._parts.items()
            for index, variable in enumerate(part)
        }
        arrays |= {f"sums.{index}": self._sum(variable) for index, variable in enumerate(self._sums)}
        callbacks = []
        for index, (callback, before) in enumerate(self._callbacks):
            state = state_of(callback, f"callbacks.{index}", arrays)[0]
            changed = {
                key: value
                for key, value in state.items()
                if not is_secret(key, value) and any(key not in known or value != known[key] for known in before)
            }
            callbacks.append({"kind": type(callback).__name__, "state": changed})
        facts = {**self._facts, "step": progress.step, "progress": asdict(progress), "callbacks": callbacks}
        return Checkpoint(facts, arrays)

    def restore(self, checkpoint: Checkpoint) -> Progress:
        """Restore a checkpoint of this training, and return its progress.

        A fork restores the weights, the parts of the state that fit, and the number of epochs. Its history, callbacks
        and learning rate follow the new settings.

        Raises:
            UserError: For a checkpoint of other data, of a different model or, unless it is a fork, of other settings.
        """
        facts = checkpoint.facts
        self._check(facts, checkpoint.is_fork)
        parts = self._restored_by_fork(facts) if checkpoint.is_fork else list(self._parts)
        for name in parts:
            for index, variable in enumerate(self._parts[name]):
                variable.assign(checkpoint.arrays[f"{name}.{index}"])
        current = self._facts
        is_same = facts["order"] == current["order"] and facts["parts"]["sums"] == current["parts"]["sums"]
        progress = progress_of(checkpoint, is_same)
        if progress.done:
            for index, variable in enumerate(self._sums):
                self._restore_sum(variable, checkpoint.arrays[f"sums.{index}"])
        if not checkpoint.is_fork:
            for (callback, _), saved in zip(self._callbacks, facts["callbacks"], strict=True):
                restore_attributes(callback, saved["state"], checkpoint.arrays)
            return progress
        if progress.done == 0:  # with a different batch size, an epoch has a different number of steps
            progress.step = progress.epoch * self._per_epoch
            steps_in_phase = progress.step - progress.began * self._per_epoch
            if "steps" in parts:
                self._iterations.assign(steps_in_phase)
        return progress

    def _restored_by_fork(self, facts: Mapping[str, Any]) -> list[str]:
        """Return the names of the parts that a fork restores."""
        current = self._facts
        names = [name for name in self._parts if facts["parts"].get(name) == current["parts"][name] and name != "rate"]
        is_same = facts["optimizer"] == current["optimizer"] and "optimizer" in names
        schedule = "continues" if facts["forked"]["fresh"] else "starts again"
        new = f"with a new optimizer, whose learning-rate schedule {schedule}"
        self.optimizer = "with the state of their optimizer" if is_same else new
        return [name for name in names if is_same or name not in ("optimizer", "steps")]

    def _check(self, facts: Mapping[str, Any], fork: bool) -> None:
        def compared(facts: Mapping[str, Any]) -> dict[str, object]:
            kinds = [callback["kind"] for callback in facts["callbacks"]]
            own = {} if fork else {**facts["order"], "optimizer": facts["optimizer"], "callbacks": kinds}
            parts = ("model",) if fork else facts["parts"]
            forms = [(f"{part} variable {i}", form) for part in parts for i, form in enumerate(facts["parts"][part])]
            return {**{f"data {name}": value for name, value in facts["data"].items()}, **own, **dict(forms)}

        saved, current = compared(facts), compared(self._facts)
        for name in {**saved, **current}:
            if saved.get(name) != current.get(name):
                allowed = "the settings that it was saved with, or fork=<run id>"
                raise UserError(
                    f"the checkpoint does not fit this run: {name} was {saved.get(name, 'absent')} and is now "
                    f"{current.get(name, 'absent')}",
                    "a checkpoint of the same data and model" if fork else allowed,
                    "fork=null" if fork else "resume=never",  # a fork would start from the same checkpoint again
                )

    def _sum(self, variable: Variable) -> np.ndarray:
        """Return the sums of the replicas, [replicas, …]; with several workers, the sum over all of them, [1, …]."""
        if has_workers(self._strategy):
            return np.array(variable.read_value())[None]
        parts = self._strategy.distribution.experimental_local_results(variable)
        return np.stack([np.array(part.read_value()) for part in parts])

    def _restore_sum(self, variable: Variable, values: np.ndarray) -> None:
        parts = self._strategy.distribution.experimental_local_results(variable)
        if len(parts) != len(values) or has_workers(self._strategy):
            zeros = [np.zeros_like(values[0])] * len(parts)
            total = values.sum(axis=0, dtype=values.dtype) if is_chief(self._strategy) else zeros[0]
            values = np.stack([total, *zeros[1:]])
        for part, own_sum in zip(parts, values, strict=True):
            part.assign(own_sum)


def progress_of(checkpoint: Checkpoint, same_epochs: bool = True) -> Progress:
    """Return the progress of a checkpoint, or the progress of a fork at its start.

    Args:
        checkpoint: The checkpoint.
        same_epochs: Whether the epochs of a fork have the same batches and sums. If not, it starts the epoch again.
    """
    progress = Progress.of(checkpoint.facts["progress"])
    if not checkpoint.is_fork:
        return progress
    done = progress.done if same_epochs else 0
    return replace(progress, done=done, rows=[], clock=Clock(), stopping=False, finished=False)


def restore_weights(network: keras.Model, checkpoint: Checkpoint) -> None:
    """Restore only the weights of `network`, before `State` restores everything.

    Weights of a different network are ignored here, because `State` refuses them.
    """
    arrays = [checkpoint.arrays.get(f"model.{index}") for index in range(len(network.weights))]
    if all(array is not None and array.shape == v.shape for array, v in zip(arrays, network.weights, strict=True)):
        network.set_weights(arrays)


def _form(variable: Variable) -> str:
    return f"{tf.as_dtype(variable.dtype).name} {list(map(int, variable.shape))}"


_PRIVATE_TO_KERAS = ("_model", "params", "validation_data", "min_delta")
"""Attributes that Keras sets. It flips the sign of `min_delta` at the first use of a callback, so twice if restored."""


def state_of(target: object, name: str, arrays: dict[str, np.ndarray]) -> tuple[dict[str, Any], list[str]]:
    """Return the attributes of `target` that are numbers, strings, lists, mappings or arrays, in a form for JSON.

    Args:
        target: The object, such as a callback.
        name: A prefix for the names of its arrays.
        arrays: Receives its arrays.

    Returns:
        The attributes, and the names of attributes that are left out and are not callable.
    """
    attributes: dict[str, Any] = {}
    left_out: list[str] = []
    for key, value in vars(target).items():
        if key in _PRIVATE_TO_KERAS:
            continue
        own_arrays: dict[str, np.ndarray] = {}
        try:
            attributes[key] = _encode(value, f"{name}.{key}.", own_arrays)
            arrays |= own_arrays
        except TypeError:
            if not callable(value):
                left_out.append(f"{key} ({type(value).__name__})")
    return attributes, left_out


def restore_attributes(target: object, state: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Set the attributes of `target` to those that `state_of` has returned."""
    for key, value in state.items():
        setattr(target, key, decoded(value, arrays))


def _encode(value: Any, prefix: str, arrays: dict[str, np.ndarray]) -> Any:
    if value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind != "O":
        name = f"{prefix}{len(arrays)}"
        arrays[name] = np.array(value)
        return {"array": name}
    if type(value) in (list, tuple, set):
        return {type(value).__name__: [_encode(item, prefix, arrays) for item in value]}
    if type(value) is dict:
        return {"dict": [[_encode(part, prefix, arrays) for part in pair] for pair in value.items()]}
    raise TypeError(type(value).__name__)


def decoded(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return the original value for one of the attributes that `state_of` has returned."""
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays[value["array"]][()]  # an array without dimensions becomes a NumPy number
    if "dict" in value:
        return {decoded(k, arrays): decoded(v, arrays) for k, v in value["dict"]}
    [(kind, items)] = value.items()
    return {"list": list, "tuple": tuple, "set": set}[kind](decoded(item, arrays) for item in items)
