"""Settings that were typed and have no effect: refused, with the setting that gives them one.

Only typed settings count: an experiment's file may hold some that another choice leaves without effect.
"""

import dataclasses
import re
from collections.abc import Iterable

from omegaconf import OmegaConf

from pipeline.checks.refusal import values
from pipeline.checks.unread import UNUSED
from pipeline.config.experiment import Experiment
from pipeline.config.schemas import TopSettings, top_level_key
from pipeline.paths import CONF
from pipeline.source_code.signatures import AbsentError, find, signature
from stages.errors import UserError
from stages.settings.images import AugmentSettings
from stages.targets import target_of

NEEDED_BY = {"optimizer": "train", "schedule": "train", "precision": "model"}
"""From groups that are not stages to the stage that reads them."""

NAMED_BY = {"normalize": "method", "precision": "policy", "schedule": "name", "tracking": "kind"}
"""From groups whose options differ in one setting, which has the option's name, to that setting."""

_HOW_TO_AUGMENT = ("_target_", "where", "without_color", "magnitude")
"""Settings that by themselves change no image."""

_NO_STAGE = {"tracking", "cluster", "pipeline", "sweep", "experiment", "debug"}


def refuse_unused(experiment: Experiment, names: Iterable[str]) -> None:
    """Raises UserError for the first of `names`, dotted as they were typed, that nothing in `experiment` reads."""
    for name in names:
        _refuse_without_stage(experiment, name)
        _refuse_undone(experiment, name)
        for row in UNUSED:
            if re.fullmatch(row.names, name) and row.when(experiment):
                reason = row.reason.format_map(values(experiment))
                raise UserError(f"{name} has no effect: {reason}", "", row.fix.format_map(values(experiment)))


def _refuse_without_stage(experiment: Experiment, name: str) -> None:
    group = re.split(r"[./@]", name)[0]
    stages = {group: stage for stage, group in experiment.groups.items()}
    top_level = {top_level_key(entry.name) for entry in dataclasses.fields(TopSettings)} | _NO_STAGE
    stage = NEEDED_BY.get(group, stages.get(group, "load" if group == "data" else group))
    _refuse_without_reader(experiment, name, stage)
    if group not in top_level and stage not in experiment.pipeline:
        makes = OmegaConf.select(OmegaConf.load(CONF / "pipeline" / "standard.yaml"), stage)
        is_null = makes is not None and stage in experiment.document.pipeline
        raise UserError(
            f"{name} has no effect: `pipeline` leaves the stage {stage} out",
            experiment.pipeline,
            f"pipeline.{stage}={makes}" if is_null else "pipeline=standard",
        )


def _refuse_without_reader(experiment: Experiment, name: str, stage: str) -> None:
    """Raises UserError where a function of the user's own, in place of a stage's, takes no settings."""
    target = str(target_of(experiment.settings.get(stage)) or "")
    if not target or target.startswith("stages.") or name in (experiment.groups[stage], f"{stage}._target_"):
        return
    try:
        call = signature(find(target))
    except AbsentError:  # refused elsewhere
        return
    if call is not None and "settings" not in call.parameters:
        raise without_reader(name, target)


def without_reader(name: str, target: str, fix: str = "") -> UserError:
    """Returns the error for a setting of a custom stage whose function `target` takes none."""
    function = target.rpartition(".")[2]
    return UserError(
        f"{name} has no effect: {target} has no parameter `settings`",
        f"def {function}(…, settings), which gets all of the stage's, as a mapping or by its annotation as a dataclass",
        fix,
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
    augment = experiment.of("augment", AugmentSettings)
    if group == "augment" and option == "none" and augment:
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
