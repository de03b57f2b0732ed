"""No value of any setting leads to a traceback or a failing run: it is valid, or refused in one line."""

import dataclasses
import inspect
import pickle
import typing
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.checks.registry import check_rules
from pipeline.config.errors import explain
from pipeline.config.experiment import read
from pipeline.config.schemas import TopSettings, TrackingSettings, top_level_key
from pipeline.decide.decision import check
from pipeline.paths import CONF
from stages.errors import UserError
from tests.pipeline.experiments import assert_refused, compose, experiment, schema_nodes

HOSTILE: tuple[Any, ...] = (
    2**31, 2**63, 10**400, float("nan"), float("-inf"), -1, -0.0, "1e400", "", "９",
    [1, [2]], {"a": 1}, None, True, "x" * 3000, "${nope}", "a\nb", " ", [],
)  # fmt: skip

NEEDED = {
    "cluster=tf_config": "strategy=multi_worker",
    "cluster=hosts": "strategy=multi_worker cluster.hosts=[localhost:23457,b.invalid:23457]",
    "strategy=tpu": "strategy.name=a", "data=image_folder": "data.dir=.", "data=text_folder": "data.dir=.",
    "data=tfds": "data.name=mnist", "model=keras_hub": "model.network.preset=.",
    "precision=bfloat16": "optimizer=sgd", "precision=float16": "optimizer=sgd",
    "optimizer=custom": "optimizer._target_=keras.optimizers.Lion",
    "schedule=custom": "schedule._target_=keras.optimizers.schedules.CosineDecay",
}  # fmt: skip
"""Settings without which an option cannot be composed."""

FILES_OF_OPTIONS = [path for path in CONF.glob("*/*.yaml") if path.parent.name not in ("pipeline", "experiment")]
OPTIONS = sorted(f"{path.parent.name}={path.stem}" for path in FILES_OF_OPTIONS)


@pytest.fixture
def somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that all data sets and packages exist."""
    for name in (
        "data.TfdsSettings", "data.ImageFolderSettings", "table.TableSettings", "arrays.ArraysSettings",
        "model.KerasHubSettings", "data.TextFolderSettings", "series.SeriesSettings",
    ):  # fmt: skip
        monkeypatch.setattr(f"stages.settings.{name}.check", lambda self, path: None)
    monkeypatch.setattr(
        "pipeline.checks.registry.check_data", lambda experiment: None
    )  # a single option does not fit the other defaults
    monkeypatch.setattr("stages.settings.model.KerasHubSettings.requires", ())


@pytest.mark.slow
@pytest.mark.usefixtures("somewhere")
@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_of_every_group_composes(option: str) -> None:
    own = experiment(option, *NEEDED.get(option, "").split(), "dry_run=true")
    group, _, name = option.partition("=")
    if option != "debug=none":  # only a debug run has this group
        assert own.choices[group] == name
    check(own)


@pytest.mark.slow
@pytest.mark.usefixtures("somewhere")
def test_every_experiment_composes() -> None:
    for path in (CONF / "experiment").glob("*.yaml"):
        assert experiment(f"experiment={path.stem}").name == path.stem


SEEN: set[tuple[str, str]] = set()


def first_definition(schema: type, name: str) -> str:
    """Return the class that declares a field, so inherited fields are not tried in each subclass."""
    return next(base.__name__ for base in reversed(schema.__mro__) if name in inspect.get_annotations(base))


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
def test_every_setting_accepts_or_refuses_every_value(option: str) -> None:
    composed = compose(option, *NEEDED.get(option, "").split(), "dry_run=true")
    saved = pickle.dumps(composed.document)
    settings = [
        (f"{place}.{field.name}" if place else top_level_key(field.name), field, schema)
        for place, schema in {"": TopSettings, **schema_nodes(composed.document)}.items()
        for field in dataclasses.fields(schema)
        if field.name not in ("pipeline", "outputs")
    ]
    for path, field, schema in settings:
        if (first_definition(schema, field.name), field.name) in SEEN:
            continue
        SEEN.add((first_definition(schema, field.name), field.name))
        for value in HOSTILE[len(SEEN) % 7 :: 7]:  # the next settings try the other values
            changed: DictConfig = pickle.loads(saved)  # copying it takes seven times as long
            try:
                OmegaConf.update(changed, path, value, force_add=True)
                check_rules(read(changed, composed.choices))
            except (
                UserError,
                OmegaConfBaseException,
                OverflowError,
            ) as raised:  # the command prints each of them as one line
                error = raised if isinstance(raised, UserError) else explain(raised)
                assert str(error).isprintable(), (path, value)
                assert f"unknown setting '{path}'" not in error.problem  # as under another option
                assert len(str(error)) < 8000, (path, value)
            else:
                assert is_valid(value, field, schema), f"{path}={value!r:.80} is taken"


def is_valid(value: Any, field: dataclasses.Field, schema: type) -> bool:
    """Return whether a setting may accept `value`; numbers must be ones that a run can compute with."""
    hint = typing.get_type_hints(schema)[field.name]
    if not isinstance(value, (int, float, str)) or isinstance(value, bool) or hint is Any:
        return True
    if hint in (bool, bool | None):  # any number but 0 is true
        return True
    if "str" in str(hint):
        return True
    number, largest = float(value), 3.5e38 if "float" in str(hint) else 2**31 - 1
    return abs(number) <= largest


def test_a_relative_path_of_sqlite_becomes_absolute() -> None:
    assert TrackingSettings("server", "sqlite:///a/b.db").uri == f"sqlite:///{Path.cwd()}/a/b.db"
    assert TrackingSettings("server", "sqlite:////a/b.db?timeout=9").uri == "sqlite:////a/b.db?timeout=9"


FILES = {
    "broken YAML": b"network: {a: [1\n",
    "no UTF-8": b"name: \xff\xfe\n",
    "a list": b"- 1\n- 2\n",
    "defaults of nobody": b"defaults:\n  - /nope: x\n",
    "a circle": b"defaults:\n  - /schema/model@_here_: model\n  - _self_\n"
                 b"network: {_target_: stages.networks.mlp.mlp, hidden: '${model.network.hidden}'}\n",
    "a tag of Python": b"a: !!python/object/apply:os.system ['true']\n",
}  # fmt: skip


@pytest.mark.slow
def test_wrong_files_of_a_user_are_refused(tmp_path: Path) -> None:
    for name, content in FILES.items():
        (tmp_path / name / "model").mkdir(parents=True)
        (tmp_path / name / "model" / "own.yaml").write_bytes(content)
        assert_refused(["--config-dir", str(tmp_path / name), "model=own", "dry_run=true"])
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "nowhere", tmp_path / "file", "~nobody_at_all/x"):
        assert_refused(["--config-dir", str(folder), "dry_run=true"])
