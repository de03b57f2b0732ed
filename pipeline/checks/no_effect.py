"""Settings that were typed and that nothing reads: refused, with what gives them an effect.

Only typed settings count: an experiment's file may hold some that another choice leaves without effect.
"""

import dataclasses
import re
from collections.abc import Iterable

from omegaconf import OmegaConf

from pipeline.checks.rules import found
from pipeline.config.experiment import Experiment
from pipeline.config.schemas import TopSettings, top_level_key
from pipeline.paths import CONF
from stages.errors import UserError
from stages.settings.images import AugmentSettings

READ_BY = {"optimizer": "train", "schedule": "train", "precision": "model"}
"""From groups that are not stages to the stage that reads them."""

NAMED_BY = {"normalize": "method", "precision": "policy"}
"""From groups whose options differ in one setting, which has the option's name, to that setting."""

_HOW_TO_AUGMENT = ("_target_", "where", "without_color", "magnitude")
"""Settings that by themselves change no image."""

_NO_STAGE = {"tracking", "cluster", "pipeline", "sweep", "experiment", "debug"}


UNREAD = (
    (r"tracking\.(?!kind).*", "tracking=off", "tracking=local"),
    (r"tracking\.uri", "tracking=local", "tracking=server"),
    (r"cluster\.restarts", "cluster=local without workers", "strategy=multi_worker"),
    (r"cluster\.(timeout_seconds|port)", "cluster=slurm without workers", "strategy=multi_worker"),
    (r"strategy\.(workers|servers)", "cluster=tf_config,hosts,custom", "cluster=local"),
    (r"strategy\.cpu_replicas", "strategy.devices", "strategy.devices=[]"),
    (r"train\.fine_tune_(layers|rate)", "train.fine_tune_epochs=0", "train.fine_tune_epochs=5"),
    (r"train\.(cache_features|checkpoint\w+)", "train=fit", "train=loop"),
    (r"train\.cache_features", "model.frozen=false", "model=mobilenet_v2 model.frozen=true"),
    (r"train\.cache_features", "changes of single images", "augment=none"),
    (r"train\.cache_features", "mixed images", "augment=none"),
    (r"augment\.magnitude", "augment.rand_augment=0", "augment.rand_augment=2"),
    (r"augment\.where", "augment=* without changes of single images", "augment=flip"),
    (r"export\.promote_if", "export.alias=null", "export.alias=champion"),
    (r"data\.resize", "data.size=null", "data.size=160"),
    (r"data\.val_fraction", "a split val of its own", "data.dir=<a data set without it>"),
    (r"data\.test_fraction", "a split test of its own", "data.dir=<a data set without it>"),
)
"""Names that may be typed, the combination beside which nothing reads them, and a setting that gives them an effect."""


def refuse_unused(experiment: Experiment, names: Iterable[str]) -> None:
    """Raise UserError for the first of `names`, dotted as they were typed, that nothing in `experiment` reads."""
    for name in names:
        _refuse_without_stage(experiment, name)
        _refuse_undone(experiment, name)
        for pattern, combination, fix in UNREAD:
            if re.fullmatch(pattern, name) and (beside := found(combination, experiment)):
                raise UserError(f"{name} has no effect {beside}", "", fix)


def _refuse_without_stage(experiment: Experiment, name: str) -> None:
    group = re.split(r"[./@]", name)[0]
    if group in _NO_STAGE or group in {top_level_key(entry.name) for entry in dataclasses.fields(TopSettings)}:
        return
    stages = {group: stage for stage, group in experiment.groups.items()}
    stage = READ_BY.get(group, stages.get(group, "load" if group == "data" else group))
    if stage not in experiment.pipeline:
        makes = OmegaConf.select(OmegaConf.load(CONF / "pipeline" / "standard.yaml"), stage)
        is_null = makes is not None and stage in experiment.document.pipeline
        raise UserError(
            f"{name} has no effect: `pipeline` leaves the stage {stage} out",
            experiment.pipeline,
            f"pipeline.{stage}={makes}" if is_null else "pipeline=standard",
        )


def _refuse_undone(experiment: Experiment, group: str) -> None:
    """Raise UserError where an option of `group` was typed, and an experiment's file or the command undoes it.

    A sweep over such options would give runs with names of their own and the same numbers.
    """
    option = experiment.choices.get(group)
    if group in NAMED_BY and (CONF / group / f"{option}.yaml").is_file():
        name = f"{group}.{NAMED_BY[group]}"
        value = OmegaConf.select(experiment.document, name)
        if value != option:
            raise UserError(f"{group}={option} has no effect beside {name}={value}", "", f"{name}={option}")
    augment, off = experiment.of("augment", AugmentSettings), AugmentSettings()
    if group == "augment" and option == "none" and augment:
        names = [entry.name for entry in dataclasses.fields(off) if entry.name not in _HOW_TO_AUGMENT]
        undone = {name: value for name in names if (value := getattr(augment, name)) != getattr(off, name)}
        if undone:
            given, fix = (
                " ".join(f"augment.{name}={getattr(settings, name)}".lower() for name in undone)
                for settings in (augment, off)
            )
            raise UserError(f"augment=none has no effect beside {given}", "", fix)
