"""Settings of the task: what is predicted, its loss and its metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stages.errors import UserError
from stages.settings.ranges import choice, option

METRICS = ("loss", "accuracy", "auc", "rmse", "mae", "r2", "macro_f1", "exact_match")
"""Metrics of the project's own tasks."""


@dataclass(kw_only=True)
class TaskSettings:
    """The task: its kind, its loss, its metrics."""

    kind: str = choice("auto", "auto", "classification", "multi_label", "regression")
    """`auto`: by the target."""
    _target_: str | None = None
    """A class of your own that extends `stages.tasks.task.Task`; null: the project's."""
    loss: dict[str, Any] = field(default_factory=dict)
    """`_target_`: a loss of Keras' or your own, and its arguments; empty: the task's."""
    metrics: list[Any] = field(default_factory=list)
    """Further metrics, each a mapping with the `_target_` of a Keras metric whose state is made of sums."""

    def check(self, path: str) -> None:
        places = {f"{path}.metrics[{place}]": entry for place, entry in enumerate(self.metrics)}
        for name, entry in {**places, **({f"{path}.loss": self.loss} if self.loss else {})}.items():
            if not isinstance(entry, Mapping) or not isinstance(entry.get("_target_"), str):
                raise UserError(
                    f"{name}={entry} names no function or class",
                    "a mapping with `_target_` and its arguments",
                    f"{path}.loss._target_=keras.losses.Huber"
                    if name.endswith("loss")
                    else f"'{path}.metrics=[{{_target_: keras.metrics.MeanAbsolutePercentageError}}]'",
                )


@option("task", "auto")
@dataclass(kw_only=True)
class AutoTaskSettings(TaskSettings):
    """The kind of the task follows from the target."""

    kind: str = choice("auto", "auto")
    single_logit: bool = False
    """Whether two classes get one output, a sigmoid's, and the area under the ROC curve as a metric."""


@option("task", "classification")
@dataclass(kw_only=True)
class ClassificationSettings(AutoTaskSettings):
    """One of several classes."""

    kind: str = choice("classification", "classification")


@option("task", "multi_label")
@dataclass(kw_only=True)
class MultiLabelSettings(TaskSettings):
    """Several labels, each of which holds or does not."""

    kind: str = choice("multi_label", "multi_label")


@option("task", "regression")
@dataclass(kw_only=True)
class RegressionSettings(TaskSettings):
    """One or several numbers."""

    kind: str = choice("regression", "regression")
