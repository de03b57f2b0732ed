"""Settings of own code are checked before TensorFlow is imported, however its modules are written."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.paths import CONF
from pipeline.planning.earlier import prepare
from pipeline.source_code.annotations import declared_settings
from pipeline.source_code.signatures import find
from stages.errors import UserError
from tests.pipeline.experiments import experiment

pytestmark = pytest.mark.slow

ROOT = CONF.parent

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
        "own_a.py": "import tensorflow as tf\nimport keras\nfrom stages.optimization.losses import probabilities\n"
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
    "constants, helpers, conditions": {
        "own_a.py": "import tensorflow as tf\nimport dataclasses as d\n" + COMMON
        + "LEAST = {}\nLEAST['bins'] = 0\nif True:\n    LEAST['bins'] += 1\n"
        "def whole(default): return number(default, at_least=LEAST['bins'], unit='bins')\n"
        "@d.dataclass(kw_only=True)\nclass Settings:\n"
        + FIELDS.replace('number(10, at_least=1, unit="bins")', "whole(10)") + STAGE.format(annotation="Settings")
    },
    "an import in the branches of a try": {
        "own_a.py": "from dataclasses import dataclass\ntry:\n    import tensorflow as tf\nexcept ImportError:\n"
        "    tf = None\n" + COMMON + BARE + STAGE.format(annotation="Settings")
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
    "sides: {a: 1}": r"own\.sides",
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


def test_none_of_them_imports_tensorflow(path: Path) -> None:
    """One process reads all of them, in a second or two."""
    lines = ["import sys, time", "from pipeline.source_code.annotations import declared_settings"]
    for number, (kind, files) in enumerate(MODULES.items()):
        write(path / str(number), files)
        lines += [
            f"sys.path.insert(0, {str(path / str(number))!r})",
            "began = time.process_time()",
            f"found = declared_settings({TARGETS[kind]!r})",
            f"assert found().bins == 10 and found.__name__ in ('Settings', 'Own'), {kind!r}",
            f"assert not {{'tensorflow', 'keras'}} & set(sys.modules), {kind!r}",
            f"assert time.process_time() - began < 2, {kind!r}",
            "sys.path.pop(0); [sys.modules.pop(name) for name in list(sys.modules) if name.startswith('own_')]",
            "sys.path_importer_cache.clear()",
        ]
    script = "\n".join(lines)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


def test_what_no_source_can_tell_is_imported(path: Path) -> None:
    """A class that is made, not written."""
    made = "import keras, dataclasses\nS = vars().setdefault('T', dataclasses.make_dataclass('T', [('bins', int)]))\n"
    write(path, {"own_made.py": made + STAGE.format(annotation="S")})
    with pytest.raises(UserError, match="bins=x has the wrong type"):
        own("own_made.stage", "bins: x")
    write(path, {"own_heavy.py": "import keras\nfrom dataclasses import dataclass\n@dataclass\nclass Settings:\n"
                 "    name: str = keras.backend.backend()\n" + STAGE.format(annotation="Settings")})  # fmt: skip
    found = declared_settings("own_heavy.stage")
    assert found is not None
    assert found().name == "tensorflow"


def test_a_declared_class_is_the_one_that_the_module_has(path: Path) -> None:
    """Field by field, for the project's own stages and for a module that was imported."""
    import dataclasses
    import importlib

    for target in ("stages.train.train", "stages.load.tfds.tfds", "stages.export.export"):
        module = importlib.import_module(target.rpartition(".")[0])
        real = evaluate_real(module, target)
        declared = declared_settings(target)
        assert declared is not None
        assert [field.name for field in dataclasses.fields(declared)] == [
            field.name for field in dataclasses.fields(real)
        ]


def evaluate_real(module: object, target: str) -> type:
    import typing

    function = getattr(module, target.rpartition(".")[2])
    return typing.get_type_hints(function, {**vars(module), "Path": Path})["settings"]


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
    "model.network={_target_: own_net.tiny, unitz: 3}": r"\.unitz'\. Expected one of: model\.network\.units",
    "model.network={_target_: own_net.tiny}": r"units is not given.*Try: \+model\.network\.units=<value>",
    "model.network={_target_: own_net.tiny, units: x}": r"units=x has the wrong type\. Expected a whole number",
    "model.network={_target_: own_net.tiny, units: 1.5}": "wrong type",
    "model.network={_target_: own_net.tiny, units: true}": "wrong type",
    "model.network={_target_: own_net.tiny, units: 1, rate: fast}": "Expected a number",
    "model.network={_target_: own_net.nope}": "there is no own_net.nope",
    "model.network={_target_: own_nope.tiny}": "there is no package own_nope",
    "model.network={_target_: tiny}": "there is no package tiny",
    "model.network._target_=own_net.tiny": r"settings of this option of model, .*Try: --config-dir=",
    "train.callbacks=[{_target_: own_net.Watch, every: 3}]": None,
    "train.callbacks=[{_target_: own_net.Heir, every: 3}]": None,
    "train.callbacks=[{_target_: own_net.Heir, evry: 3}]": r"\[0\]\.evry'\. Expected .*\.every",
    "train.callbacks=[{_target_: own_net.Watch, every: x}]": "wrong type",
    "train.callbacks=[{_target_: keras.callbacks.EarlyStopping, patience: 3}]": None,
    "train.callbacks=[{_target_: keras.callbacks.EarlyStopping, patienze: 3}]": "patienze'.*patience",
    "train.callbacks=[{_target_: keras.callbacks.CSVLogger}]": "filename is not given",
    "train.callbacks=[{_target_: keras.callbacks.Nope}]": "there is no keras.callbacks.Nope",
    "train.callbacks=[5]": r"train\.callbacks\[0\]=5 names no callback",
    "train.callbacks=[{patience: 3}]": "names no callback",
    "train.callbacks=[null]": "names no callback",
}


@pytest.mark.parametrize("given", CALLS)
def test_arguments_of_functions_and_classes_are_checked_by_their_signature(given: str, path: Path) -> None:
    write(path, {"own_net.py": NETWORK})
    option = "defaults:\n  - /schema/model@_here_: model\n  - _self_\nnetwork: {}\n"
    write(path, {"conf/model/own.yaml": option})
    added = ["model=own", f"hydra.searchpath=[file://{path}/conf]", f"+{given}"]
    overrides = added if given.startswith("model.network={") else [given]
    if CALLS[given] is None:
        prepare(experiment(*overrides, "dry_run=true"))
        return
    with pytest.raises(UserError, match=CALLS[given]):
        prepare(experiment(*overrides, "dry_run=true"))


def test_a_module_that_is_no_python_is_named_with_its_line(path: Path) -> None:
    write(path, {"own_broken.py": "x = 1\ndef stage(:\n"})
    with pytest.raises(UserError, match=r"own_broken\.py is not Python: .*\(line 2\)"):
        own("own_broken.stage", "a: 1")


def test_a_changed_module_is_read_again(path: Path) -> None:
    write(path, {"own_net.py": NETWORK})
    assert find("own_net.tiny") is not None
    time.sleep(0.01)
    write(path, {"own_net.py": "other = 1\n"})
    with pytest.raises(LookupError):
        find("own_net.tiny")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("optimizer=custom", r"names no optimizer.*Try: optimizer\._target_=keras\.optimizers\.Lion"),
        ("optimizer=custom optimizer._target_=keras.optimizers.Lino", r"optimizer\._target_=.*there is no keras.opt"),
        ("schedule=custom", r"names no schedule.*Try: schedule\._target_="),
        (
            "schedule=custom schedule._target_=keras.optimizers.schedules.CosineDecay +schedule.arguments.alfa=1",
            r"unknown setting 'schedule\.arguments\.alfa'.*schedule\.arguments\.alpha",
        ),
    ],
)
def test_an_optimizer_and_a_schedule_by_target_are_checked(given: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        prepare(experiment(*given.split()))
    prepare(experiment("optimizer=custom", "optimizer._target_=keras.optimizers.Lion", "optimizer.learning_rate=1e-3"))
