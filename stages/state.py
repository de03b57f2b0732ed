"""What the next steps of a training depend on besides settings and data: read for a checkpoint, and put back."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from stages.agreement import has_workers, is_chief
from stages.batches import steps_per_epoch
from stages.checkpoints import Checkpoint
from stages.errors import UserError
from stages.history import Progress
from stages.plain import put_back, state_of
from stages.results import Dataset, Model, Strategy
from stages.settings.train import TrainSettings
from stages.step import Step

Variable: TypeAlias = Any
"""Of Keras or of TensorFlow."""


class State:
    """The variables and callbacks of a training.

    Args:
        step: of the training loop; None where Keras' `fit` trains, which has no state between epochs but the model's.
    """

    def __init__(
        self,
        strategy: Strategy,
        model: Model,
        dataset: Dataset,
        settings: TrainSettings,
        callbacks: Sequence[keras.callbacks.Callback],
        step: Step | None = None,
    ) -> None:
        self._strategy, self._callbacks = strategy, callbacks
        optimizer = model.network.optimizer
        self._iterations = optimizer.iterations
        self._per_epoch = steps_per_epoch(dataset.train, settings.batch_size)
        scale, averages = (step.loss_scale, step.averages) if step else (None, None)
        self._parts: dict[str, list[Variable]] = {
            "model": list(model.network.variables),
            "optimizer": list(optimizer.variables),
            "loss scale": [scale.value, scale.good_steps, scale.skipped_steps] if scale else [],
            "averages": list(averages.values) if averages else [],
        }
        self._sums = [*step.totals.variables, *(v for m in model.metrics for v in m.variables)] if step else []
        self._facts: dict[str, Any] = {
            "data": {
                "name": dataset.name,
                "fingerprint": dataset.fingerprint,
                "classes": dataset.num_classes,
                "examples": len(dataset.train),
            },
            "parts": {
                name: [(_name(variable) if name == "model" else "") + _form(variable) for variable in part]
                for name, part in self._parts.items()
            },
            "optimizer": type(optimizer).__name__,
            "order": {"seed": settings.seed, "batch_size": settings.batch_size},
        }

    def read(self, progress: Progress) -> Checkpoint:
        """Returns all of it as it is now. Every worker must call it."""
        arrays = {
            f"{name}.{index}": _value(variable)
            for name, part in self._parts.items()
            for index, variable in enumerate(part)
        }
        arrays |= {f"sums.{index}": self._sum(variable) for index, variable in enumerate(self._sums)}
        kept = [
            {"kind": type(callback).__name__, "state": state_of(callback, f"callbacks.{index}", arrays)[0]}
            for index, callback in enumerate(self._callbacks)
        ]
        facts = {**self._facts, "step": progress.step, "progress": asdict(progress), "callbacks": kept}
        return Checkpoint(facts, arrays)

    def put_back(self, checkpoint: Checkpoint) -> Progress:
        """Takes over a checkpoint of this training, and returns how far it was.

        Of another one (`fork`) it takes the weights, what belongs to them where it fits, and the number of epochs;
        history and callbacks start anew.

        Raises:
            UserError: where it is of other data or another model; or of other settings, unless it is a fork.
        """
        facts, fork = checkpoint.facts, bool(checkpoint.facts.get("fork"))
        self._check(facts, fork)
        progress = Progress.of(facts["progress"])
        for name in self._fitting(facts):
            for index, variable in enumerate(self._parts[name]):
                variable.assign(checkpoint.arrays[f"{name}.{index}"])
        if not fork:
            for callback, kept in zip(self._callbacks, facts["callbacks"], strict=True):
                put_back(callback, kept["state"], checkpoint.arrays)
        elif facts["order"] == self._facts["order"]:
            progress = Progress(progress.epoch, progress.done, progress.step)
        else:  # the same place does not exist: the epoch begins again
            progress = Progress(progress.epoch, 0, progress.epoch * self._per_epoch)
            self._iterations.assign(progress.step)
        if progress.done:
            for index, variable in enumerate(self._sums):
                self._put_sum(variable, checkpoint.arrays[f"sums.{index}"])
        return progress

    def _fitting(self, facts: Mapping[str, Any]) -> list[str]:
        """Returns the names of the parts that a checkpoint has in the form in which they are here."""
        own = self._facts
        same = [name for name in self._parts if facts["parts"][name] == own["parts"][name]]
        return [name for name in same if name != "optimizer" or facts["optimizer"] == own["optimizer"]]

    def _check(self, facts: Mapping[str, Any], fork: bool) -> None:
        own = self._facts
        first = _difference(facts["data"], own["data"], "data ") or _first_variable("model", facts, own)
        allowed = "a checkpoint of the same data and the same model"
        if not first and not fork:
            kept = {"optimizer": facts["optimizer"], "callbacks": [one["kind"] for one in facts["callbacks"]]}
            here = {"optimizer": own["optimizer"], "callbacks": [type(one).__name__ for one in self._callbacks]}
            first = _difference(facts["order"], own["order"]) or _difference(kept, here)
            first = first or next(filter(None, (_first_variable(name, facts, own) for name in own["parts"])), "")
            allowed = "the settings that it was made with, or fork=<run id>"
        if first:
            raise UserError(f"the checkpoint belongs to another training: {first}", allowed, "resume=never")

    def _sum(self, variable: Variable) -> np.ndarray:
        """Returns what each replica has added up, [replicas, …]; of several workers the sum alone, [1, …]."""
        value = variable.value if isinstance(variable, keras.Variable) else variable
        if has_workers(self._strategy):
            return np.array(value.read_value())[None]
        parts = self._strategy.distribution.experimental_local_results(value)
        return np.stack([np.array(part.read_value()) for part in parts])

    def _put_sum(self, variable: Variable, values: np.ndarray) -> None:
        value = variable.value if isinstance(variable, keras.Variable) else variable
        parts = self._strategy.distribution.experimental_local_results(value)
        if len(parts) != len(values) or has_workers(self._strategy):
            rest = [np.zeros_like(values[0])] * len(parts)
            first = values.sum(axis=0, dtype=values.dtype) if is_chief(self._strategy) else rest[0]
            values = np.stack([first, *rest[1:]])
        for part, mine in zip(parts, values, strict=True):
            part.assign(mine)


def _value(variable: Variable) -> np.ndarray:
    value = variable.value if isinstance(variable, keras.Variable) else variable
    return np.array(tf.convert_to_tensor(value))  # a copy: the next step may write over what a tensor shows


def _form(variable: Variable) -> str:
    dtype = variable.dtype if isinstance(variable.dtype, str) else variable.dtype.name
    return f"{dtype} {list(map(int, variable.shape))}"


def _name(variable: keras.Variable) -> str:
    """Returns a name that a second model of this process would have, too: in paths Keras counts the layers."""
    return f"{variable.name} "


def _first_variable(part: str, saved: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    before, now = (dict(enumerate(facts["parts"][part])) for facts in (saved, own))
    return _difference(before, now, f"{part} variable ")


def _difference(saved: Mapping[Any, Any], own: Mapping[Any, Any], what: str = "") -> str:
    """Returns the first difference in words, or nothing."""
    for key in dict.fromkeys([*saved, *own]):
        if saved.get(key) != own.get(key):
            return f"{what}{key} was {saved.get(key, 'absent')} and is {own.get(key, 'absent')}"
    return ""
