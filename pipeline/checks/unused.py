"""Settings that were typed and have no effect: refused, with the setting that gives them one.

Only typed settings count: an experiment's file may hold some that another choice leaves without effect.
"""

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from pipeline.checks.refusal import Condition, train, values
from pipeline.cluster.task import cluster_settings
from pipeline.config.experiment import Experiment
from pipeline.config.schemas import TopSettings, top_level_key
from pipeline.paths import CONF
from stages.errors import UserError
from stages.settings.data import ImagesSettings, TfdsSettings
from stages.settings.images import AugmentSettings
from stages.settings.optimizer import SgdSettings
from stages.settings.results import ExportSettings
from stages.settings.strategy import CentralStorageSettings, MirroredSettings, ModelParallelSettings

NEEDED_BY = {"optimizer": "train", "schedule": "train", "precision": "model"}
"""From groups that are not stages to the stage that reads them."""

NAMED_BY = {"normalize": "method", "precision": "policy", "schedule": "name", "tracking": "kind"}
"""From groups whose options differ in one setting, which has the option's name, to that setting."""

_HOW_TO_AUGMENT = ("_target_", "where", "without_color", "magnitude")
"""Settings that by themselves change no image."""

_NO_STAGE = {"tracking", "cluster", "pipeline", "sweep", "experiment", "debug"}


@dataclass(frozen=True)
class Unused:
    """Settings that nothing reads in some experiments.

    names: their dotted names, as a regular expression.
    when: the experiments in which nothing reads them.
    reason: why, with values in braces; see `refusal.values`.
    fix: a setting with which they have an effect.
    """

    names: str
    when: Condition
    reason: str
    fix: str


def refuse_unused(experiment: Experiment, names: Iterable[str]) -> None:
    """Raises UserError for the first of `names`, dotted as they were typed, that nothing in `experiment` reads."""
    for name in names:
        _refuse_without_stage(experiment, name)
        _refuse_undone(experiment, name)
        for row in UNUSED:
            if re.fullmatch(row.names, name) and row.when(experiment):
                reason = row.reason.format_map(values(experiment))
                raise UserError(f"{name} has no effect: {reason}", "", row.fix)


def _refuse_without_stage(experiment: Experiment, name: str) -> None:
    group = re.split(r"[./@]", name)[0]
    stages = {group: stage for stage, group in experiment.groups.items()}
    top_level = {top_level_key(entry.name) for entry in dataclasses.fields(TopSettings)} | _NO_STAGE
    stage = NEEDED_BY.get(group, stages.get(group, "load" if group == "data" else group))
    if group not in top_level and stage not in experiment.pipeline:
        raise UserError(
            f"{name} has no effect: `pipeline` leaves the stage {stage} out", experiment.pipeline, "pipeline=standard"
        )


def _refuse_undone(experiment: Experiment, group: str) -> None:
    """Raises UserError where the option of `group` was typed, and an experiment's file or the command undoes it.

    A sweep over such options would give runs with names of their own and the same numbers.
    """
    option = experiment.choices.get(group)
    if group in NAMED_BY and (CONF / group / f"{option}.yaml").is_file():
        name = f"{group}.{NAMED_BY[group]}"
        value = OmegaConf.select(experiment.document, name)
        if value != option:
            raise UserError(
                f"{group}={option} has no effect beside {name}={value}", f"no {name} in a file", f"{name}={option}"
            )
    augment = experiment.settings.get("augment")
    if group == "augment" and option == "none" and isinstance(augment, AugmentSettings):
        off = AugmentSettings()
        names = [entry.name for entry in dataclasses.fields(augment) if entry.name not in _HOW_TO_AUGMENT]
        active = [name for name in names if getattr(augment, name) != getattr(off, name)]
        given, fix = (
            " ".join(f"augment.{name}={getattr(settings, name)}".lower() for name in active)
            for settings in (augment, off)
        )
        if active:
            raise UserError(
                f"augment=none has no effect beside {given}", "none of them in a file", f"augment=none {fix}"
            )


def _of_schedule(setting: str, *readers: str) -> Unused:
    """Returns the row of a setting that only the schedules in `readers` read."""

    def is_unread(experiment: Experiment) -> bool:
        settings = train(experiment)
        return settings is not None and settings.schedule.name not in readers

    reason = f"schedule={{schedule}} does not read it, but {', '.join(readers)}"
    return Unused(rf"schedule\.{setting}", is_unread, reason, f"schedule={readers[0]}")


def _has_no_members(experiment: Experiment) -> bool:
    return cluster_settings(experiment) is None and not experiment.cluster.places_jobs


def _names_devices(experiment: Experiment) -> bool:
    strategy = experiment.settings.get("strategy")
    several = (MirroredSettings, CentralStorageSettings, ModelParallelSettings)
    return isinstance(strategy, several) and bool(strategy.devices)


def _has_no_momentum(experiment: Experiment) -> bool:
    settings = train(experiment)
    optimizer: Any = settings.optimizer if settings else None
    return isinstance(optimizer, SgdSettings) and optimizer.nesterov and not optimizer.momentum


def _does_not_fine_tune(experiment: Experiment) -> bool:
    settings = train(experiment)
    return settings is not None and not settings.fine_tune_epochs


def _names_no_alias(experiment: Experiment) -> bool:
    settings = experiment.settings.get("export")
    return isinstance(settings, ExportSettings) and settings.alias is None


def _draws_no_operations(experiment: Experiment) -> bool:
    augment = experiment.settings.get("augment")
    return isinstance(augment, AugmentSettings) and not augment.rand_augment


def _keeps_sizes(experiment: Experiment) -> bool:
    data = experiment.settings.get("load")
    return isinstance(data, ImagesSettings) and data.size is None


def _names_split(name: str) -> Condition:
    """Returns the condition that the split `name` of a TFDS data set, such as `val_split`, is set."""

    def applies(experiment: Experiment) -> bool:
        data = experiment.settings.get("load")
        return isinstance(data, TfdsSettings) and getattr(data, name) is not None

    return applies


UNUSED: tuple[Unused, ...] = (
    _of_schedule("warmup_epochs", "constant", "cosine", "step", "custom"),
    _of_schedule("final_share", "cosine", "plateau"),
    _of_schedule("decay_epochs", "step"),
    _of_schedule("decay_factor", "step", "plateau"),
    _of_schedule("patience", "plateau"),
    Unused(
        r"tracking\.(_target_|options.*|note|tags.*|system_metrics|untracked)",
        lambda experiment: experiment.tracking.kind == "off",
        "tracking=off records nothing",
        "tracking=local",
    ),
    Unused(
        r"tracking\.uri",
        lambda experiment: experiment.tracking.kind != "server",
        "only tracking=server has an address",
        "tracking=server",
    ),
    Unused(
        r"cluster\.restarts",
        _has_no_members,
        "strategy={strategy} has no workers",
        "strategy=multi_worker",
    ),
    Unused(
        r"strategy\.(workers|servers)",
        lambda experiment: not experiment.cluster.counts_members,
        "cluster={cluster} determines how many there are",
        "cluster=local",
    ),
    Unused(r"strategy\.cpu_replicas", _names_devices, "strategy.devices names the replicas", "strategy.devices=[]"),
    Unused(r"optimizer\.nesterov", _has_no_momentum, "optimizer.momentum=0", "optimizer.momentum=0.9"),
    Unused(
        r"train\.fine_tune_(layers|rate)", _does_not_fine_tune, "train.fine_tune_epochs=0", "train.fine_tune_epochs=5"
    ),
    Unused(r"augment\.magnitude", _draws_no_operations, "augment.rand_augment=0", "augment.rand_augment=2"),
    Unused(r"export\.promote_if", _names_no_alias, "export.alias names none", "export.alias=champion"),
    Unused(r"data\.resize", _keeps_sizes, "data.size=null keeps images as they are", "data.size=160"),
    Unused(
        r"data\.val_fraction", _names_split("val_split"), "data.val_split names the examples", "data.val_split=null"
    ),
    Unused(
        r"data\.test_fraction",
        _names_split("test_split"),
        "data.test_split names the examples",
        "data.test_split=null",
    ),
)
