"""The checked configuration of a run, as everything else reads it."""

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
"""Schemas of the groups that stages refer to by interpolation."""

Schema = TypeVar("Schema")


@dataclass(frozen=True)
class Experiment:
    """The checked configuration of a run. `TopSettings` documents the top-level settings."""

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
    """The settings of each stage in `pipeline`: a dataclass, or a dict for a stage without a schema."""
    groups: Mapping[str, str]
    """For each stage, the group in which users set it: `data` for `load`, otherwise the stage's name."""
    choices: Mapping[str, str]
    """The chosen option of each group; `debug` is included only in a debug run."""
    document: DictConfig
    """The whole configuration with its interpolations, for recording, without `sweep`."""
    config_dirs: tuple[Path, ...] = ()
    """The configuration folders that the user has added, for example with `--config-dir`."""
    debug: DebugSettings | None = None
    """The kind of debug run; None for a real run."""
    overrides: tuple[str, ...] = ()
    """The overrides that the configuration was composed from, as typed."""

    def of(self, stage: str, kind: type[Schema]) -> Schema | None:
        """Return the settings of `stage` if they are of type `kind`; None otherwise, such as for a custom function."""
        settings = self.settings.get(stage)
        return settings if isinstance(settings, kind) else None

    @property
    def members(self) -> Mapping[str, int]:
        """Number of processes of each kind that the strategy needs, the chief first; empty for a single process."""
        strategy = self.of("strategy", StrategySettings)
        return strategy.members() if strategy is not None else {}


def read(
    document: DictConfig,
    choices: Mapping[str, str],
    config_dirs: tuple[Path, ...] = (),
    overrides: tuple[str, ...] = (),
) -> Experiment:
    """Check a composed configuration and return it as an experiment.

    Args:
        document: The configuration, without Hydra's node.
        choices: The chosen option of each group.
        config_dirs: The configuration folders that the user has added.
        overrides: The overrides that the configuration was composed from.

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
    for stage, part in reversed(settings.items()):  # the last first, because `inspect` refers to a setting of `train`
        check(part, _group(values, stage))
    with suppress(OmegaConfBaseException):  # a missing interpolation is reported where it is used
        learn(OmegaConf.to_container(document, resolve=True))
    hidden = ("debug",) if debug.kind == "none" else ()
    choices = {group: option for group, option in choices.items() if "/" not in group and group not in hidden}
    recorded = copy.copy(document)
    with open_dict(recorded):
        for group in ("sweep", *hidden):
            recorded.pop(group, None)
    fields: dict[str, Any] = {entry.name: getattr(top, entry.name, None) for entry in dataclasses.fields(Experiment)}
    fields |= {
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
        "document": recorded,
        "config_dirs": config_dirs,
        "overrides": overrides,
        "debug": None if hidden else debug,
    }
    return Experiment(**fields)


def _default_name(settings: Mapping[str, Any], choices: Mapping[str, str]) -> str:
    """Return the names of the data set (or its file) and the model, with only characters that `name` may have."""
    data = settings.get("load")
    source = data.source if isinstance(data, DataSettings) else ""
    safe = re.sub(r"[^\w.=+-]+", "-", unicodedata.normalize("NFC", source)).strip(".=+-")[: LONGEST_NAME // 5]
    return f"{safe or choices.get('data', 'data')}_{choices.get('model', 'model')}".replace("/", "_")


def read_sweep(document: DictConfig) -> SweepSettings:
    """Return the sweep settings of a composed configuration.

    Raises:
        UserError: For a value outside its range, or an option that does not start from the schema.
    """
    _refuse_added(document)
    return _read_group(document, "sweep", SweepSettings)


def _read_group(document: DictConfig, group: str, schema: type[Schema]) -> Schema:
    """Return the checked settings of a group."""
    if group not in document:  # such as `sweep` in the configuration of a job
        return schema()
    _refuse_without_schema(document, group, schema)
    settings = OmegaConf.to_object(document[group])
    assert isinstance(settings, schema)
    check(settings, group)
    return settings


def _settings(document: DictConfig, stage: str) -> Any:
    """Return the settings of a stage: an instance of its schema, or a dict if it has none."""
    if OmegaConf.select(document, stage) is None:
        raise UserError(
            f"the stage {stage} of `pipeline` has no settings",
            f"an option with a `_target_` (+{stage}=<option>), or `pipeline` without this stage",
            f"++pipeline.{stage}=null",
        )
    node = document[stage]
    return OmegaConf.to_object(node) if OmegaConf.is_config(node) else node


def _group(values: Mapping[Any, Any], stage: str) -> str:
    """Return the group in which users set a stage: `data` for `load`, because `load` is `${data}`."""
    value = values.get(stage)
    return value[2:-1] if isinstance(value, str) and value.startswith("${") else stage


def _refuse_added(document: DictConfig) -> None:
    """Refuse settings that `+` or a file adds to a schema without them, because no code would read them."""
    for name, node, key in parts(document):
        schema = OmegaConf.get_type(node)
        if dataclasses.is_dataclass(schema) and key not in schema.__dataclass_fields__:
            others = [other for other in dotted(document) if not f"{other}.".startswith(f"{name}.")]
            value = as_written(node, key)
            raise unknown_key(name, others, "" if isinstance(value, (dict, list)) else str(value))


def _refuse_without_schema(document: DictConfig, group: str, schema: type) -> None:
    """Refuse a custom option that does not start from a schema, which the framework needs to read it."""
    if group not in document or not issubclass(OmegaConf.get_type(document, group) or type(None), schema):
        first = next(iter(SCHEMAS[group]))  # an option has this name, unless the group has only one schema
        raise UserError(
            f"the chosen option of {group} does not start from a schema of this project",
            f"a file whose defaults list has /schema/{group}@_here_: {' or '.join(SCHEMAS[group])}",
            f"{group}={'<option>' if first == group else first}",
        )
