"""Stages with their functions imported and their settings typed: addresses in them become folders of this machine."""

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from pipeline.checks.own_settings import typed
from pipeline.config.experiment import Experiment
from pipeline.planning.plan import PlannedStage
from pipeline.run_folder.runs import Runs
from pipeline.source_code.annotations import as_dataclass
from pipeline.system.environment import quiet_stderr
from pipeline.tracking.weights import local_weights, run_of_model
from stages.settings.model import ModelSettings
from stages.settings.results import EvaluateSettings


@dataclasses.dataclass(frozen=True)
class BoundStage:
    """A stage with its function imported and its settings typed."""

    planned: PlannedStage
    function: Callable[..., Any]
    settings: Any


def bind(plan: Sequence[PlannedStage], experiment: Experiment) -> list[BoundStage]:
    """Imports all stages, and with them TensorFlow, and binds their settings.

    Raises:
        UserError: where a stage cannot be imported, or its settings are not of the type that it declares.
    """
    bound = []
    with quiet_stderr():
        for planned in plan:
            function = planned.load()
            name = planned.name
            settings = _typed(function, experiment.groups[name], experiment.settings[name], experiment.document)
            bound.append(BoundStage(planned, function, settings))
    return bound


def resolve_local_weights(stages: Sequence[BoundStage], experiment: Experiment) -> list[BoundStage]:
    """Returns `stages` with local folders in place of `runs:/<run id>` and `models:/…`.

    Raises:
        UserError: where MLflow does not answer, or has no such model.
    """
    return [
        dataclasses.replace(stage, settings=dataclasses.replace(stage.settings, weights=str(folder)))
        if isinstance(stage.settings, ModelSettings) and (folder := _local_weights(stage.settings, experiment))
        else stage
        for stage in stages
    ]


def _local_weights(settings: ModelSettings, experiment: Experiment) -> Path | None:
    """Returns the folder of tracked weights: the run's own where it is here, as it knows what they were trained on."""
    folder = local_weights(settings, experiment)
    if folder is None:
        return None
    run = Runs(experiment.outputs).with_id(run_of_model(settings.weights, experiment.tracking, experiment.outputs))
    own = run / "export" / "saved_model" if run is not None else folder
    return own if own.is_dir() else folder


def resolve_other_run(stages: Sequence[BoundStage], folder: Path | None) -> list[BoundStage]:
    """Returns bound stages with the folder in place of what the user has typed; None: compared by another process."""
    return [
        dataclasses.replace(
            stage, settings=dataclasses.replace(stage.settings, against=str(folder) if folder is not None else None)
        )
        if isinstance(stage.settings, EvaluateSettings)
        else stage
        for stage in stages
    ]


def _typed(function: Callable[..., Any], group: str, settings: Any, document: DictConfig) -> Any:
    """Returns settings as the dataclass that `function` declares, if they have no schema."""
    annotation = getattr(function, "__annotations__", {}).get("settings")
    if isinstance(annotation, str):  # in a module with `from __future__ import annotations`
        annotation = eval(annotation, vars(sys.modules[function.__module__]))
    declared = as_dataclass(annotation)
    return typed(declared, group, settings, document) if isinstance(settings, Mapping) and declared else settings
