"""Settings of custom code are checked before anything is recorded."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from pipeline.command_line.arguments import read_arguments
from pipeline.command_line.compose import Composer
from pipeline.command_line.overrides import parsed
from pipeline.config.experiment import read
from pipeline.decide.decision import check
from stages.errors import UserError
from tests.pipeline.experiments import experiment, write_files

pytestmark = pytest.mark.slow

BARE = """\
@dataclass(kw_only=True)
class Settings:
    bins: int = number(10, at_least=1, unit="bins")
    share: float = 0.5
    kind: str = choice("a", "a", "b")
    sides: list[int] = number([1, 2], at_least=1)
    deep: bool = False
    seed: int = II("seed")
"""
IMPORTS = """\
import tensorflow as tf
from dataclasses import dataclass
from omegaconf import II
from stages.settings.ranges import choice, number
"""
STAGE = "def stage(dataset, settings: {}):\n    return None\n"

MODULES = {
    "a dataclass": IMPORTS + BARE + STAGE.format("Settings"),
    "postponed annotations": "from __future__ import annotations\n" + IMPORTS + STAGE.format("Settings | None") + BARE,
}

WRONG = {
    "bins: 0": r"own\.bins=0 is out of range\. Expected at least 1 \(bins\)",
    "bins: many": r"own\.bins=many has the wrong type\. Expected a whole number",
    "binz: 1": r"unknown setting 'own\.binz'\. Expected one of: own\.bins, own\.share, .*deep.*Try: own\.bins=",
    "kind: c": r"own\.kind=c is not supported\. Expected one of: a, b",
    "sides: [1, 0]": r"own\.sides.*0 is out of range",
    "a-b: 1": r"unknown setting 'own\.a-b'",
}


def own(target: str, settings: str) -> None:
    given = f"{{_target_: {target}, {settings}}}"
    check(experiment(f"+own={given}", "+pipeline.own=owned", "dry_run=true"))


@pytest.mark.parametrize("kind", MODULES)
def test_wrong_settings_of_a_custom_stage_are_refused(kind: str, own_code: Path) -> None:
    write_files(own_code, {"own_a.py": MODULES[kind]})
    own("own_a.stage", "bins: 3, sides: [2], share: 1")
    for settings, message in list(WRONG.items())[: None if kind == "a dataclass" else 3]:
        with pytest.raises(UserError, match=message):
            own("own_a.stage", settings)


NETWORK = """\
import keras
def tiny(input_shape, num_classes, units: int, rate: float = 0.1, deep: bool = False, name: "str" = "x"):
    return None
def open_one(input_shape, num_classes, **more):
    return None
@keras.saving.register_keras_serializable()
def decorated(input_shape, num_classes, units):
    return None
def of_tables(input_shape, num_classes, units, table, categories):
    return None
class Watch(keras.callbacks.Callback):
    def __init__(self, every: int = 1):
        super().__init__()
class Heir(Watch):
    pass
"""
CALLS: dict[str, str | None] = {
    "model.network={_target_: own_net.tiny, units: 3}": None,
    "model.network={_target_: own_net.open_one, anything: 3}": None,
    "model.network={_target_: own_net.decorated, units: 3}": None,
    "model.network={_target_: own_net.of_tables, units: 3}": None,
    "model.network={_target_: own_net.of_tables, size: 3}": r"got an .*'size'\. Expected settings .*: units(\.|$)",
    "model.network={_target_: own_net.tiny, unitz: 3}": r"own_net\.tiny: got an .*'unitz'\. Expected .*units",
    "model.network={_target_: own_net.tiny}": r"network: own_net\.tiny: missing .*'units'",
    "model.network={_target_: own_net.nope}": "own_net. has no attribute .nope",
    "model.network={_target_: own_nope.tiny}": "No module named 'own_nope'",
    "model.network._target_=own_net.tiny": r"model\.network: own_net\.tiny: got an .*'filters'",
    "train.callbacks=[{_target_: own_net.Heir, every: 3}]": None,
    "train.callbacks=[{_target_: own_net.Heir, evry: 3}]": r"\[0\]: .*'evry'\. Expected .*every",
    "train.callbacks=[{_target_: keras.callbacks.EarlyStopping, patienze: 3}]": "'patienze'. .*patience",
    "train.callbacks=[{_target_: keras.callbacks.CSVLogger}]": "missing .*'filename'",
    "train.callbacks=[5]": r"train\.callbacks\[0\]\._target_=None cannot be imported",
}


@pytest.fixture(scope="module")
def composer(tmp_path_factory: pytest.TempPathFactory) -> Composer:
    """Return a composer with a custom option: a model whose network is not set."""
    folder = tmp_path_factory.mktemp("conf")
    option = "defaults:\n  - /schema/model@_here_: model\n  - _self_\nnetwork: {}\n"
    write_files(folder, {"model/own.yaml": option})
    return Composer(read_arguments(["--config-dir", str(folder)]))


@pytest.mark.parametrize("given", CALLS)
def test_arguments_of_code_are_checked_by_its_signature(given: str, own_code: Path, composer: Composer) -> None:
    write_files(own_code, {"own_net.py": NETWORK})
    words = ["model=own", f"+{given}"] if given.startswith("model.network={") else [given]
    composed = composer.compose(parsed([*words, "dry_run=true"]))
    with pytest.raises(UserError, match=message) if (message := CALLS[given]) else nullcontext():
        check(read(composed.document, composed.choices, composed.config_dirs))


def test_a_module_with_a_syntax_error_is_named_with_its_line(own_code: Path) -> None:
    write_files(own_code, {"own_broken.py": "x = 1\ndef stage(:\n"})
    with pytest.raises(UserError, match=r"own_broken\.stage cannot be imported .*own_broken\.py, line 2\)"):
        own("own_broken.stage", "a: 1")
