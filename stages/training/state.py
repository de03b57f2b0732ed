"""What the next steps of a training depend on besides settings and data: read for a checkpoint, and put back."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from stages.data.batches import steps_per_epoch
from stages.distribution.collectives import has_workers, is_chief
from stages.errors import UserError
from stages.optimization.train_step import Step
from stages.results import Dataset, Model, Strategy
from stages.settings.train import TrainSettings
from stages.training.checkpoints import Checkpoint
from stages.training.progress import Progress
from stages.training.serialization import put_back, state_of

Variable: TypeAlias = Any
"""Of Keras or of TensorFlow."""


class State:
    """The variables and callbacks of a training. notes: what a fork could not take over.

    Args:
        step: of the training loop; None where Keras' `fit` trains, which has no state between epochs but the model's,
            and cannot begin within one.
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
        self.notes: list[str] = []
        self._strategy, self._callbacks = strategy, callbacks
        self._per_epoch = steps_per_epoch(dataset.train, settings.batch_size)
        self._begins_within = step is not None
        optimizer = model.network.optimizer
        self._trained = list(model.network.trainable_variables)
        self._iterations = optimizer.iterations
        rates = [v for v in optimizer.variables if v.name == "learning_rate"]  # none where it is a schedule
        apart = {id(v) for v in (self._iterations, *rates)}
        scale, self._averages = (step.loss_scale, step.averages) if step else (None, None)
        self._parts: dict[str, list[Variable]] = {
            "model": list(model.network.variables),
            "optimizer": [v for v in optimizer.variables if id(v) not in apart],
            "steps": [self._iterations],
            "rate": rates,
            "loss scale": [scale.value, scale.good_steps, scale.skipped_steps] if scale else [],
            "averages": list(self._averages.values) if self._averages else [],
        }
        self._sums = [*step.totals.variables, *(v for m in model.metrics for v in m.variables)] if step else []
        self._initial: list[dict[str, Any]] = [{} for _ in callbacks]
        forms = {
            name: [(f"{v.name} " if name == "model" else "") + _form(v) for v in part]
            for name, part in self._parts.items()
        }
        self._facts: dict[str, Any] = {
            "data": {
                "name": dataset.name,
                "fingerprint": dataset.fingerprint,
                "classes": dataset.num_classes,
                "examples": len(dataset.train),
            },
            "parts": {**forms, "sums": [_form(variable) for variable in self._sums]},
            "optimizer": type(optimizer).__name__,
            "order": {"seed": settings.seed, "batch_size": settings.batch_size},
            "result": {
                "restore_best": settings.restore_best,
                "monitor": settings.monitor,
                "ema": bool(settings.optimizer.ema_momentum and settings.optimizer.ema_use),
            },
        }

    def begin(self, before: "State | None" = None) -> None:
        """Notes what the callbacks are like before the first step: only what changes is kept of them.

        Args:
            before: the state in the phase before this one, which has noted it.
        """
        self._initial = before._initial if before else [state_of(one, "", {})[0] for one in self._callbacks]

    def read(self, progress: Progress) -> Checkpoint:
        """Returns all of it as it is now. Every worker must call it."""
        arrays = {
            f"{name}.{index}": _value(variable)
            for name, part in self._parts.items()
            for index, variable in enumerate(part)
        }
        arrays |= {f"sums.{index}": self._sum(variable) for index, variable in enumerate(self._sums)}
        kept = []
        for index, (callback, initial) in enumerate(zip(self._callbacks, self._initial, strict=True)):
            mine: dict[str, np.ndarray] = {}
            state = state_of(callback, f"callbacks.{index}", mine)[0]
            changed = {key: value for key, value in state.items() if key not in initial or value != initial[key]}
            arrays |= mine
            kept.append({"kind": type(callback).__name__, "state": changed})
        facts = {**self._facts, "step": progress.step, "progress": asdict(progress), "callbacks": kept}
        return Checkpoint(facts, arrays)

    def put_back(self, checkpoint: Checkpoint) -> Progress:
        """Takes over a checkpoint of this training, and returns how far it was.

        Of another one (`fork`) it takes the weights, what belongs to them where it fits, and the number of epochs;
        history, callbacks and the learning rate are those of the new settings. `notes` tells what was not taken.

        Raises:
            UserError: where it is of other data or another model; or of other settings, unless it is a fork.
        """
        facts, fork = checkpoint.facts, bool(checkpoint.facts.get("fork"))
        self._check(facts, fork)
        parts = self._taken(facts) if fork else list(self._parts)
        for name in parts:
            for index, variable in enumerate(self._parts[name]):
                variable.assign(checkpoint.arrays[f"{name}.{index}"])
        progress = progress_of(checkpoint, self._begins_within and facts["order"] == self._facts["order"])
        if fork:
            if progress.done == 0:  # with batches of another size, as many epochs are other steps
                progress.step = progress.epoch * self._per_epoch
                if "steps" in parts:
                    self._iterations.assign(progress.step - progress.began * self._per_epoch)
            if "averages" not in parts:
                self._use_reported(checkpoint)
                if self._averages is not None:
                    self._averages.begin_anew()
        else:
            for callback, kept in zip(self._callbacks, facts["callbacks"], strict=True):
                put_back(callback, kept["state"], checkpoint.arrays)
        if progress.done:
            for index, variable in enumerate(self._sums):
                self._put_sum(variable, checkpoint.arrays[f"sums.{index}"])
        return progress

    def _use_reported(self, checkpoint: Checkpoint) -> None:
        """Makes a fork's weights the moving averages, where these are what the other run has reported and exported."""
        facts = checkpoint.facts
        wanted = facts.get("forked", {}).get("weights") == "best" and facts.get("result", {}).get("ema")
        kept = [checkpoint.arrays.get(f"averages.{index}") for index in range(len(facts["parts"]["averages"] or ()))]
        if not wanted or len(kept) != len(self._trained):
            return
        for variable, array in zip(self._trained, kept, strict=True):
            if array is not None and array.shape == tuple(variable.shape):
                variable.assign(tf.cast(array, variable.dtype))

    def _taken(self, facts: Mapping[str, Any]) -> list[str]:
        """Returns the parts that a fork takes over."""
        own = self._facts
        taken = [name for name in self._parts if facts["parts"][name] == own["parts"][name] and name != "rate"]
        if facts.get("forked", {}).get("fresh"):  # the fork has said so
            return [name for name in taken if name not in ("optimizer", "steps")]
        if facts["optimizer"] != own["optimizer"] or "optimizer" not in taken:
            self.notes.append("the optimizer starts anew, and its learning-rate schedule with it")
            taken = [name for name in taken if name not in ("optimizer", "steps")]
        return taken

    def _check(self, facts: Mapping[str, Any], fork: bool) -> None:
        own = self._facts
        first = _difference(facts["data"], own["data"], "data ") or _first_variable("model", facts, own)
        first = first or _first_variable("sums", facts, own)
        allowed = "a checkpoint of the same data and the same model"
        if not first and fork and "SwapEMAWeights" in [one["kind"] for one in facts["callbacks"]]:
            first = "its weights are averages (train=fit, optimizer.ema_use)"
            allowed = "fork_weights=best, or a fork of a run by train=loop"
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


def progress_of(checkpoint: Checkpoint, same_order: bool = True) -> Progress:
    """Returns how far the training of a checkpoint is, or that which a fork begins.

    Args:
        same_order: whether the fork has the same batches; where not, the epoch begins again.
    """
    progress = Progress.of(checkpoint.facts["progress"])
    if not checkpoint.facts.get("fork"):
        return progress
    done = progress.done if same_order else 0
    return Progress(
        progress.epoch, done, progress.step, phase=progress.phase, began=progress.began, shift=progress.shift
    )


def put_back_weights(network: keras.Model, checkpoint: Checkpoint) -> None:
    """Gives `network` the weights of a checkpoint, for what is made of them before `State` puts all of it back.

    Those of another network are left to `State`, which refuses them.
    """
    found = [checkpoint.arrays.get(f"model.{index}") for index in range(len(network.variables))]
    if all(one is not None and one.shape == v.shape for one, v in zip(found, network.variables, strict=True)):
        for variable, array in zip(network.variables, found, strict=True):
            variable.assign(array)


def _value(variable: Variable) -> np.ndarray:
    value = variable.value if isinstance(variable, keras.Variable) else variable
    return np.array(tf.convert_to_tensor(value))  # a copy: the next step may write over what a tensor shows


def _form(variable: Variable) -> str:
    dtype = variable.dtype if isinstance(variable.dtype, str) else variable.dtype.name
    return f"{dtype} {list(map(int, variable.shape))}"


def _first_variable(part: str, saved: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    before, now = (dict(enumerate(facts["parts"][part])) for facts in (saved, own))
    return _difference(before, now, f"{part} variable ")


def _difference(saved: Mapping[Any, Any], own: Mapping[Any, Any], what: str = "") -> str:
    """Returns the first difference in words, or nothing."""
    for key in dict.fromkeys([*saved, *own]):
        if saved.get(key) != own.get(key):
            return f"{what}{key} was {saved.get(key, 'absent')} and is {own.get(key, 'absent')}"
    return ""
