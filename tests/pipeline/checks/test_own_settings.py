"""Settings of own code are checked before anything is recorded."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.planning.earlier import prepare
from stages.errors import UserError
from tests.pipeline.experiments import experiment

pytestmark = pytest.mark.slow

FIELDS = """\
    bins: int = number(10, at_least=1, unit="bins")
    share: float = 0.5
    kind: str = choice("a", "a", "b")
    sides: list[int] = number([1, 2], at_least=1)
    deep: bool = False
    seed: int = II("seed")
"""
COMMON = """\
from omegaconf import II
from stages.settings.ranges import choice, number
"""
STAGE = "def stage(dataset, settings: {annotation}):\n    return None\n"
BARE = "@dataclass(kw_only=True)\nclass Settings:\n" + FIELDS

MODULES = {
    "one module, TensorFlow at its top": {
        "own_a.py": "import tensorflow as tf\nimport keras\nfrom stages.tasks.classification import Classification\n"
        "from dataclasses import dataclass\n" + COMMON + BARE + STAGE.format(annotation="Settings")
    },
    "postponed annotations": {
        "own_a.py": "from __future__ import annotations\nimport tensorflow as tf\nfrom dataclasses import dataclass\n"
        + COMMON + BARE + STAGE.format(annotation="Settings | None")
    },
    "an annotation that is a string": {
        "own_a.py": "import tensorflow as tf\nfrom dataclasses import dataclass\n" + COMMON
        + STAGE.format(annotation="'Settings'") + BARE
    },
    "a package whose parent imports TensorFlow": {
        "own_a/__init__.py": "import tensorflow\nfrom .work import stage\n",
        "own_a/work.py": "import keras\nfrom .settings import Settings\n" + STAGE.format(annotation="Settings"),
        "own_a/settings.py": "from dataclasses import dataclass\n" + COMMON + BARE,
    },
    "a base class in a heavy module, methods that use it": {
        "own_a/__init__.py": "",
        "own_a/base.py": "import tensorflow as tf\nfrom dataclasses import dataclass\n" + COMMON
        + BARE + "    def build(self):\n        return tf.zeros(self.bins)\n",
        "own_a/work.py": "import own_a.base\nfrom own_a.base import Settings as Base\n"
        "from dataclasses import dataclass\n"
        "@dataclass(kw_only=True)\nclass Own(Base):\n    more: int = 1\n" + STAGE.format(annotation="Own"),
    },
}  # fmt: skip
TARGETS = {name: "own_a.work.stage" if "own_a/work.py" in files else "own_a.stage" for name, files in MODULES.items()}
TARGETS["a package whose parent imports TensorFlow"] = "own_a.stage"  # by its parent, at that

WRONG = {
    "bins: 0": r"own\.bins=0 is out of range\. Expected at least 1 \(bins\)",
    "bins: many": r"own\.bins=many has the wrong type\. Expected a whole number",
    "binz: 1": r"unknown setting 'own\.binz'\. Expected one of: own\.bins, own\.share, .*deep.*Try: own\.bins=",
    "kind: c": r"own\.kind=c is not known\. Expected one of: a, b",
    "sides: [1, 0]": r"own\.sides.*0 is out of range",
    "deep: maybe": r"own\.deep=maybe has the wrong type\. Expected true or false",
    "share: 0.5, bins: 1.5": r"own\.bins=1\.5 has the wrong type",
    "a-b: 1": r"unknown setting 'own\.a-b'",
}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0].startswith("own_")]:
        del sys.modules[name]


def write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def own(target: str, settings: str) -> None:
    given = f"{{_target_: {target}, {settings}}}"
    prepare(experiment(f"+own={given}", "+pipeline.own=owned", "dry_run=true"))


@pytest.mark.parametrize("kind", MODULES)
def test_wrong_settings_of_an_own_stage_are_refused(kind: str, path: Path) -> None:
    write(path, MODULES[kind])
    own(TARGETS[kind], "bins: 3, sides: [2], share: 1")
    for settings, said in WRONG.items() if kind == next(iter(MODULES)) else list(WRONG.items())[:3]:
        with pytest.raises(UserError, match=said):
            own(TARGETS[kind], settings)


NETWORK = """\
import keras
def tiny(input_shape, num_classes, units: int, rate: float = 0.1, deep: bool = False, name: "str" = "x"):
    return None
def open_one(input_shape, num_classes, **more):
    return None
@keras.saving.register_keras_serializable()
def decorated(input_shape, num_classes, units):
    return None
class Watch(keras.callbacks.Callback):
    def __init__(self, every: int = 1):
        super().__init__()
class Heir(Watch):
    pass
"""
CALLS = {
    "model.network={_target_: own_net.tiny, units: 3}": None,
    "model.network={_target_: own_net.tiny, units: 3, rate: 1}": None,
    "model.network={_target_: own_net.open_one, anything: 3}": None,
    "model.network={_target_: own_net.decorated, units: 3}": None,
    "model.network={_target_: own_net.tiny, unitz: 3}": r"\.unitz: own_net\.tiny does not take it\. Expected .*units",
    "model.network={_target_: own_net.tiny}": r"network\.units: own_net\.tiny requires it",
    "model.network={_target_: own_net.tiny, units: x}": r"units=x has the wrong type\. Expected a whole number",
    "model.network={_target_: own_net.tiny, units: 1.5}": "wrong type",
    "model.network={_target_: own_net.tiny, units: true}": "wrong type",
    "model.network={_target_: own_net.tiny, units: 1, rate: fast}": "Expected a number",
    "model.network={_target_: own_net.nope}": "own_net has no nope",
    "model.network={_target_: own_nope.tiny}": "No module named 'own_nope'",
    "model.network={_target_: tiny}": "_target_=tiny cannot be imported",
    "model.network._target_=own_net.tiny": r"model\.network\.filters: own_net\.tiny does not take it",
    "train.callbacks=[{_target_: own_net.Watch, every: 3}]": None,
    "train.callbacks=[{_target_: own_net.Heir, every: 3}]": None,
    "train.callbacks=[{_target_: own_net.Heir, evry: 3}]": r"\[0\]\.evry: .* Expected .*every",
    "train.callbacks=[{_target_: own_net.Watch, every: x}]": "wrong type",
    "train.callbacks=[{_target_: keras.callbacks.EarlyStopping, patience: 3}]": None,
    "train.callbacks=[{_target_: keras.callbacks.EarlyStopping, patienze: 3}]": "patienze: .*patience",
    "train.callbacks=[{_target_: keras.callbacks.CSVLogger}]": "filename: .* requires it",
    "train.callbacks=[{_target_: keras.callbacks.Nope}]": "keras.callbacks has no Nope",
    "train.callbacks=[5]": r"train\.callbacks\[0\]\._target_=None cannot be imported",
    "train.callbacks=[{patience: 3}]": "cannot be imported",
    "train.callbacks=[null]": "cannot be imported",
}


@pytest.mark.parametrize("given", CALLS)
def test_arguments_of_functions_and_classes_are_checked_by_their_signature(given: str, path: Path) -> None:
    write(path, {"own_net.py": NETWORK})
    option = "defaults:\n  - /schema/model@_here_: model\n  - _self_\nnetwork: {}\n"
    write(path, {"conf/model/own.yaml": option})
    added = ["--config-dir", f"{path}/conf", "model=own", f"+{given}"]
    overrides = added if given.startswith("model.network={") else [given]
    if CALLS[given] is None:
        prepare(experiment(*overrides, "dry_run=true"))
        return
    with pytest.raises(UserError, match=CALLS[given]):
        prepare(experiment(*overrides, "dry_run=true"))


def test_a_module_that_is_no_python_is_named_with_its_line(path: Path) -> None:
    write(path, {"own_broken.py": "x = 1\ndef stage(:\n"})
    with pytest.raises(UserError, match=r"own_broken\.stage cannot be imported .*own_broken\.py, line 2\)"):
        own("own_broken.stage", "a: 1")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("optimizer=custom", r"the import path of an optimizer.*Try: 'optimizer\._target_=keras\.optimizers\.Lion"),
        (
            "optimizer=custom optimizer._target_=keras.optimizers.Lino",
            "keras.optimizers has no Lino",
        ),
        ("schedule=custom", r"the import path of a schedule.*Try: 'schedule\._target_="),
        (
            "schedule=custom schedule._target_=keras.optimizers.schedules.CosineDecay +schedule.arguments.alfa=1",
            r"schedule\.arguments\.alfa: .* does not take it\. .*alpha",
        ),
    ],
)
def test_an_optimizer_and_a_schedule_by_target_are_checked(given: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        prepare(experiment(*given.split()))
    prepare(experiment("optimizer=custom", "optimizer._target_=keras.optimizers.Lion", "optimizer.learning_rate=1e-3"))
