"""The configuration: its schemas for Hydra, and the checked object that everything else reads."""

import copy
import dataclasses
import re
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from pipeline.config.cluster import ClusterSettings
from pipeline.config.errors import as_written, dotted, explained, parts, unknown_key
from pipeline.config.schemas import (
    GROUPS,
    LONGEST_NAME,
    SCHEMAS,
    DebugSettings,
    SweepSettings,
    TopSettings,
    TrackingSettings,
    top_level_key,
)
from pipeline.paths import outputs_folder
from pipeline.redaction import learn
from stages.errors import UserError
from stages.settings import model, train
from stages.settings.data import DataSettings
from stages.settings.ranges import check
from stages.settings.strategy import StrategySettings

_BASES: Mapping[str, type] = {
    "precision": model.PrecisionSettings,
    "optimizer": train.OptimizerSettings,
    "schedule": train.ScheduleSettings,
}
"""Schemas of the groups that stages take by interpolation."""

Schema = TypeVar("Schema")


@dataclass(frozen=True)
class Experiment:
    """One job's configuration, checked.

    settings: for each stage of `pipeline`, its settings: a dataclass, or a dict without a schema.
    groups: for each stage, the name under which users set it: `data` for `load`, else its own.
    choices: the chosen option of each group; of `debug` only in a debug run.
    debug: how this run checks an experiment, as its results count nowhere; None: it is a real one.
    config_dirs: the configuration folders that the user has added, as by `--config-dir`.
    overrides: the overrides that it was composed from, as they were given.
    document: the whole configuration with its interpolations, to be recorded, without `sweep`, no part of a job.
    """

    name: str
    seed: int
    deterministic: bool
    dry_run: bool
    outputs: Path
    job_timeout_seconds: float | None
    hang_seconds: float | None
    resume: str
    fork: str | None
    fork_weights: str
    from_stage: str | None
    run: str | None
    pipeline: Mapping[str, str]
    tracking: TrackingSettings
    cluster: ClusterSettings
    sweep: SweepSettings
    settings: Mapping[str, Any]
    groups: Mapping[str, str]
    choices: Mapping[str, str]
    document: DictConfig
    config_dirs: tuple[Path, ...] = ()
    debug: DebugSettings | None = None
    overrides: tuple[str, ...] = ()

    def of(self, stage: str, kind: type[Schema]) -> Schema | None:
        """Return the settings of `stage` if they are of `kind`: none without it, or with the user's own function."""
        settings = self.settings.get(stage)
        return settings if isinstance(settings, kind) else None

    @property
    def members(self) -> Mapping[str, int]:
        """Number of processes of each kind that the strategy needs, the chief's first; none where one does all."""
        strategy = self.of("strategy", StrategySettings)
        return strategy.members() if strategy is not None else {}


def read(
    document: DictConfig,
    choices: Mapping[str, str],
    config_dirs: tuple[Path, ...] = (),
    overrides: tuple[str, ...] = (),
) -> Experiment:
    """Return the experiment of a composed configuration.

    Args:
        document: Without Hydra's own node.
        choices: From each group to its chosen option.
        config_dirs: The configuration folders that the user has added.
        overrides: Those that the configuration was composed from.

    Raises:
        UserError: For an unknown key, a wrong type or a value outside its range.
    """
    with explained(dotted(document)):
        values = OmegaConf.to_container(document, resolve=False)
        assert isinstance(values, dict)
        learn(values)
        names = {top_level_key(entry.name): entry.name for entry in dataclasses.fields(TopSettings)}
        top_values = {names[key]: values[key] for key in names.keys() & values.keys()}
        top: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TopSettings), top_values))
        pipeline = {stage: makes for stage, makes in top.pipeline.items() if makes is not None}
        known = {*names, *GROUPS, *choices, *top.pipeline, "load"}
        for key in [key for key in values if key not in known]:
            raise unknown_key(str(key), sorted(name for name in known if "/" not in name), str(values[key]))
        sweep = read_sweep(document)
        for group, schema in _BASES.items():
            _refuse_without_schema(document, group, schema)
        settings = {stage: _settings(document, stage) for stage in pipeline}
        tracking = _read_group(document, "tracking", TrackingSettings)
        cluster = _read_group(document, "cluster", ClusterSettings)
        debug = _read_group(document, "debug", DebugSettings)
    check(top, "")
    for stage, part in reversed(settings.items()):  # the last first: `inspect` takes a number of `train`
        check(part, _group(values, stage))
    with suppress(OmegaConfBaseException):  # a missing interpolation is reported where it is used
        learn(OmegaConf.to_container(document, resolve=True))
    hidden = ("debug",) if debug.kind == "none" else ()
    choices = {group: option for group, option in choices.items() if "/" not in group and group not in hidden}
    of_job = copy.copy(document)
    with open_dict(of_job):
        for group in ("sweep", *hidden):
            of_job.pop(group, None)
    own: dict[str, Any] = {entry.name: getattr(top, entry.name, None) for entry in dataclasses.fields(Experiment)}
    own |= {
        "name": top.name or _default_name(settings, choices),
        "outputs": outputs_folder(top.outputs),
        "from_stage": top.from_,
        "pipeline": pipeline,
        "tracking": tracking,
        "cluster": cluster,
        "sweep": sweep,
        "settings": settings,
        "groups": {stage: _group(values, stage) for stage in pipeline},
        "choices": choices,
        "document": of_job,
        "config_dirs": config_dirs,
        "overrides": overrides,
        "debug": None if hidden else debug,
    }
    return Experiment(**own)


def _default_name(settings: Mapping[str, Any], choices: Mapping[str, str]) -> str:
    """Return the data set and the model, in characters that `name` may have; the data set of a file is its name."""
    data = settings.get("load")
    source = data.source if isinstance(data, DataSettings) else ""
    safe = re.sub(r"[^\w.=+-]+", "-", unicodedata.normalize("NFC", source)).strip(".=+-")[: LONGEST_NAME // 5]
    return f"{safe or choices.get('data', 'data')}_{choices.get('model', 'model')}".replace("/", "_")


def read_sweep(document: DictConfig) -> SweepSettings:
    """Return the settings of a sweep that a composed configuration has.

    Raises:
        UserError: For a value outside its range, or an option that does not start from the schema.
    """
    _refuse_added(document)
    return _read_group(document, "sweep", SweepSettings)


def _read_group(document: DictConfig, group: str, schema: type[Schema]) -> Schema:
    """Return the checked settings of a group; the document of a job lacks those that are no part of it."""
    if group not in document:
        return schema()
    _refuse_without_schema(document, group, schema)
    settings = OmegaConf.to_object(document[group])
    assert isinstance(settings, schema)
    check(settings, group)
    return settings


def _settings(document: DictConfig, stage: str) -> Any:
    """Return the settings object of a stage: an instance of its schema, or a dict where it has none."""
    if OmegaConf.select(document, stage) is None:
        raise UserError(
            f"the stage {stage} of `pipeline` has no settings",
            f"an option with a `_target_` (+{stage}=<option>), or `pipeline` without this stage",
            f"++pipeline.{stage}=null",
        )
    node = document[stage]
    return OmegaConf.to_object(node) if OmegaConf.is_config(node) else node


def _group(values: Mapping[Any, Any], stage: str) -> str:
    """Return the name under which users set a stage: `load` is `${data}`, so `data`."""
    value = values.get(stage)
    return value[2:-1] if isinstance(value, str) and value.startswith("${") else stage


def _refuse_added(document: DictConfig) -> None:
    """Refuse names that `+`, or a file, adds to a schema that does not have them: nothing would read them."""
    for name, node, key in parts(document):
        schema = OmegaConf.get_type(node)
        if dataclasses.is_dataclass(schema) and key not in schema.__dataclass_fields__:
            others = [other for other in dotted(document) if not f"{other}.".startswith(f"{name}.")]
            value = as_written(node, key)
            raise unknown_key(name, others, "" if isinstance(value, (dict, list)) else str(value))


def _refuse_without_schema(document: DictConfig, group: str, schema: type) -> None:
    """Refuse a custom option that does not start from a schema, by which the framework reads it."""
    if group not in document or not issubclass(OmegaConf.get_type(document, group) or type(None), schema):
        first = next(iter(SCHEMAS[group]))  # of several, each has an option of its name; a single one may have none
        raise UserError(
            f"the chosen option of {group} does not start from a schema of this project",
            f"a file whose defaults list has /schema/{group}@_here_: {' or '.join(SCHEMAS[group])}",
            f"{group}={'<option>' if first == group else first}",
        )
