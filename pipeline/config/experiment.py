"""The configuration: its schemas for Hydra, and the checked object that everything else reads."""

import copy
import dataclasses
import difflib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from pipeline.config.cluster_settings import ClusterSettings
from pipeline.config.debug_settings import DebugSettings
from pipeline.config.errors import explain, unknown_key
from pipeline.config.keys import dotted
from pipeline.config.limits import check_values
from pipeline.config.options import read_options
from pipeline.config.other_words import named_elsewhere
from pipeline.config.schemas import GROUPS, SCHEMAS, TopSettings, TrackingSettings, top_level_key
from pipeline.config.sweep_settings import SweepSettings
from pipeline.paths import CONF, outputs_folder
from pipeline.redaction import learn
from stages.errors import UserError
from stages.settings import model, optimizer
from stages.settings.ranges import borrows, check
from stages.settings.strategy import StrategySettings

_SCHEMA_OF: Mapping[str, type] = {
    "precision": model.PrecisionSettings,
    "optimizer": optimizer.OptimizerSettings,
    "schedule": optimizer.ScheduleSettings,
    "tracking": TrackingSettings,
    "cluster": ClusterSettings,
}
"""Schemas of the groups that the framework itself reads."""

Schema = TypeVar("Schema")


@dataclass(frozen=True)
class Experiment:
    """One job's configuration, checked.

    settings: for each stage of `pipeline`, its settings: a dataclass, or a dict without a schema.
    groups: for each stage, the name under which users set it: `data` for `load`, else its own.
    choices: the chosen option of each group; of `debug` only in a debug run.
    debug: how this run checks an experiment, as its results count nowhere; None: it is a real one.
    config_dirs: the configuration folders that the user has added, as by `--config-dir`.
    document: the whole configuration with its interpolations, to be recorded, without `sweep`, no part of a job.
    """

    name: str
    seed: int
    deterministic: bool
    dry_run: bool
    max_jobs: int
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

    def of(self, stage: str, kind: type[Schema]) -> Schema | None:
        """Returns the settings of `stage` if they are of `kind`: none without it, or with the user's own function."""
        settings = self.settings.get(stage)
        return settings if isinstance(settings, kind) else None

    @property
    def members(self) -> Mapping[str, int]:
        """Number of processes of each kind that the strategy needs, the chief's first; none where one does all."""
        strategy = self.of("strategy", StrategySettings)
        return strategy.members() if strategy is not None else {}


def read(document: DictConfig, choices: Mapping[str, str], config_dirs: tuple[Path, ...] = ()) -> Experiment:
    """Returns the experiment of a composed configuration.

    Args:
        document: without Hydra's own node.
        choices: from each group to its chosen option.
        config_dirs: the configuration folders that the user has added.

    Raises:
        UserError: for an unknown key, a wrong type or a value outside its range.
    """
    try:
        values = OmegaConf.to_container(document, resolve=False)
        assert isinstance(values, dict)
        learn(values)
        check_values(values)
        names = {top_level_key(entry.name): entry.name for entry in dataclasses.fields(TopSettings)}
        top_values = {names[key]: values[key] for key in names.keys() & values.keys()}
        typed = OmegaConf.merge(OmegaConf.structured(TopSettings), top_values)
        top = OmegaConf.to_object(typed)
        assert isinstance(top, TopSettings)
        pipeline = {stage: makes for stage, makes in top.pipeline.items() if makes is not None}
        _refuse_unknown(values, {*names, *GROUPS, *choices, *top.pipeline, "load"})
        _refuse_added(document)
        for group, schema in _SCHEMA_OF.items():
            _refuse_without_schema(document, group, schema)
        settings = {stage: _settings(document, stage) for stage in pipeline}
        tracking = OmegaConf.to_object(document.tracking)
        cluster = OmegaConf.to_object(document.cluster)
        sweep = read_sweep(document)
        chosen = _read_group(document, "debug", DebugSettings)
        debug = None if chosen.kind == "none" else chosen
        assert isinstance(tracking, TrackingSettings)
        assert isinstance(cluster, ClusterSettings)
    except OmegaConfBaseException as error:
        raise explain(error, dotted(document)) from error
    check(top, "")
    check(tracking, "tracking")
    check(cluster, "cluster")
    for stage, part in sorted(settings.items(), key=lambda entry: borrows(entry[1])):
        check(part, _group(values, stage))
    _learn_resolved(document)
    hidden = ("debug",) if debug is None else ()
    choices = {group: option for group, option in choices.items() if "/" not in group and group not in hidden}
    return Experiment(
        name=top.name or f"{choices.get('data', 'data')}_{choices.get('model', 'model')}",
        seed=top.seed,
        deterministic=top.deterministic,
        dry_run=top.dry_run,
        max_jobs=top.max_jobs,
        outputs=outputs_folder(top.outputs),
        job_timeout_seconds=top.job_timeout_seconds,
        hang_seconds=top.hang_seconds,
        resume=top.resume,
        fork=top.fork,
        fork_weights=top.fork_weights,
        from_stage=top.from_,
        run=top.run,
        pipeline=pipeline,
        tracking=tracking,
        cluster=cluster,
        sweep=sweep,
        settings=settings,
        groups={stage: _group(values, stage) for stage in pipeline},
        choices=choices,
        document=_of_job(document, debug),
        config_dirs=config_dirs,
        debug=debug,
    )


def read_sweep(document: DictConfig) -> SweepSettings:
    """Returns the settings of a sweep that a composed configuration has.

    Raises:
        UserError: for a value outside its range, or an option that does not start from the schema.
    """
    if "sweep" in document:
        _refuse_added(document.sweep, "sweep", document)
    return _read_group(document, "sweep", SweepSettings)


def _read_group(document: DictConfig, group: str, schema: type[Schema]) -> Schema:
    if group not in document:  # a primary configuration of the user's own
        return schema()
    _refuse_without_schema(document, group, schema)
    settings = OmegaConf.to_object(document[group])
    assert isinstance(settings, schema)
    check(settings, group)
    return settings


def _of_job(document: DictConfig, debug: DebugSettings | None) -> DictConfig:
    """Returns the configuration without `sweep`, and without `debug` where that is no debug run."""
    own = copy.copy(document)
    with open_dict(own):
        own.pop("sweep", None)
        if debug is None:
            own.pop("debug", None)
    return own


def _learn_resolved(document: DictConfig) -> None:
    """Learns the secrets behind interpolations, such as `${oc.env:DB}`; a missing one is reported elsewhere."""
    with suppress(OmegaConfBaseException):
        learn(OmegaConf.to_container(document, resolve=True))


def _settings(document: DictConfig, stage: str) -> Any:
    """Returns the settings object of a stage: an instance of its schema, or a dict where it has none."""
    if OmegaConf.select(document, stage) is None:
        raise UserError(
            f"the stage {stage} of `pipeline` has no settings",
            f"a group {stage} with a `_target_` (+{stage}=<option>), or no such stage",
            f"pipeline.{stage}=null",
        )
    node = document[stage]
    return OmegaConf.to_object(node) if OmegaConf.is_config(node) else node


def _group(values: Mapping[Any, Any], stage: str) -> str:
    """Returns the name under which users set a stage: `load` is `${data}`, so `data`."""
    value = values.get(stage)
    return value[2:-1] if isinstance(value, str) and value.startswith("${") else stage


def _refuse_unknown(values: Mapping[Any, Any], names: set[str]) -> None:
    for key in values:
        if key not in names:
            known = named_elsewhere(str(key), str(values[key]))
            near = difflib.get_close_matches(str(key), sorted(names), 1)
            fix = known or (f"{near[0]}=…" if near else f"+pipeline.{key}=<the name of what it makes>")
            allowed = sorted(name for name in names if "/" not in name)
            raise UserError(f"{key} is neither a setting nor a stage of `pipeline`", allowed, fix)


def _refuse_added(node: Any, path: str = "", whole: DictConfig | None = None) -> None:
    """Refuses names that `+`, or a file, adds to a schema that does not have them: nothing would read them.

    Args:
        node: a part of the configuration, checked with all its parts.
        path: the name of `node` in the configuration `whole`.
    """
    if isinstance(node, ListConfig):
        for index in range(len(node)):
            if not OmegaConf.is_missing(node, index):
                _refuse_added(node[index], f"{path}.{index}", whole)
    if not isinstance(node, DictConfig) or node._is_none():
        return
    whole = node if whole is None else whole
    schema = OmegaConf.get_type(node)
    allowed = {entry.name for entry in dataclasses.fields(schema)} if dataclasses.is_dataclass(schema) else None
    names: list[Any] = list(node)
    for key in names:
        name = f"{path}.{key}".lstrip(".")
        if allowed is not None and key not in allowed:
            other_names = [other_name for other_name in dotted(whole) if not f"{other_name}.".startswith(f"{name}.")]
            value = node._get_node(key)
            raise unknown_key(name, other_names, "" if OmegaConf.is_config(value) else str(value))
        if not OmegaConf.is_interpolation(node, key) and not OmegaConf.is_missing(node, key):
            _refuse_added(node[key], name, whole)


def _refuse_without_schema(document: DictConfig, group: str, schema: type) -> None:
    """Refuses a custom option that does not start from a schema, by which the framework reads it."""
    if group not in document or not issubclass(OmegaConf.get_type(document, group) or type(None), schema):
        default = next(iter(SCHEMAS[group]))
        raise UserError(
            f"{group} is no {schema.__name__}",
            f"an option whose file starts from a schema: /schema/{group}@_here_: {', '.join(SCHEMAS[group])}",
            f"{group}={(read_options([CONF]).groups.get(group) or (default,))[0]}",
        )
