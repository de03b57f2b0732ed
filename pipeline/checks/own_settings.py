"""Settings of custom stages, data sources, networks and callbacks, and the classes that they name, by their source."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.config.errors import explain, unknown_key
from pipeline.config.experiment import Experiment
from pipeline.source_code.annotations import declared_settings
from pipeline.source_code.bases import extends
from pipeline.source_code.signatures import AbsentError, find, plain_types, signature
from stages.errors import UserError
from stages.settings.optimizer import CustomOptimizerSettings, CustomScheduleSettings
from stages.settings.ranges import KINDS, check, known_as, wrong_type
from stages.settings.results import ExportSettings
from stages.settings.train import TrainSettings
from stages.targets import target_of

PASSED_BY_STAGES = {"model.network": 2, "schedule.arguments": 2}
"""Leading parameters that stages pass themselves: an image's shape and the classes, the peak rate and the steps."""


def check_own_settings(experiment: Experiment) -> None:
    """Checks all settings that have no schema in this project.

    Raises:
        UserError: for a wrong type, an unknown or a missing name, a value outside its range, or a `_target_` that does
            not exist.
    """
    for stage, settings in experiment.settings.items():
        group = experiment.groups[stage]
        if isinstance(settings, Mapping):
            declared = declared_settings(str(settings.get("_target_", "")))
            if declared is not None:
                typed(declared, group, settings, experiment.document)
        for path, node, is_option in _nodes(settings, group):
            if path != group:
                _check_call(path, node, PASSED_BY_STAGES.get(path, 0), is_option)


def typed(declared: type, group: str, settings: Mapping[str, Any], document: DictConfig) -> Any:
    """Returns `settings` as the dataclass `declared`, checked.

    Args:
        group: the name under which the user sets them.
        document: the whole configuration, to which defaults of `declared` may refer.

    Raises:
        UserError: for an unknown or a missing name, a wrong type, or a value outside its range.
    """
    names = [field.name for field in dataclasses.fields(declared)]
    arguments = {key: value for key, value in settings.items() if key != "_target_" or key in names}
    for key in arguments:
        if key not in names:
            raise unknown_key(f"{group}.{key}", [group, *(f"{group}.{name}" for name in names)])
    schema = OmegaConf.structured(declared)
    for key, value in arguments.items():  # OmegaConf would not say which one it cannot merge
        if isinstance(value, Mapping) and not OmegaConf.is_missing(schema, key) and OmegaConf.is_list(schema[key]):
            raise UserError(f"{group}.{key}={dict(value)} has the wrong type", "a list", f"{group}.{key}=[…]")
    try:
        # Below the group's name, so that errors name `data.size` and not `size`.
        values = OmegaConf.to_container(document)
        assert isinstance(values, dict)
        whole = {key: value for key, value in values.items() if key != group}
        merged = OmegaConf.merge(whole, {group: schema}, {group: arguments})
        filled = OmegaConf.to_object(OmegaConf.select(merged, group))
    except OmegaConfBaseException as error:
        raise explain(error, [f"{group}.{name}" for name in names]) from error
    check(filled, group)
    return filled


def _nodes(settings: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Yields the dotted name of every part of `settings` with a `_target_`, the part, and whether it is an option of
    this project's, whose settings cannot be removed."""
    if isinstance(settings, (list, tuple)):
        for index, part in enumerate(settings):
            yield from _nodes(part, f"{path}[{index}]")
        return
    names: dict[str, str] = {}
    if isinstance(settings, (CustomOptimizerSettings, CustomScheduleSettings)):
        yield f"{path}.arguments", settings.call(), False
        return
    is_option = dataclasses.is_dataclass(settings)
    if dataclasses.is_dataclass(settings):
        names = {field.name: known_as(field, path) for field in dataclasses.fields(settings)}
        settings = {name: getattr(settings, name) for name in names}
    if isinstance(settings, Mapping):
        if "_target_" in settings:
            yield path, settings, is_option
        for name, part in settings.items():
            yield from _nodes(part, names.get(name, f"{path}.{name}"))


def _check_call(path: str, node: Mapping[str, Any], passed_by_stage: int, is_option: bool) -> None:
    """Refuses a function that does not exist, and settings that, by its source, it does not take."""
    target = str(node["_target_"])
    try:
        definition = find(target)
    except AbsentError as error:
        absent = error.args[0]
        missing = absent if "." in absent else f"package {absent}" if absent else "function without a name"
        path = path.removesuffix(".arguments")
        raise UserError(
            f"{path}._target_={target}: there is no {missing}",
            "the import path of a function or a class, its package installed or in the working directory",
            f"{path}._target_=<package>.<module>.<function>",
        ) from error
    call = signature(definition)
    if definition is None or call is None:
        return
    parameters = dict(list(call.parameters.items())[passed_by_stage:])
    arguments = {key: value for key, value in node.items() if key != "_target_"}
    for key in arguments:
        if key not in parameters and not call.open:
            if is_option:
                raise _other_option(path, key, target)
            raise _unknown_argument(path, key, list(parameters), target)
    for name, parameter in parameters.items():
        if parameter.required and name not in arguments:
            plus = "" if "[" in path else "+"
            raise UserError(
                f"{path}.{name} is not given, and {target} requires it",
                f"{path} with {', '.join(parameters)}",
                f"{plus}{path}.{name}=<value>",
            )
    for name, kind in plain_types(definition, call):
        if name in arguments:
            _check_type(f"{path}.{name}", kind, arguments[name])


def _unknown_argument(path: str, key: str, parameters: list[str], target: str) -> UserError:
    error = unknown_key(f"{path}.{key}", [path, *(f"{path}.{name}" for name in parameters)])
    allowed = error.expected if parameters else f"none: {target} takes no settings"
    return UserError(error.problem, allowed, f"~{path}.{key}" if "[" not in path else "")


def _other_option(path: str, key: str, target: str) -> UserError:
    """Returns the error for a custom function in an option of this project's, whose settings it does not take."""
    group = path.partition(".")[0]
    return UserError(
        f"{path}._target_={target} with the settings of this option of {group}, such as {key}, which it does not take",
        f"an option of your own for {group}, with the settings that it takes: docs/extending.md",
        f"--config-dir=my_conf {group}=<option>",
    )


def _check_type(path: str, kind: type, value: Any) -> None:
    numbers = {int: (int,), float: (int, float), bool: (bool,)}
    if kind not in numbers or value is None:
        return
    if not isinstance(value, numbers[kind]) or (isinstance(value, bool) and kind is not bool):
        raise wrong_type(path, value, KINDS[kind])


CALLBACK = "keras.callbacks.Callback"
EXPORTER = "stages.exporters.exporter.Exporter"


def check_classes(experiment: Experiment) -> None:
    """Raises UserError for a callback or an exporter that certainly is none; others are known when they are made."""
    settings = experiment.of("train", TrainSettings)
    for index, entry in enumerate(settings.callbacks if settings else ()):
        place, target = f"train.callbacks[{index}]", str(target_of(entry) or "")
        if _extends(target, CALLBACK) is False:
            raise UserError(
                f"{place}: {target} is no Keras callback",
                f"a class that extends {CALLBACK}",
                "'train.callbacks=[{_target_: keras.callbacks.TerminateOnNaN}]'",
            )
        if _extends(target, "keras.callbacks.BackupAndRestore"):
            raise UserError(
                f"{place}: {target} would bring back weights, and train all epochs again",
                "callbacks that leave the weights alone; a run that was interrupted resumes by itself",
                "train.callbacks=[]",
            )
    export = experiment.of("export", ExportSettings)
    for name, entry in export.formats.items() if export else ():
        place, target = f"export.formats.{name}", str(target_of(entry) or "")
        if _extends(target, EXPORTER) is False:
            raise UserError(
                f"{place}._target_={target} is no exporter",
                f"a class that extends {EXPORTER}",
                f"{place}._target_=stages.exporters.saved_model.SavedModel",
            )


def _extends(target: str, base: str) -> bool | None:
    try:
        return extends(find(target), base)
    except AbsentError:  # refused elsewhere
        return None
