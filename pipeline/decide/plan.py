"""The plan of a run: its stages in order, and the results that each takes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.config.experiment import Experiment
from pipeline.targets import load, named_parameters, signature
from stages.errors import UserError
from stages.targets import target_of

TRAIN = "train"
"""The stage that is never run again."""

FROM_RUNNER = ("settings", "reporter", "folder", "cache")
"""Parameters of a stage that the runner provides."""


@dataclass(frozen=True)
class PlannedStage:
    """target: the function's import path; inputs: the results that it takes; makes: the name of its own.

    saved: the folder with its result of an earlier run, which is taken over; None: the stage runs.
    is_needed: whether it runs at all; False for one before `from` whose result nothing takes.
    """

    name: str
    target: str
    option: str
    inputs: tuple[str, ...]
    makes: str
    saved: Path | None = None
    is_needed: bool = True

    @property
    def action(self) -> str:
        """Its part in a run that begins with a later stage: `runs`, `reused` or `skipped`."""
        return "skipped" if not self.is_needed else "runs" if self.saved is None else "reused"

    def load(self) -> Callable[..., Any]:
        """Import the function, and with it TensorFlow."""
        return load(self.name, self.target)


def make_plan(experiment: Experiment) -> tuple[PlannedStage, ...]:
    """Return the stages in order, each with the results that it takes.

    Raises:
        UserError: If a stage's function does not exist, takes what no earlier stage makes, or takes no settings and
            has some.
    """
    plan: list[PlannedStage] = []
    results: list[str] = []
    for name, makes in experiment.pipeline.items():
        target = str(target_of(experiment.settings[name]) or "")
        parameters = named_parameters(signature(name, target))
        if "settings" not in parameters:
            _refuse_settings_without_reader(experiment, name, target)
        inputs = []
        for parameter, entry in parameters.items():
            if parameter in results:
                inputs.append(parameter)
            elif entry.default is entry.empty and parameter not in FROM_RUNNER:
                raise UserError(
                    f"the stage {name} requires `{parameter}`, which no earlier stage returns",
                    f"a stage before {name} that returns `{parameter}`",
                    f"pipeline.<stage>={parameter}",
                )
        option = experiment.choices.get(experiment.groups[name], "")
        plan.append(PlannedStage(name, target, option, tuple(inputs), makes))
        results.append(makes)
    return tuple(plan)


def _refuse_settings_without_reader(experiment: Experiment, stage: str, target: str) -> None:
    """Refuse settings of a custom stage whose function would never see them: it gets all as `settings`, or none."""
    settings = experiment.settings[stage]
    names = [name for name in settings if name != "_target_"] if isinstance(settings, Mapping) else []
    if names:
        name = f"{experiment.groups[stage]}.{names[0]}"
        raise UserError(
            f"{name} has no effect: {target} has no parameter `settings`",
            f"def {target.rpartition('.')[2]}(…, settings), which receives the settings as a mapping or dataclass",
            f"~{name}",
        )


def after_training(experiment: Experiment) -> list[str]:
    """Return the stages after training; none where nothing trains."""
    names = list(experiment.pipeline)
    return names[names.index(TRAIN) + 1 :] if TRAIN in names else []


def mark_needed(plan: Sequence[PlannedStage], first: int) -> list[PlannedStage]:
    """Return `plan` with the stages before `first` left out whose results no stage takes that is not."""
    wanted: set[str] = set()
    stages: list[PlannedStage] = []
    for index in reversed(range(len(plan))):
        stage = plan[index]
        is_needed = index >= first or stage.makes in wanted
        if is_needed:
            wanted = (wanted - {stage.makes}) | set(stage.inputs)
        stages.append(replace(stage, is_needed=is_needed))
    return stages[::-1]
