"""Rules on combinations of settings, written as they are typed: `train=fit with strategy=tpu`.

Terms stand between `with` and `without`. A term is a setting that is on (`optimizer.clip_norm`), has one of several
values (`train.jit=on,measure`) or exceeds one (`optimizer.accumulation>1`); or a fact of `FACTS` (`GPUs`).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pipeline.config.experiment import Experiment
from pipeline.config.schemas import SCHEMAS
from pipeline.system import machine
from stages.errors import UserError
from stages.settings.data import DataSettings
from stages.settings.model import CnnPhotoSettings, CnnSettings, MlpSettings, ModelSettings, ResnetSettings
from stages.settings.strategy import CentralStorageSettings, MirroredSettings, MultiWorkerSettings
from stages.settings.train import TrainSettings


def expected_replicas(experiment: Experiment) -> int | None:
    """Return how many replicas share a batch; None where they are unknown without TensorFlow."""
    strategy = experiment.settings.get("strategy")
    gpus = len(machine.gpus())
    if isinstance(strategy, (MirroredSettings, CentralStorageSettings)):
        return len(strategy.devices) or gpus or strategy.cpu_replicas
    if isinstance(strategy, MultiWorkerSettings):
        return experiment.cluster.replicas(strategy.workers, gpus)
    return None if strategy is None or _kind("strategy", strategy) in ("", "tpu") else 1


def is_on_cpu(experiment: Experiment) -> bool:
    """Return whether the strategy names CPUs, on a machine that may have GPUs."""
    strategy = experiment.settings.get("strategy")
    devices = [getattr(strategy, "device", None), *getattr(strategy, "devices", [])]
    return any("cpu" in str(device).lower() for device in devices)


def _shares_unequally(experiment: Experiment) -> bool:
    train, data = experiment.of("train", TrainSettings), experiment.of("load", DataSettings)
    replicas = expected_replicas(experiment) or 1
    examples = data.train_examples() if data else None
    return train is not None and bool(train.batch_size % replicas or (examples or 0) % train.batch_size % replicas)


def _has_backbone(experiment: Experiment) -> bool:
    """Return whether the network may have a layer `backbone`: this project's small ones have none."""
    model = experiment.of("model", ModelSettings)
    network = model.network if model else None
    own = (MlpSettings, CnnSettings, CnnPhotoSettings, ResnetSettings)
    return not isinstance(network, own) or network._target_ != type(network)._target_


FACTS: Mapping[str, Callable[[Experiment], object]] = {
    "GPUs": lambda _: machine.gpus(),
    "a GPU of compute capability below 8.0": lambda experiment: (
        any(gpu.compute_capability < (8, 0) for gpu in machine.gpus()) and not is_on_cpu(experiment)
    ),
    "several replicas": lambda experiment: (expected_replicas(experiment) or 1) > 1,
    "an odd number of replicas": lambda experiment: (expected_replicas(experiment) or 0) % 2,
    "batches that replicas share unequally": _shares_unequally,
    "workers": lambda experiment: experiment.members,
    "a backbone": _has_backbone,
    "changes of single images": lambda experiment: _setting(experiment, "augment.changes") is True,
    "a SavedModel": lambda experiment: "saved_model" in (_setting(experiment, "export.formats") or ["saved_model"]),
    "predictions": lambda experiment: _setting(experiment, "evaluate.predictions") is True,
}
"""Conditions that no setting says, by the words of rules."""


def _kind(group: str, settings: Any) -> str:
    """Return the schema of an option, such as `mirrored`, from which the user's own may start, too."""
    return next((name for name, schema in SCHEMAS[group].items() if type(settings) is schema), "")


_ABSENT = object()
"""A setting of a stage that is left out, or is the user's own code: no term holds of it."""


def _part(experiment: Experiment, group: str) -> Any:
    """Return the settings of a group, None without them."""
    if group in ("optimizer", "schedule", "precision"):
        return getattr(_part(experiment, "model" if group == "precision" else "train"), group, None)
    stage = {group: stage for stage, group in experiment.groups.items()}.get(group, group)
    part = experiment.settings.get(stage, getattr(experiment, group, None))
    return None if isinstance(part, Mapping) else part


def _setting(experiment: Experiment, name: str) -> Any:
    group, _, field = name.partition(".")
    return getattr(_part(experiment, group), field, _ABSENT)


def _value(experiment: Experiment, name: str) -> Any:
    """Return the value of a setting, a fact, or what a group's option is made of."""
    if name in FACTS:
        return FACTS[name](experiment)
    part = _part(experiment, name)
    if "." in name or part is None:
        return _setting(experiment, name)
    if name in SCHEMAS:
        return getattr(part, {"precision": "lowest", "tracking": "kind"}.get(name, ""), _kind(name, part))
    return part


def found(combination: str, experiment: Experiment) -> str | None:
    """Return a combination with the experiment's own values; None where it does not have it."""
    words = re.split(r"\b(with|without) ", f"with {combination}")[1:]
    shown = []
    for word, term in zip(words[::2], words[1::2], strict=True):
        name, relation, wanted = re.findall(r"([^=>]+)([=>]?)(.*)", term.strip())[0]
        value = _value(experiment, name)
        text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        if relation == ">":
            holds = isinstance(value, int) and value > int(wanted)
        else:
            holds = any(fnmatchcase(text, each) for each in wanted.split(",")) if relation else bool(value)
        if value is _ABSENT or holds == (word == "without"):
            return None
        shown.append(f"{word} {name}" if name in FACTS else f"with {name}={text}")
    return " ".join(shown)


@dataclass(frozen=True)
class Rule:
    """A combination that cannot work: why, and what to type."""

    combination: str
    reason: str
    fix: str

    def error(self, experiment: Experiment) -> UserError | None:
        """Error for an experiment that has the combination."""
        text = found(self.combination, experiment)
        return UserError(f"{text.removeprefix('with ')}: {self.reason}", "", self.fix) if text else None
