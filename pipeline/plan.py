"""The plan: which stages run in which order, on whose results."""

import ast
import functools
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config import Experiment
from pipeline.environment import quiet_stderr
from stages.errors import UserError

GIVEN_BY_RUNNER = ("settings", "reporter", "folder", "cache")
"""Parameters of a stage that no earlier stage makes."""


@dataclass(frozen=True)
class PlannedStage:
    """target: the function's import path; inputs: the results it takes; makes: the name of its own."""

    name: str
    target: str
    option: str
    inputs: tuple[str, ...]
    makes: str

    def load(self) -> Callable[..., Any]:
        """Imports the function, and with it TensorFlow.

        Raises:
            UserError: where the module has no such function.
        """
        module, _, function = self.target.rpartition(".")
        found = getattr(importlib.import_module(module), function, None)
        if not callable(found):
            raise _no_function(self.name, self.target)
        return found


def make_plan(experiment: Experiment) -> tuple[PlannedStage, ...]:
    """Returns the stages in order, each with the results that it will be given.

    Raises:
        UserError: where a stage's function does not exist, or takes what no earlier stage makes.
    """
    plan: list[PlannedStage] = []
    made: list[str] = []
    for name, makes in experiment.pipeline.items():
        target = _target(experiment.settings[name], name)
        inputs = []
        for parameter, required in parameters(name, target).items():
            if parameter in made:
                inputs.append(parameter)
            elif required and parameter not in GIVEN_BY_RUNNER:
                raise UserError(
                    f"the stage {name} takes `{parameter}`, which no earlier stage makes",
                    ", ".join([*dict.fromkeys(made), *GIVEN_BY_RUNNER]),
                    f"pipeline=<a pipeline whose stage before {name} makes `{parameter}`>",
                )
        option = experiment.choices.get(experiment.groups[name], "")
        plan.append(PlannedStage(name, target, option, tuple(inputs), makes))
        made.append(makes)
    return tuple(plan)


@functools.cache  # every job of a sweep has the same stages
def parameters(stage: str, target: str) -> Mapping[str, bool]:
    """Returns a function's parameters and whether each is required, read from its source.

    Importing it would start TensorFlow, and a wrong plan has to be known before that. A function that is not written
    out in its module (made by a decorator, imported from elsewhere) is imported after all.
    """
    module, _, function = target.rpartition(".")
    try:
        spec = importlib.util.find_spec(module) if module else None
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise _no_function(stage, target)
    if spec.origin and spec.origin.endswith(".py"):
        body = ast.parse(Path(spec.origin).read_text()).body
        for node in body:
            if isinstance(node, ast.FunctionDef) and node.name == function and not node.decorator_list:
                return _of_definition(node.args)
        if function not in _names(body):
            raise _no_function(stage, target)
    with quiet_stderr():
        found = getattr(importlib.import_module(module), function, None)
    if not callable(found):
        raise _no_function(stage, target)
    empty = inspect.Parameter.empty
    return {name: entry.default is empty for name, entry in inspect.signature(found).parameters.items()}


def _names(body: list[ast.stmt]) -> set[str]:
    """Returns every name that a module's statements mention."""
    found = {node.id for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name)}
    for statement in body:
        found |= {part.asname or part.name for part in getattr(statement, "names", []) if isinstance(part, ast.alias)}
        found |= {statement.name} if isinstance(statement, (ast.FunctionDef, ast.ClassDef)) else set()
    return found


def _of_definition(arguments: ast.arguments) -> dict[str, bool]:
    positional = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args]]
    required = len(positional) - len(arguments.defaults)
    found = {name: index < required for index, name in enumerate(positional)}
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found[argument.arg] = default is None
    return found


def _target(settings: Any, stage: str) -> str:
    target = settings.get("_target_") if isinstance(settings, Mapping) else getattr(settings, "_target_", None)
    if not target:
        raise UserError(
            f"the settings of the stage {stage} name no function", "`_target_` in its YAML file", f"+{stage}._target_=…"
        )
    return str(target)


def _no_function(stage: str, target: str) -> UserError:
    return UserError(
        f"the stage {stage} cannot find {target}",
        "the import path of a function, its package installed or in the working directory",
        f"{stage}._target_=my_package.my_module.my_function",
    )
