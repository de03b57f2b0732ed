"""Settings that were typed and would have no effect beside the others: refused, with what gives them one.

Only what was typed counts: an experiment's file may keep what another choice leaves without effect.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import Any

from pipeline.cluster.task import cluster_settings
from pipeline.config.experiment import Experiment
from pipeline.config.schemas import TopSettings
from stages.errors import UserError
from stages.settings.data import ImagesSettings, TfdsSettings
from stages.settings.images import AugmentSettings
from stages.settings.optimizer import SgdSettings
from stages.settings.strategy import CentralStorageSettings, MirroredSettings, ModelParallelSettings
from stages.settings.train import TrainSettings

SCHEDULES = {
    "warmup_epochs": ("constant", "cosine", "step"),
    "final_share": ("cosine", "plateau"),
    "decay_epochs": ("step",),
    "decay_factor": ("step", "plateau"),
    "patience": ("plateau",),
}
"""From each setting of `schedule` to the schedules that read it."""

NEEDED_BY = {"optimizer": "train", "schedule": "train", "precision": "model"}
"""From groups that are no stage to the stage that reads them."""

_NO_STAGE = {"tracking", "cluster", "pipeline", "experiment"}


def refuse_unused(experiment: Experiment, names: Iterable[str]) -> None:
    """Raises UserError for the first of `names`, dotted as they were typed, that nothing in `experiment` reads."""
    for name in names:
        _refuse_of_absent_stage(experiment, name)
        if name.startswith("schedule."):
            _refuse_of_other_schedule(experiment, name)
        for pattern, is_unused, reason, fix in UNUSED:
            if re.fullmatch(pattern, name) and is_unused(experiment):
                raise UserError(f"{name} has no effect: {reason}", "", fix)


def _refuse_of_absent_stage(experiment: Experiment, name: str) -> None:
    group = re.split(r"[./@]", name)[0]
    stages = {given: stage for stage, given in experiment.groups.items()}
    known = {entry.name for entry in dataclasses.fields(TopSettings)} | _NO_STAGE
    stage = NEEDED_BY.get(group, stages.get(group, "load" if group == "data" else group))
    if group not in known and stage not in experiment.pipeline:
        raise UserError(
            f"{name} has no effect: `pipeline` leaves the stage {stage} out",
            experiment.pipeline,
            "pipeline=standard",
        )


def _refuse_of_other_schedule(experiment: Experiment, name: str) -> None:
    setting, train = name.removeprefix("schedule."), experiment.settings.get("train")
    readers = SCHEDULES.get(setting)
    if readers and isinstance(train, TrainSettings) and train.schedule.name not in readers:
        raise UserError(
            f"{name} has no effect: schedule={train.schedule.name} does not read it",
            f"schedule={', '.join(readers)}",
            f"schedule={readers[0]}",
        )


def _is_without_server(experiment: Experiment) -> bool:
    return experiment.tracking.kind != "server"


def _is_without_local_cluster(experiment: Experiment) -> bool:
    return cluster_settings(experiment) is None or experiment.cluster.kind != "local"


def _has_own_cluster(experiment: Experiment) -> bool:
    return experiment.cluster.kind != "local"


def _names_devices(experiment: Experiment) -> bool:
    strategy = experiment.settings.get("strategy")
    several = (MirroredSettings, CentralStorageSettings, ModelParallelSettings)
    return isinstance(strategy, several) and bool(strategy.devices)


def _has_no_momentum(experiment: Experiment) -> bool:
    train = experiment.settings.get("train")
    optimizer: Any = train.optimizer if isinstance(train, TrainSettings) else None
    return isinstance(optimizer, SgdSettings) and optimizer.nesterov and not optimizer.momentum


def _does_not_fine_tune(experiment: Experiment) -> bool:
    train = experiment.settings.get("train")
    return isinstance(train, TrainSettings) and not train.fine_tune_epochs


def _draws_no_operations(experiment: Experiment) -> bool:
    augment = experiment.settings.get("augment")
    return isinstance(augment, AugmentSettings) and not augment.rand_augment


def _keeps_sizes(experiment: Experiment) -> bool:
    data = experiment.settings.get("load")
    return isinstance(data, ImagesSettings) and data.size is None


def _names_validation(experiment: Experiment) -> bool:
    data = experiment.settings.get("load")
    return isinstance(data, TfdsSettings) and data.val_split is not None


def _names_test(experiment: Experiment) -> bool:
    data = experiment.settings.get("load")
    return isinstance(data, TfdsSettings) and data.test_split is not None


UNUSED: tuple[tuple[str, Callable[[Experiment], bool], str, str], ...] = (
    (r"tracking\.uri", _is_without_server, "only tracking=server has an address", "tracking=server"),
    (
        r"cluster\.restarts",
        _is_without_local_cluster,
        "only cluster=local starts processes, for strategy=multi_worker and parameter_server",
        "strategy=multi_worker cluster=local",
    ),
    (r"strategy\.(workers|servers)", _has_own_cluster, "TF_CONFIG says how many there are", "cluster=local"),
    (r"strategy\.cpu_replicas", _names_devices, "strategy.devices names the replicas", "strategy.devices=[]"),
    (r"optimizer\.nesterov", _has_no_momentum, "optimizer.momentum=0", "optimizer.momentum=0.9"),
    (r"train\.fine_tune_(layers|rate)", _does_not_fine_tune, "train.fine_tune_epochs=0", "train.fine_tune_epochs=5"),
    (r"augment\.magnitude", _draws_no_operations, "augment.rand_augment=0", "augment.rand_augment=2"),
    (r"data\.resize", _keeps_sizes, "data.size=null keeps images as they are", "data.size=160"),
    (r"data\.val_fraction", _names_validation, "data.val_split says which examples", "data.val_split=null"),
    (r"data\.test_fraction", _names_test, "data.test_split says which examples", "data.test_split=null"),
)
"""Patterns of names, when nothing reads the settings, why, and what to type for them to have an effect."""
