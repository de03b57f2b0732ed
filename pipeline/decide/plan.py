"""The plan of a run: its stages in order, and the inputs of each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.config.experiment import Experiment
from pipeline.targets import load, named_parameters, signature
from stages.errors import UserError
from stages.targets import target_of

TRAIN = "train"
"""The stage that a run which reuses results never repeats."""

FROM_RUNNER = ("settings", "reporter", "folder", "cache")
"""Parameters of a stage that the runner provides."""


@dataclass(frozen=True)
class PlannedStage:
    """A stage of a run."""

    name: str
    target: str
    """The import path of its function."""
    option: str
    """The chosen option of its group."""
    inputs: tuple[str, ...]
    """The results of earlier stages that it needs."""
    makes: str
    """The name of its result."""
    saved: Path | None = None
    """The folder with its result from an earlier run, which is reused; None if the stage runs."""
    is_needed: bool = True
    """Whether it is run or reused; False for a stage before `from` whose result no stage needs."""

    @property
    def action(self) -> str:
        """Its part in the run: `runs`, `reused` or `skipped`."""
        return "skipped" if not self.is_needed else "runs" if self.saved is None else "reused"

    @property
    def trains(self) -> bool:
        """Whether it trains, which only one job of a sweep does at a time in one slot."""
        return self.name == TRAIN

    @property
    def is_custom(self) -> bool:
        """Whether its function is the user's own."""
        return not self.target.startswith("stages.")

    def load(self) -> Callable[..., Any]:
        """Import the function, and with it TensorFlow."""
        return load(self.name, self.target)


def make_plan(experiment: Experiment) -> tuple[PlannedStage, ...]:
    """Return the stages in order, each with its inputs.

    Raises:
        UserError: If the function of a stage does not exist, needs a result that no earlier stage returns, or does not
            accept the settings that the stage has.
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
    """Refuse settings of a custom stage whose function has no parameter `settings`, and so would not receive them."""
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
    """Return the names of the stages after training; empty if there is no training stage."""
    names = list(experiment.pipeline)
    return names[names.index(TRAIN) + 1 :] if TRAIN in names else []


def mark_needed(plan: Sequence[PlannedStage], first: int) -> list[PlannedStage]:
    """Return `plan` with stages before the index `first` marked as skipped, unless a needed stage uses their result."""
    wanted: set[str] = set()
    stages: list[PlannedStage] = []
    for index in reversed(range(len(plan))):
        stage = plan[index]
        is_needed = index >= first or stage.makes in wanted
        if is_needed:
            wanted = (wanted - {stage.makes}) | set(stage.inputs)
        stages.append(replace(stage, is_needed=is_needed))
    return stages[::-1]
