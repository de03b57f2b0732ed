"""Refused combinations of settings, as rows of tables for the checks and the documentation."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.config.experiment import Experiment
from pipeline.system import machine
from stages.errors import UserError
from stages.settings.data import DataSettings
from stages.settings.model import ModelSettings
from stages.settings.strategy import (
    CentralStorageSettings,
    MirroredSettings,
    MultiWorkerSettings,
    StrategySettings,
    TpuSettings,
)
from stages.settings.train import TrainSettings

Condition = Callable[[Experiment], bool]


@dataclass(frozen=True)
class Refusal:
    """A combination that cannot work.

    problem, reason: with values of the experiment in braces; see `values`.
    expected, fix: as in UserError.
    """

    when: Condition
    problem: str
    reason: str
    expected: str | tuple[str, ...]
    fix: str

    def error(self, experiment: Experiment) -> UserError:
        """Returns the error for an experiment that has this combination."""
        text = f"{self.problem}: {self.reason}".format_map(values(experiment))
        return UserError(text, self.expected, self.fix.format_map(values(experiment)))


def values(experiment: Experiment) -> Mapping[str, object]:
    """Returns the values of an experiment for the texts of refusals."""
    training = experiment.of("train", TrainSettings)
    network = experiment.settings.get("model")
    exported = experiment.settings.get("export")
    gpu = next(iter(gpus_without_bfloat16()), None)
    return {
        "cluster": experiment.choices.get("cluster"),
        "strategy": experiment.choices.get("strategy"),
        "replicas": expected_replicas(experiment),
        "precision": policy(experiment),
        "model": experiment.choices.get("model"),
        "augment": experiment.choices.get("augment"),
        "weights": getattr(network, "weights", None),
        "optimizer": getattr(getattr(training, "optimizer", None), "name", None),
        "batch_size": getattr(training, "batch_size", None),
        "last_batch": last_batch(experiment),
        "checkpoint_every_steps": getattr(training, "checkpoint_every_steps", None),
        "steps_per_epoch": steps_per_epoch(experiment),
        "jit": getattr(training, "jit", None),
        "epochs": getattr(training, "epochs", None),
        "enough_epochs": _enough_epochs(training) if training else None,
        "fine_tune_epochs": getattr(training, "fine_tune_epochs", None),
        "schedule": getattr(getattr(training, "schedule", None), "name", None),
        "register": getattr(exported, "register", None),
        "alias": getattr(exported, "alias", None),
        "promote_if": getattr(exported, "promote_if", None),
        "gpu": gpu and gpu.name,
        "compute_capability": gpu and ".".join(map(str, gpu.compute_capability)),
    }


def _enough_epochs(settings: TrainSettings) -> int:
    """Returns the number of epochs in which every setting that counts epochs takes effect."""
    schedule = settings.schedule
    return math.floor(max(*schedule.decay_epochs, schedule.patience, settings.early_stopping_patience)) + 1


def has(
    stage: str, kind: type | tuple[type, ...], applies: Callable[[Any], object] = lambda settings: True
) -> Condition:
    """Returns the condition that a stage has settings of `kind`, and that `applies` is true of them."""

    def condition(experiment: Experiment) -> bool:
        settings = experiment.settings.get(stage)
        return isinstance(settings, kind) and bool(applies(settings))

    return condition


def all_of(*conditions: Condition) -> Condition:
    """Returns the condition that all of `conditions` are met."""
    return lambda experiment: all(condition(experiment) for condition in conditions)


def runs_under(*kinds: type) -> Condition:
    """Returns the condition that the strategy is one of `kinds`."""
    return has("strategy", kinds)


def has_precision(*names: str) -> Condition:
    """Returns the condition that the precision is one of `names`; see `policy`."""
    return lambda experiment: policy(experiment) in names


def policy(experiment: Experiment) -> str | None:
    """Returns the precision by its name, such as `mixed`; that of the fewest digits where layers have their own."""
    settings = experiment.of("model", ModelSettings)
    return settings.precision.lowest if settings else None


def last_batch(experiment: Experiment) -> int:
    """Returns the number of examples in the last batch of an epoch, as far as known; 0 without training."""
    training = experiment.of("train", TrainSettings)
    data = experiment.of("load", DataSettings)
    if training is None:
        return 0
    examples = data.train_examples() if data else None
    return (examples or 0) % training.batch_size or training.batch_size


def steps_per_epoch(experiment: Experiment) -> int | None:
    """Returns the number of steps of an epoch; None where it is unknown before the examples are read."""
    training = experiment.of("train", TrainSettings)
    data = experiment.of("load", DataSettings)
    examples = data.train_examples() if data else None
    return -(-examples // training.batch_size) if training and examples else None


def gpus_without_bfloat16() -> list[machine.Gpu]:
    """Returns the GPUs of this machine that cannot compute in bfloat16."""
    return [gpu for gpu in machine.gpus() if gpu.compute_capability < (8, 0)]


def expected_replicas(experiment: Experiment) -> int | None:
    """Returns the number of replicas that share a batch; None where it is unknown without TensorFlow."""
    settings = experiment.settings.get("strategy")
    gpus = len(machine.gpus())
    if isinstance(settings, (MirroredSettings, CentralStorageSettings)):
        return len(settings.devices) or gpus or settings.cpu_replicas
    if isinstance(settings, MultiWorkerSettings):
        return experiment.cluster.replicas(settings.workers, gpus)
    if isinstance(settings, TpuSettings) or not isinstance(settings, StrategySettings):
        return None
    return 1


def batch_is_shared(experiment: Experiment) -> None:
    """Refuses a batch, or a training split as far as it is known, that the replicas cannot share."""
    settings = experiment.of("train", TrainSettings)
    replicas = expected_replicas(experiment)
    data = experiment.of("load", DataSettings)
    if settings and replicas:
        settings.check_share(replicas, data.train_examples() if data else None)
