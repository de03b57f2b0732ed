"""The state of a training, apart from settings and data: read for a checkpoint, and restored from one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from stages.checkpoints.files import Checkpoint
from stages.checkpoints.progress import Clock, Progress
from stages.collectives import has_workers, is_chief
from stages.data.batches import steps_per_epoch
from stages.errors import UserError
from stages.results import Dataset, Model, Strategy
from stages.settings.train import TrainSettings

Variable: TypeAlias = Any
"""A variable of Keras or of TensorFlow."""


EMA = "averages"
"""Name of the EMA among the parts of a checkpoint: that of the files that exist."""


class State:
    """The variables and callbacks of a training. notes: the parts that a fork has not restored.

    Args:
        callbacks: each with the attributes that it had at first: a checkpoint holds those that have changed since.
        step: of the training loop, or Keras'.
    """

    def __init__(
        self,
        strategy: Strategy,
        model: Model,
        dataset: Dataset,
        settings: TrainSettings,
        callbacks: Sequence[tuple[keras.callbacks.Callback, Mapping[str, Any]]],
        step: Any,
    ) -> None:
        self.notes: list[str] = []
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
            "steps": [self._iterations, *step.seeds],
            "rate": rates,
            "loss scale": scale.own_variables if scale else [],
            EMA: self._ema.values,
        }
        self._sums = step.sums
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
            f"{name}.{index}": _value(variable)
            for name, part in self._parts.items()
            for index, variable in enumerate(part)
        }
        arrays |= {f"sums.{index}": self._sum(variable) for index, variable in enumerate(self._sums)}
        callbacks = []
        for index, (callback, initial) in enumerate(self._callbacks):
            state = state_of(callback, f"callbacks.{index}", arrays)[0]
            changed = {
                key: value
                for key, value in state.items()
                if not is_secret(key, value) and (key not in initial or value != initial[key])
            }
            callbacks.append({"kind": type(callback).__name__, "state": changed})
        facts = {**self._facts, "step": progress.step, "progress": asdict(progress), "callbacks": callbacks}
        return Checkpoint(facts, arrays)

    def restore(self, checkpoint: Checkpoint) -> Progress:
        """Restores a checkpoint of this training, and returns its progress.

        A fork restores the weights, the parts of the state that fit, and the number of epochs; history, callbacks and
        the learning rate are those of the new settings. `notes` lists the parts that are not restored.

        Raises:
            UserError: for a checkpoint of other data, another model, or, unless it is a fork, other settings.
        """
        facts = checkpoint.facts
        self._check(facts, checkpoint.is_fork)
        parts = self._restored_by_fork(facts) if checkpoint.is_fork else list(self._parts)
        for name in parts:
            for index, variable in enumerate(self._parts[name]):
                variable.assign(checkpoint.arrays[f"{name}.{index}"])
        progress = progress_of(checkpoint, facts["order"] == self._facts["order"])
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
        if EMA not in parts:
            self._ema.reset()
        return progress

    def _restored_by_fork(self, facts: Mapping[str, Any]) -> list[str]:
        """Returns the names of the parts that a fork restores."""
        current = self._facts
        names = [name for name in self._parts if facts["parts"][name] == current["parts"][name] and name != "rate"]
        is_same = facts["optimizer"] == current["optimizer"] and "optimizer" in names
        if not is_same and not facts["forked"]["fresh"]:
            self.notes.append("the optimizer starts again, and its learning-rate schedule with it")
        return [name for name in names if is_same or name not in ("optimizer", "steps")]

    def _check(self, facts: Mapping[str, Any], fork: bool) -> None:
        def compared(facts: Mapping[str, Any]) -> dict[str, object]:
            kinds = [callback["kind"] for callback in facts["callbacks"]]
            values = {f"data {name}": value for name, value in facts["data"].items()}
            if not fork:
                values |= {**facts["order"], "optimizer": facts["optimizer"], "callbacks": kinds}
            for part in ("model", "sums") if fork else facts["parts"]:
                values |= {f"{part} variable {index}": form for index, form in enumerate(facts["parts"][part])}
            return values

        saved, current = compared(facts), compared(self._facts)
        for name in {**saved, **current}:
            if saved.get(name) != current.get(name):
                allowed = "the settings that it was made with, or fork=<run id>"
                raise UserError(
                    f"the checkpoint belongs to another training: {name} was {saved.get(name, 'absent')} and is "
                    f"{current.get(name, 'absent')}",
                    "a checkpoint of the same data and the same model" if fork else allowed,
                    "fork=null" if fork else "resume=never",  # a fork would begin with the same checkpoint again
                )

    def _sum(self, variable: Variable) -> np.ndarray:
        """Returns the sum of each replica, [replicas, …]; with several workers the sum of all, [1, …]."""
        value = _as_tensorflow(variable)
        if has_workers(self._strategy):
            return np.array(value.read_value())[None]
        parts = self._strategy.distribution.experimental_local_results(value)
        return np.stack([np.array(part.read_value()) for part in parts])

    def _restore_sum(self, variable: Variable, values: np.ndarray) -> None:
        value = _as_tensorflow(variable)
        parts = self._strategy.distribution.experimental_local_results(value)
        if len(parts) != len(values) or has_workers(self._strategy):
            zeros = [np.zeros_like(values[0])] * len(parts)
            total = values.sum(axis=0, dtype=values.dtype) if is_chief(self._strategy) else zeros[0]
            values = np.stack([total, *zeros[1:]])
        for part, own_sum in zip(parts, values, strict=True):
            part.assign(own_sum)


def progress_of(checkpoint: Checkpoint, same_order: bool = True) -> Progress:
    """Returns the progress of a checkpoint, or that of a fork of it at its start.

    Args:
        same_order: whether the fork has the same batches; if not, it starts its epoch again.
    """
    progress = Progress.of(checkpoint.facts["progress"])
    if not checkpoint.is_fork:
        return progress
    done = progress.done if same_order else 0
    return replace(progress, done=done, rows=[], clock=Clock(), stopping=False, finished=False, start={})


def restore_weights(network: keras.Model, checkpoint: Checkpoint) -> None:
    """Restores the weights of `network` alone, before `State` restores everything.

    Does nothing for weights of another network, which `State` refuses.
    """
    arrays = [checkpoint.arrays.get(f"model.{index}") for index in range(len(network.weights))]
    if all(array is not None and array.shape == v.shape for array, v in zip(arrays, network.weights, strict=True)):
        network.set_weights(arrays)


def _as_tensorflow(variable: Variable) -> Any:
    """Returns TensorFlow's variable behind one of Keras."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def _value(variable: Variable) -> np.ndarray:
    return np.array(
        tf.convert_to_tensor(_as_tensorflow(variable))
    )  # a copy: the next step may overwrite the tensor's memory


def _form(variable: Variable) -> str:
    dtype = variable.dtype if isinstance(variable.dtype, str) else variable.dtype.name
    return f"{dtype} {list(map(int, variable.shape))}"


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
        return {"array": name, "scalar": isinstance(value, np.generic)}
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
        array = arrays[value["array"]]
        return array[()] if value["scalar"] else array
    if "dict" in value:
        return {decoded(k, arrays): decoded(v, arrays) for k, v in value["dict"]}
    [(kind, items)] = value.items()
    return {"list": list, "tuple": tuple, "set": set}[kind](decoded(item, arrays) for item in items)
