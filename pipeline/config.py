"""The configuration: its schemas for Hydra, and the checked object that everything else reads."""

import dataclasses
import difflib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.keys import dotted
from pipeline.limits import check_values
from pipeline.messages import explain, unknown_key
from pipeline.options import read_options
from pipeline.paths import CONF, default_outputs
from pipeline.secrets import learn
from stages.errors import UserError
from stages.settings import data, images, inspect, model, optimizer, results, strategy, train
from stages.settings.places import resolved
from stages.settings.ranges import borrows, check, choice, number


@dataclass
class TrackingSettings:
    """Where runs are recorded."""

    kind: str = choice("local", "local", "server", "off")
    """`local`: SQLite in `outputs`; `server`: an MLflow server or database at `uri`."""
    uri: str | None = None
    untracked: bool = False
    """Whether the recorded diff holds the contents of new files that git does not know yet; else only their names and
    digests. What is secret in them is masked as everywhere, as far as it can be told."""

    def check(self, path: str) -> None:
        schemes = ("http://", "https://", "sqlite:///", "postgresql", "mysql", "mssql")
        if (self.kind == "server" and not (self.uri or "").startswith(schemes)) or not is_address(self.uri or ""):
            raise UserError(
                f"{path}.uri={self.uri} is no address of an MLflow store",
                "http(s)://host:port or a database URI",
                f"{path}.uri=http://127.0.0.1:5000",
            )


def is_address(text: str) -> bool:
    """Returns whether `text` can be taken apart as an address: an IPv6 one is closed, a port is a number."""
    try:
        parts = urlsplit(text)
        return not text.startswith(("http://", "https://")) or (bool(parts.hostname) and parts.port != 0)
    except ValueError:
        return False


@dataclass
class ClusterSettings:
    """Where the workers of a strategy over several processes run."""

    kind: str = choice("local", "local", "tf_config")
    """`local`: processes that the command starts on this machine; `tf_config`: this process is the one that the
    environment's `TF_CONFIG` says, and the same command runs in every other place of the cluster."""
    restarts: int = number(0, at_least=0, unit="times that a cluster whose member has died is started again")
    wait_seconds: float = number(
        300.0, at_least=1, at_most=7 * 24 * 3600, unit="seconds to wait for the other members of `tf_config`"
    )


MOST_JOBS = 100_000
"""Of a sweep: each is composed and checked before the first one runs."""

LONGEST_NAME, LONGEST_TAG = 200, 5000
"""Bytes of a folder's name, with room for a suffix; characters of a tag's text in MLflow."""


@dataclass
class TopSettings:
    """The keys at the top of the configuration that belong to no group."""

    name: str | None = None
    """Of the experiment, in MLflow and under `outputs/runs`; null: the data set and the model."""
    seed: int = number(42, at_least=0, at_most=2**31 - 1)
    """Fixes initial weights, the order of examples, augmentation and dropout; not the splits (`data.split_seed`)."""
    deterministic: bool = False
    """Whether TensorFlow may use only operations that give the same bits each time (slower on GPUs)."""
    dry_run: bool = False
    """Whether to print the plan and stop."""
    max_jobs: int = number(1000, at_least=1, at_most=MOST_JOBS, unit="jobs of a sweep; more are refused")
    outputs: str | None = None
    """Where runs leave things; null: `outputs` in the source tree, of an installed package in the working directory."""
    job_timeout_seconds: float | None = number(
        None, at_least=10, unit="seconds after which a job saves and ends, to be resumed by the same command"
    )
    hang_seconds: float | None = number(
        300.0, at_least=10, unit="seconds without a sign of life after which a job or member of a cluster is killed"
    )
    resume: str = "auto"
    """`auto`: go on with the last run of this experiment, if it has not finished; `never`: begin a new one; else the
    run to go on with, by its folder or the beginning of its id."""
    fork: str | None = None
    """A run, by its folder or the beginning of its id, from whose weights a new run starts, with other settings."""
    fork_weights: str = choice("best", "best", "last")
    """`best`: the weights that the run which is forked reported and exported; `last`: those of its last step, with its
    optimizer."""
    trust: bool = False
    """Whether a run that is resumed or forked may bring code, addresses and places that no file of the configuration
    names."""
    tags: dict[str, str] = field(default_factory=dict)
    """For the MLflow run, such as `+tags.note=baseline`."""
    pipeline: dict[str, str | None] = field(default_factory=dict)
    """From each stage, in order, to the name of what it makes; null leaves a stage out."""

    def check(self, path: str) -> None:
        if self.fork_weights != "best" and self.fork is None:
            raise no_fork(self.fork_weights)
        if self.name is not None and (
            not re.fullmatch(r"\w[\w .=+-]*", self.name) or len(self.name.encode()) > LONGEST_NAME
        ):
            short = re.sub(r"\W+", "_", self.name).strip("_")[: LONGEST_NAME // 4]
            raise UserError(
                f"name={self.name} cannot name a folder",
                f"letters, digits and _ . = + -, a letter, digit or _ first, {LONGEST_NAME} bytes at most",
                f"name={short or 'mine'}",
            )
        for key, value in self.tags.items():
            if not re.fullmatch(r"[\w.:/ -]{1,250}", key) or len(value) > LONGEST_TAG:
                raise UserError(
                    f"tags.{key}={value} cannot be a tag of MLflow",
                    f"a name of letters, digits and _ . : / -, a text of {LONGEST_TAG:,} characters at most",
                    "tags={}",
                )


def no_fork(weights: str) -> UserError:
    """Returns the error for `fork_weights` where no run is forked."""
    return UserError(
        f"fork_weights={weights} without fork: there is no run to take weights from",
        "fork_weights together with fork",
        f"fork=<run id> fork_weights={weights}",
    )


GROUPS = ("data", "precision", "optimizer", "schedule", "tracking", "cluster")
"""Groups that are no stage themselves; stages take them by interpolation."""

SCHEMAS: Mapping[str, Mapping[str, type]] = {
    "tracking": {"tracking": TrackingSettings},
    "cluster": {"cluster": ClusterSettings},
    "data": {
        "digits": data.DigitsSettings,
        "tfds": data.TfdsSettings,
        "image_folder": data.ImageFolderSettings,
        "synthetic": data.SyntheticSettings,
    },
    "normalize": {"normalize": images.NormalizeSettings},
    "augment": {"augment": images.AugmentSettings},
    "inspect": {"inspect": inspect.InspectSettings},
    "strategy": {
        "default": strategy.DefaultSettings,
        "one_device": strategy.OneDeviceSettings,
        "mirrored": strategy.MirroredSettings,
        "central_storage": strategy.CentralStorageSettings,
        "multi_worker": strategy.MultiWorkerSettings,
        "parameter_server": strategy.ParameterServerSettings,
        "model_parallel": strategy.ModelParallelSettings,
        "tpu": strategy.TpuSettings,
    },
    "precision": {"precision": model.PrecisionSettings},
    "model": {"model": model.ModelSettings},
    "network": {
        "mlp": model.MlpSettings,
        "cnn": model.CnnSettings,
        "cnn_photo": model.CnnPhotoSettings,
        "resnet": model.ResnetSettings,
        "application": model.ApplicationSettings,
    },
    "optimizer": {"sgd": optimizer.SgdSettings, "adam": optimizer.AdamSettings, "adamw": optimizer.AdamWSettings},
    "schedule": {"schedule": optimizer.ScheduleSettings},
    "train": {"loop": train.TrainSettings, "fit": train.FitSettings},
    "evaluate": {"evaluate": results.EvaluateSettings},
    "export": {"export": results.ExportSettings},
}


_SCHEMA_OF: Mapping[str, type] = {
    "precision": model.PrecisionSettings,
    "optimizer": optimizer.OptimizerSettings,
    "schedule": optimizer.ScheduleSettings,
    "tracking": TrackingSettings,
    "cluster": ClusterSettings,
}
"""Groups that the framework reads itself, and what it reads them as."""


def register_schemas() -> None:
    """Makes the dataclasses known to Hydra as `schema/<group>`, for the YAML options to start from."""
    store = ConfigStore.instance()
    for group, schemas in SCHEMAS.items():
        for name, schema in schemas.items():
            store.store(group=f"schema/{group}", name=name, node=schema)


@dataclass(frozen=True)
class Experiment:
    """One job's configuration, checked.

    settings: for each stage of `pipeline`, its settings: a dataclass, or a dict where no schema is known yet.
    groups: for each stage, the name under which users know its settings: `data` for `load`, else its own.
    choices: the option taken from each group.
    config_dirs: the folders of configuration that the user has added, as by `--config-dir`.
    document: the whole configuration with its interpolations, to be recorded.
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
    tags: Mapping[str, str]
    pipeline: Mapping[str, str]
    tracking: TrackingSettings
    cluster: ClusterSettings
    settings: Mapping[str, Any]
    groups: Mapping[str, str]
    choices: Mapping[str, str]
    document: DictConfig
    config_dirs: tuple[Path, ...] = ()


def read(document: DictConfig, choices: Mapping[str, str], config_dirs: tuple[Path, ...] = ()) -> Experiment:
    """Returns the experiment that a composed configuration describes.

    Args:
        document: without Hydra's own node.
        choices: from each group to the option taken.
        config_dirs: the folders of configuration that the user has added.

    Raises:
        UserError: for an unknown key, a wrong type or a value outside its range.
    """
    try:
        values = OmegaConf.to_container(document, resolve=False)
        assert isinstance(values, dict)
        learn(values)
        check_values(values)
        names = {entry.name for entry in dataclasses.fields(TopSettings)}
        typed = OmegaConf.merge(OmegaConf.structured(TopSettings), {key: values[key] for key in names & values.keys()})
        top = OmegaConf.to_object(typed)
        assert isinstance(top, TopSettings)
        pipeline = {stage: makes for stage, makes in top.pipeline.items() if makes is not None}
        _refuse_unknown(values, names | set(GROUPS) | top.pipeline.keys())
        _refuse_added(document)
        for group, schema in _SCHEMA_OF.items():
            _has_schema(document, group, schema)
        settings = {stage: _settings(document, stage) for stage in pipeline}
        tracking, cluster = OmegaConf.to_object(document.tracking), OmegaConf.to_object(document.cluster)
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
    return Experiment(
        name=top.name or f"{choices.get('data', 'data')}_{choices.get('model', 'model')}",
        seed=top.seed,
        deterministic=top.deterministic,
        dry_run=top.dry_run,
        max_jobs=top.max_jobs,
        outputs=_outputs(top.outputs),
        job_timeout_seconds=top.job_timeout_seconds,
        hang_seconds=top.hang_seconds,
        resume=top.resume,
        fork=top.fork,
        fork_weights=top.fork_weights,
        tags=top.tags,
        pipeline=pipeline,
        tracking=tracking,
        cluster=cluster,
        settings=settings,
        groups={stage: _group(values, stage) for stage in pipeline},
        choices=choices,
        document=document,
        config_dirs=config_dirs,
    )


def _learn_resolved(document: DictConfig) -> None:
    """Learns the secrets that stand behind interpolations, such as `${oc.env:DB}`; a missing one is told elsewhere."""
    with suppress(OmegaConfBaseException):
        learn(OmegaConf.to_container(document, resolve=True))


def _outputs(given: str | None) -> Path:
    if not given:
        return default_outputs()
    place = resolved(given)
    if place is None:
        raise UserError(f"outputs={given} can be no directory", "a directory of yours", "outputs=./outputs")
    return place


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
    """Returns the name under which users know a stage's settings: `load` is `${data}`, so `data`."""
    value = values.get(stage)
    return value[2:-1] if isinstance(value, str) and value.startswith("${") else stage


def _refuse_unknown(values: Mapping[Any, Any], known: set[str]) -> None:
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(str(key), sorted(known), 1)
            advice = f"{near[0]}=…" if near else f"+pipeline.{key}=<what it makes>, if it is a stage"
            raise UserError(f"{key} is neither a setting nor a stage of `pipeline`", ", ".join(sorted(known)), advice)


def _refuse_added(node: Any, path: str = "", whole: DictConfig | None = None) -> None:
    """Refuses what `+`, or a file, has put where a schema has no such name: nobody would read it.

    Args:
        node: a part of the configuration, whose parts are looked into, too.
        path: the name of `node` in the configuration `whole`.
    """
    if isinstance(node, ListConfig):
        for index in range(len(node)):
            if not OmegaConf.is_missing(node, index):
                _refuse_added(node[index], f"{path}.{index}", whole)
    if not isinstance(node, DictConfig) or node._is_none():
        return
    whole, schema = node if whole is None else whole, OmegaConf.get_type(node)
    known = {entry.name for entry in dataclasses.fields(schema)} if dataclasses.is_dataclass(schema) else None
    names: list[Any] = list(node)
    for key in names:
        name = f"{path}.{key}".lstrip(".")
        if known is not None and key not in known:
            others = [other for other in dotted(whole) if not f"{other}.".startswith(f"{name}.")]
            raise _no_function(path, name) if key == "_target_" else unknown_key(name, others)
        if not OmegaConf.is_interpolation(node, key) and not OmegaConf.is_missing(node, key):
            _refuse_added(node[key], name, whole)


def _no_function(group: str, name: str) -> UserError:
    options = read_options([CONF]).groups.get(group, ())
    choose = f"{group}=<one of {', '.join(options)}>" if options else "its own settings"
    return UserError(
        f"{name}: {group} is given by its settings, not by a function",
        choose,
        f"{group}={options[0]}" if options else "",
    )


def _has_schema(document: DictConfig, group: str, schema: type) -> None:
    """Refuses an option of a user's own that does not start from a schema, by which the framework reads it."""
    if group not in document or not issubclass(OmegaConf.get_type(document, group) or type(None), schema):
        first = next(iter(SCHEMAS[group]))
        raise UserError(
            f"{group} is no {schema.__name__}",
            f"an option whose file starts from a schema: /schema/{group}@_here_: {', '.join(SCHEMAS[group])}",
            f"{group}={(read_options([CONF]).groups.get(group) or (first,))[0]}",
        )
