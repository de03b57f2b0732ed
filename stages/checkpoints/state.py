"""The state of a training, apart from settings and data, and its progress: as a checkpoint holds and restores them."""

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
"""Name of the EMA among the parts of a checkpoint: that of the files that exist."""


MOST_WAITING = 0.1
"""Fraction of the time that training may wait for its input before a warning."""

LEAST_SECONDS = 2.0
"""Seconds of waiting below which there is no warning."""


@dataclass
class Clock:
    """Seconds and examples of training steps alone, without tracing, validation, callbacks and checkpoints."""

    seconds: float = 0.0
    steps: int = 0
    examples: int = 0
    waited: float | None = None
    """Seconds of these that training has waited for its input; None where that cannot be measured."""
    unit: str = "images"
    """Name of examples; `features` are those of a frozen backbone."""

    def add(self, seconds: float, steps: int, examples: int, waited: float | None = None) -> None:
        self.seconds = self.seconds + seconds
        self.steps = self.steps + steps
        self.examples = self.examples + examples
        if waited is not None:
            self.waited = (self.waited or 0.0) + waited

    @property
    def speed(self) -> str:
        """Examples a second as a person reads them: `1,234 rows/s`; `-` before the second call."""
        return f"{self.examples / self.seconds:,.0f} {self.unit}/s" if self.steps else "-"

    def rates(self) -> dict[str, float]:
        """Returns the rates of the run so far; none after a single step. Rows and texts are `examples`."""
        if not self.steps:
            return {}
        rate = self.examples / self.seconds
        name = self.unit if self.unit in ("images", "features") else "examples"
        rates = {f"train/{name}_per_second": rate, "train/step_milliseconds": 1000 * (self.seconds / self.steps)}
        return rates if self.waited is None else {**rates, "train/input_wait_fraction": self.waited / self.seconds}

    def advice(self) -> str:
        """Returns advice where training waits for its input, else an empty string."""
        fraction = self.waited / self.seconds if self.waited and self.seconds else 0.0
        if fraction <= MOST_WAITING or (self.waited or 0.0) < LEAST_SECONDS:
            return ""
        return (
            f"training waited for its input {fraction:.0%} of the time; data.cache=disk, a larger data.memory_gib, a "
            "smaller data.size or augment.where=model may speed it up"
        )


@dataclass
class Progress:
    """Progress of a training.

    epoch: counted from 0; done: its steps taken; step: those of all epochs.
    rows: the metrics of each epoch; logs: the last ones that callbacks have received.
    stopping: whether a callback stops training; finished: whether the phase has no more steps.
    phase: counted from 0; began: its first epoch; planned: the same, had the one before not stopped early.
    shift: steps by which the learning-rate schedule is ahead of the optimizer, which started again.
    """

    epoch: int = 0
    done: int = 0
    step: int = 0
    rows: list[dict[str, float]] = field(default_factory=list)
    logs: dict[str, float] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    stopping: bool = False
    finished: bool = False
    phase: int = 0
    began: int = 0
    planned: int = 0
    shift: int = 0

    @property
    def first_epoch(self) -> int:
        """The epoch of the first of `rows`, counted from 1; a fork has none of the epochs before it."""
        return self.epoch - len(self.rows) + 1

    def of_next_phase(self, steps_per_epoch: int, planned: int) -> "Progress":
        """Return that at the start of the next phase: of an epoch, even if a callback has cut the last one short.

        Its steps have their own duration.
        """
        step, phase = self.epoch * steps_per_epoch, self.phase + 1
        begun = Progress(self.epoch, step=step, phase=phase, began=self.epoch, planned=planned)
        begun.rows, begun.logs = self.rows, self.logs
        return begun

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Progress":
        """Return the progress that `dataclasses.asdict` has converted; earlier code had fields that are gone."""
        known = {name: value for name, value in values.items() if name in vars(cls())}
        return cls(**{**known, "clock": Clock(**values["clock"])})


class State:
    """The variables and callbacks of a training. optimizer: what a fork makes of the other run's, in words.

    Args:
        callbacks: each with the attributes that it had at first, and since `on_train_begin`, which sets them on
            resumption, too: a checkpoint holds those that differ from the one or the other.
        step: of the training loop, or Keras'.
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
        rates = [v for v in optimizer.variables if v.name == "learning_rate"]  # none for a schedule
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
        """Return the current state. All workers must call it.

        Args:
            is_secret: tells by name and value which attribute of a callback is left out.
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
        """Restores a checkpoint of this training, and returns its progress.

        A fork restores the weights, the parts of the state that fit, and the number of epochs; history, callbacks and
        the learning rate are those of the new settings.

        Raises:
            UserError: for a checkpoint of other data, another model, or, unless it is a fork, other settings.
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
        if progress.done == 0:  # with another batch size, the same epochs are other steps
            progress.step = progress.epoch * self._per_epoch
            of_phase = progress.step - progress.began * self._per_epoch
            if "steps" in parts:
                self._iterations.assign(of_phase)
        return progress

    def _restored_by_fork(self, facts: Mapping[str, Any]) -> list[str]:
        """Returns the names of the parts that a fork restores."""
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
                    "fork=null" if fork else "resume=never",  # a fork would begin with the same checkpoint again
                )

    def _sum(self, variable: Variable) -> np.ndarray:
        """Returns the sum of each replica, [replicas, …]; with several workers the sum of all, [1, …]."""
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
    """Returns the progress of a checkpoint, or that of a fork of it at its start.

    Args:
        same_epochs: whether the fork's have the same batches and sums; if not, it starts its epoch again.
    """
    progress = Progress.of(checkpoint.facts["progress"])
    if not checkpoint.is_fork:
        return progress
    done = progress.done if same_epochs else 0
    return replace(progress, done=done, rows=[], clock=Clock(), stopping=False, finished=False)


def restore_weights(network: keras.Model, checkpoint: Checkpoint) -> None:
    """Restores the weights of `network` alone, before `State` restores everything.

    Does nothing for weights of another network, which `State` refuses.
    """
    arrays = [checkpoint.arrays.get(f"model.{index}") for index in range(len(network.weights))]
    if all(array is not None and array.shape == v.shape for array, v in zip(arrays, network.weights, strict=True)):
        network.set_weights(arrays)


def _form(variable: Variable) -> str:
    return f"{tf.as_dtype(variable.dtype).name} {list(map(int, variable.shape))}"


_PRIVATE_TO_KERAS = ("_model", "params", "validation_data", "min_delta")
"""Attributes that Keras sets; it flips the sign of `min_delta` at a callback's first use, and would flip it twice."""


def state_of(target: object, name: str, arrays: dict[str, np.ndarray]) -> tuple[dict[str, Any], list[str]]:
    """Returns the attributes of `target` that are numbers, strings, lists, mappings or arrays, as JSON can hold them.

    Args:
        name: prefix of the names of its arrays.
        arrays: receives its arrays.

    Returns:
        The attributes, and the names of those left out that are neither functions nor objects of the same kind.
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
    """Sets the attributes of `target` that `state_of` has returned."""
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
    """Returns one value of the attributes that `state_of` has returned."""
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays[value["array"]][()]  # of no dimension, a number of NumPy's
    if "dict" in value:
        return {decoded(k, arrays): decoded(v, arrays) for k, v in value["dict"]}
    [(kind, items)] = value.items()
    return {"list": list, "tuple": tuple, "set": set}[kind](decoded(item, arrays) for item in items)
