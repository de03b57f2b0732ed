"""The task as a configuration has it: the one that a target asks for, with the user's choices."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from stages.errors import UserError
from stages.targets import class_at
from stages.tasks.classification import Classification
from stages.tasks.own import own_loss, own_metric
from stages.tasks.task import Task

if TYPE_CHECKING:
    from stages.settings.task import TaskSettings

TRIED = 16
"""Training examples on which losses and metrics are tried."""


def chosen_task(found: Task, settings: TaskSettings, targets: np.ndarray) -> Task:
    """Returns the task of a network.

    Args:
        found: of the data set. targets: of its training split.

    Raises:
        UserError: where the target does not fit, or a loss, a metric or a class cannot be used.
    """
    refuse_other_kind(found, settings.kind)
    if getattr(settings, "single_logit", False):
        if not isinstance(found, Classification) or len(found.names) != 2:
            what = "classes" if isinstance(found, Classification) else "targets"
            raise UserError(
                f"task.single_logit=true with {len(found.names)} {what}",
                "two classes",
                "task.single_logit=false",
            )
        found = found.with_single_logit()
    if settings._target_ is not None:
        found = _own_task(found, settings._target_)
    some = targets[:TRIED]
    if settings.loss:
        found = dataclasses.replace(found, own_loss=own_loss(settings.loss, found, some))
    for place, entry in enumerate(settings.metrics):
        metric = own_metric(entry, place, found, some)
        found = dataclasses.replace(found, own_metrics=(*found.own_metrics, metric))
    return found


def refuse_other_kind(found: Task, kind: str) -> None:
    """Raises UserError where `kind` is another one than the task's, and not `auto`."""
    if kind not in ("auto", found.kind):
        raise UserError(
            f"task={kind}, and the target is one of task={found.kind}: {', '.join(found.names[:5])}",
            f"task={found.kind}, or another target",
            f"task={found.kind}",
        )


def _own_task(found: Task, target: str) -> Task:
    """Returns the task of the class at `target`, made of what is known of the target: names, and mean and std."""
    own = class_at(target, Task, "task", "task._target_=null")
    taken = {field.name for field in dataclasses.fields(own) if field.init}
    facts = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    try:
        made: Task = own(**{name: value for name, value in facts.items() if name in taken})
    except TypeError as error:  # an abstract method, or a further argument
        raise UserError(f"task._target_={target} cannot be made ({error})", "a Task", "task._target_=null") from error
    return made
