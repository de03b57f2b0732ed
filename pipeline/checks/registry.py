"""All checks of an experiment, which run before TensorFlow is imported and anything is recorded."""

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pipeline.checks.callbacks import check_arguments, check_callback, extends
from pipeline.checks.combinations import REFUSED
from pipeline.checks.conditions import expected_replicas
from pipeline.checks.data_fits import check_data
from pipeline.config.errors import explained
from pipeline.config.experiment import Experiment
from pipeline.targets import check_installed, load, named_parameters, settings_class, signature
from pipeline.tracking.store import store_is_usable
from stages.errors import UserError
from stages.settings.model import FACTS, KerasHubSettings, ModelSettings, encoder_settings
from stages.settings.ranges import SCHEMAS, check, known_as, nearest
from stages.settings.results import EvaluateSettings, ExportSettings, schema_of
from stages.settings.train import METRICS, CustomOptimizerSettings, CustomScheduleSettings, TaskSettings, TrainSettings
from stages.targets import target_of

PATTERNS = "*?[]\\%"
"""Characters that TensorFlow's export interprets as a pattern, or SQLAlchemy as part of an address."""

ENCODERS = "model.encoders."
"""Beginning of the names of settings with the networks of images and texts."""

NETWORKS = {str(vars(schema)["_target_"]) for schema in SCHEMAS["network"].values()}
"""The `_target_` of each of the project's networks."""

PASSED_BY_STAGES = {"model.network": 2, "schedule.arguments": 2}
"""Number of leading parameters that stages pass themselves: shape and outputs; peak rate and steps. A loss function
receives targets and predictions."""


def check_rules(experiment: Experiment, surroundings: bool = True) -> None:
    """Raise UserError for the first rule that `experiment` breaks.

    Args:
        experiment: The experiment.
        surroundings: Whether to check the folder and the server for its results as well.
    """
    if not experiment.pipeline:
        raise UserError("`pipeline` has no stages", "at least one stage", "pipeline.<stage>=<name of its result>")
    train, replicas = experiment.of("train", TrainSettings), expected_replicas(experiment)
    if train and replicas:
        train.check_share(replicas)
    for rule in REFUSED:
        if combination := rule.find(experiment):
            raise UserError(f"{combination} is not supported: {rule.why}", "", rule.fix)
    for check_part in (_monitor_is_known, _packages_are_installed, check_own_code, check_data):
        check_part(experiment)
    if surroundings:
        check_surroundings(experiment)


def check_surroundings(experiment: Experiment) -> None:
    """Raise UserError if the folder or the server for results, which all jobs of a sweep share, cannot be used."""
    folder = experiment.outputs
    if any(character in PATTERNS or not character.isprintable() for character in str(folder)):
        expected = f"a path without control characters and {' '.join(PATTERNS)}, which TensorFlow or SQLite misreads"
        raise UserError(f"outputs={str(folder)!r} is not a usable path", expected, "outputs=./outputs")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        problem = f"outputs={folder} cannot be written ({error.strerror})"
        raise UserError(problem, "a directory that you can write to", "outputs=./outputs") from error
    store_is_usable(experiment)


def _monitor_is_known(experiment: Experiment) -> None:
    """Refuse a metric that no task of this project has. A custom task's are checked when its network is built."""
    train, model = experiment.of("train", TrainSettings), experiment.of("model", ModelSettings)
    task = model.task if model is not None else None
    if train is None or not isinstance(task, TaskSettings) or task.metrics or task._target_ is not None:
        return
    if train.monitor.removeprefix("val_") not in METRICS:
        known = [f"val_{name}" for name in METRICS]
        near = nearest(train.monitor, known) or "val_loss"
        raise UserError(f"train.monitor={train.monitor} is not a known metric", known, f"train.monitor={near}")


def _packages_are_installed(experiment: Experiment) -> None:
    model = experiment.of("model", ModelSettings)
    encoders = model.encoders.items() if model else ()
    networks = {f"model.encoders.{name}": encoder_settings(f"model.encoders.{name}", one) for name, one in encoders}
    for setting, network in {"model=keras_hub": model.network if model else None, **networks}.items():
        if isinstance(network, KerasHubSettings):
            check_installed(setting, network.requires, network.extra)
    evaluate = experiment.of("evaluate", EvaluateSettings)
    if evaluate and evaluate.boosting not in (None, "sklearn"):
        check_installed(f"evaluate.baseline={evaluate.boosting}", (str(evaluate.boosting),), "boosting")
    settings = experiment.of("export", ExportSettings)
    for name, part in settings.formats.items() if settings else ():
        schema = schema_of(str(part.get("_target_"))) if isinstance(part, Mapping) else type(part)
        check_installed(f"export.formats.{name}", schema.requires, schema.extra)


def check_own_code(experiment: Experiment) -> None:
    """Import the code that the configuration names, and check its settings.

    Raises:
        UserError: For a `_target_` that does not exist, a wrong type, an unknown or a missing name, a value outside its
            range, or a class that is not a callback or an exporter.
    """
    for stage, settings in experiment.settings.items():
        group = experiment.groups[stage]
        if isinstance(settings, Mapping):
            target = str(settings.get("_target_", ""))
            declared = None if target.startswith("stages.") else settings_class(load(group, target))
            if declared is not None:
                as_declared(declared, group, settings, experiment.document)
    train, export = experiment.of("train", TrainSettings), experiment.of("export", ExportSettings)
    for index, entry in enumerate(train.callbacks if train else ()):
        check_callback(f"train.callbacks[{index}]", str(target_of(entry)))
    for name, entry in export.formats.items() if export else ():
        if target_of(entry) != getattr(type(entry), "_target_", None):
            _check_exporter(f"export.formats.{name}", str(target_of(entry)))
    for stage, settings in experiment.settings.items():
        for path, target, arguments in _calls(settings, experiment.groups[stage]):
            is_known = path.startswith(ENCODERS) and target in NETWORKS  # checked with the defaults of its settings
            if not is_known and path not in (experiment.groups[stage], "task"):  # a task is created later
                _check_call(path, target, arguments)
                check_arguments(path, target, arguments)


def as_declared(declared: type, group: str, settings: Mapping[str, Any], document: DictConfig) -> Any:
    """Return the settings of a custom stage as the dataclass that its function declares, checked.

    Args:
        declared: The dataclass.
        group: The group in which users set them.
        settings: The settings.
        document: The whole configuration, because defaults of `declared` may refer to it.

    Raises:
        UserError: For an unknown or a missing name, a wrong type, or a value outside its range.
    """
    names = [field.name for field in dataclasses.fields(declared)]
    arguments = {key: value for key, value in settings.items() if key != "_target_" or key in names}
    schema = OmegaConf.structured(declared)
    with explained([group, *(f"{group}.{name}" for name in names)]):
        # The settings are merged under the group's name, so that errors name `data.size` and not `size`.
        values = OmegaConf.to_container(document)
        assert isinstance(values, dict)
        whole = {key: value for key, value in values.items() if key != group}
        merged = OmegaConf.merge(whole, {group: schema}, {group: arguments})
        filled = OmegaConf.to_object(OmegaConf.select(merged, group))
    check(filled, group)
    return filled


def _calls(settings: Any, path: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the place, the function and the arguments of each part of `settings` with a custom `_target_`.

    Settings with the function of their schema have been checked already.
    """
    if isinstance(settings, (list, tuple)):
        for index, part in enumerate(settings):
            yield from _calls(part, f"{path}[{index}]")
    elif isinstance(settings, (CustomOptimizerSettings, CustomScheduleSettings)):
        arguments = settings.call()
        yield f"{path}.arguments", arguments.pop("_target_"), arguments
    elif dataclasses.is_dataclass(settings):
        fields = dataclasses.fields(settings)
        target = target_of(settings)
        if target not in (None, getattr(type(settings), "_target_", None)):
            names = [entry.name for entry in fields if entry.name != "_target_"]
            yield path, target, {name: getattr(settings, name) for name in names}
        for entry in fields:
            yield from _calls(getattr(settings, entry.name), known_as(entry, path))
    elif isinstance(settings, Mapping):
        if "_target_" in settings:
            yield path, str(settings["_target_"]), {key: settings[key] for key in settings if key != "_target_"}
        for name, part in settings.items():
            yield from _calls(part, f"{path}.{name}")


def _check_call(path: str, target: str, arguments: Mapping[str, Any]) -> None:
    """Refuse a function that does not exist, and arguments that it does not accept."""
    called = signature(path.removesuffix(".arguments"), target)
    is_function = path == "task.loss" and not isinstance(load(path, target), type)
    passed = 2 if is_function or path.startswith(ENCODERS) else PASSED_BY_STAGES.get(path, 0)
    if path == "model.network":
        others = [one for name, one in called.parameters.items() if name in arguments or name not in FACTS]
        called = called.replace(parameters=others)
    try:
        for bind in (called.bind_partial, called.bind):  # `bind` alone would report missing arguments first
            bind(*[None] * passed, **arguments)
    except TypeError as error:
        names = list(named_parameters(called))[passed:]
        raise UserError(
            f"{path}: {target}: {error}",
            f"settings of {path}: {', '.join(names)}" if names else f"no settings of {path}",
        ) from error


def _check_exporter(place: str, target: str) -> None:
    base = "stages.exporters.exporter.Exporter"
    if not extends(load(place, target), base):
        raise UserError(f"{place}._target_={target} is not an exporter", f"a subclass of {base}")
