"""The parts of Hydra that `pipeline/internals/hydra.py` relies on: its composition and its grammar."""

from pathlib import Path
from typing import Any

import hydra as public
import pytest
from hydra._internal import defaults_list
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from packaging.version import Version

from pipeline.config.errors import parts
from pipeline.config.schemas import SCHEMAS
from pipeline.internals import hydra
from pipeline.internals.hydra import Files, Override, ValueType
from pipeline.paths import CONF
from tests.pipeline.experiments import write_files

MINE = {
    "experiment/mine.yaml": "# @package _global_\ndefaults:\n  - /noted@notes: ${experiment}\n"
    "  - override /model: mlp\nname: ${hydra:runtime.choices.model}_of_mine\ntrain:\n  epochs: 3\n",
    "noted/mine.yaml": "said: yes of it\n",
    "optimizer/mine.yaml": "defaults:\n  - /schema/optimizer@_here_: sgd\n  - _self_\nlearning_rate: 0.5\n",
}
"""A user's folder: a package, an option named by an interpolation, an override in a defaults list, a schema."""


def composed_in_public(options: list[str], folder: Path) -> tuple[Any, dict[str, str]]:
    """Compose with Hydra's public functions; return the settings and the option of each group."""
    with public.initialize_config_dir(str(CONF), version_base=None):
        words = [*options, f"hydra.searchpath=['file://{folder}','dataclass://']"]
        document = public.compose("config", words, return_hydra_config=True)
    choices = {name: option for name, option in document.hydra.runtime.choices.items() if not name.startswith("hydra/")}
    OmegaConf.set_struct(document, False)
    del document["hydra"]
    return document, choices


def schemas_of(document: DictConfig) -> dict[str, Any]:
    """Return the schema of each node and the types that it accepts, by the node's dotted name."""
    found: dict[str, Any] = {}
    for name, node, key in parts(document):
        if not OmegaConf.is_interpolation(node, key) and not OmegaConf.is_missing(node, key):
            found[name] = OmegaConf.get_type(node, key)
    return found


@pytest.mark.parametrize(
    "options",
    [[], ["model=cnn_photo", "strategy=mirrored", "data=image_folder"], ["experiment=mnist_cnn"], ["sweep=tpe"],
     ["experiment=mine"], ["optimizer=mine", "+noted=mine", "~augment"]],
)  # fmt: skip
def test_composition_equals_hydras_public_one(options: list[str], tmp_path: Path) -> None:
    """It has the same settings in the same order, the same schemas and the same choices."""
    write_files(tmp_path, MINE)
    document, choices = Files([CONF, tmp_path]).compose(options)
    expected, expected_choices = composed_in_public(options, tmp_path)
    assert OmegaConf.to_yaml(document) == OmegaConf.to_yaml(expected)
    assert schemas_of(document) == schemas_of(expected)
    assert dict(choices) == expected_choices
    assert OmegaConf.is_struct(document)
    assert schemas_of(document)["train"] in SCHEMAS["train"].values()


def test_each_composition_is_a_new_one() -> None:
    files = Files([CONF])
    first, _ = files.compose([])
    first.train.epochs = 99
    assert files.compose([])[0].train.epochs != 99


def test_groups_are_folders_and_unknown_options_are_refused() -> None:
    files = Files([CONF])
    assert [files.has_group(name) for name in ("model", "train", "seed", "schema/model", "nothing")] == [
        True, True, False, True, False,
    ]  # fmt: skip
    with pytest.raises(HydraException) as caught:
        files.compose(["model=nothing"])
    error: Any = caught.value
    assert (error.missing_cfg_file, "cnn" in error.options) == ("model/nothing", True)  # config/errors.py reads them


@pytest.mark.parametrize(
    ("text", "key", "kind", "value"),
    [
        ("a.b=3", "a.b", None, 3),
        ("a='x y'", "a", None, "x y"),
        ("a=[1,{b:null}]", "a", None, [1, {"b": None}]),
        ("a=1e-3", "a", None, 0.001),
        ("a=1,2", "a", ValueType.SIMPLE_CHOICE_SWEEP, ["1", "2"]),
        ("+a=choice(x,y)", "+a", ValueType.CHOICE_SWEEP, ["x", "y"]),
        ("a=range(0,6,2)", "a", ValueType.RANGE_SWEEP, ["0", "2", "4"]),
        ("a=glob(c*)", "a", ValueType.GLOB_CHOICE_SWEEP, None),
        ("a=interval(0.5,1)", "a", ValueType.INTERVAL_SWEEP, None),
    ],
)
def test_the_grammar(text: str, key: str, kind: ValueType | None, value: Any) -> None:
    override = hydra.parse(text)
    assert (override.get_key_element(), override.input_line, override.package) == (key, text, None)
    assert override.is_sweep_override() == (kind is not None)
    if kind is None:
        assert override.value() == value
        return
    assert override.value_type == kind
    whole: Any = override.value()
    if kind == ValueType.INTERVAL_SWEEP:
        assert (override.is_interval_sweep(), whole.start, whole.end, set(whole.tags)) == (True, 0.5, 1, set())
    elif kind == ValueType.GLOB_CHOICE_SWEEP:
        assert whole.filter(["cnn", "mlp"]) == ["cnn"]
    else:
        assert list(override.sweep_string_iterator()) == value
        assert not getattr(whole, "shuffle", False)


def test_a_range_has_its_bounds_and_tags() -> None:
    whole: Any = hydra.parse("a=tag(log,range(1,9,2))").value()
    assert isinstance(whole, hydra.RangeSweep)
    assert (whole.start, whole.stop, whole.step, set(whole.tags)) == (1, 9, 2, {"log"})


@pytest.mark.parametrize("text", ["a", "a=[1", "a=1 b=2", "a={"])
def test_a_text_that_is_not_an_override_raises(text: str) -> None:
    with pytest.raises(HydraException):
        hydra.parse(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a.b=2", {"a": {"b": 2}}), ("+a.c=3", {"a": {"b": 1, "c": 3}}), ("++a.b=4", {"a": {"b": 4}}),
     ("~a.b", {"a": {}}), ("+a={c: 5}", {"a": {"b": 1, "c": 5}})],
)  # fmt: skip
def test_values_are_set_added_and_deleted(text: str, expected: dict[str, Any]) -> None:
    document = OmegaConf.create({"a": {"b": 1}})
    OmegaConf.set_struct(document, True)
    hydra.apply(document, hydra.parse(text))
    assert OmegaConf.to_container(document) == expected


@pytest.mark.parametrize(
    ("text", "has_cause"), [("a.c=2", True), ("+a.b=2", False), ("~a.c", False), ("seed@x=1", False)]
)
def test_an_impossible_override_raises(text: str, has_cause: bool) -> None:
    """`command_line/compose.py` detects an unknown name by the cause of the error and its `full_key`."""
    document = OmegaConf.create({"a": {"b": 1}, "seed": 1})
    OmegaConf.set_struct(document, True)
    override: Override = hydra.parse(text)
    with pytest.raises((HydraException, OmegaConfBaseException)) as caught:
        hydra.apply(document, override)
    cause: Any = caught.value.__cause__
    assert (getattr(cause, "full_key", None) == "a.c") == has_cause


@pytest.mark.filterwarnings("error")
def test_users_files_may_refer_to_choices_without_a_warning() -> None:
    for model in ("cnn", "mlp"):
        hydra.resolve_choices({"model": model})
        assert OmegaConf.create({"a": "${hydra:runtime.choices.model}"}).a == model


def test_hydra_14_needs_no_change_to_its_interpolation_map() -> None:
    """Hydra 1.3 has the function that is replaced. Delete `_copy_choices_if_used` once 1.4 is the oldest version."""
    is_replaced = hasattr(defaults_list, hydra._INTERPOLATION_MAP)
    assert is_replaced == (Version(public.__version__) < Version("1.4rc1"))
