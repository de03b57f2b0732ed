"""Every Keras callback works, or is refused before training with the reason."""

import importlib.util
from pathlib import Path
from typing import Any

import keras
import pytest

from pipeline.checks import callbacks as checks
from pipeline.checks.registry import check_own_code
from stages.errors import UserError
from tests.conftest import ROOT
from tests.pipeline.experiments import Patch, experiment

ARGUMENTS: dict[str, dict[str, Any]] = {
    "CSVLogger": {"filename": "log.csv"}, "ModelCheckpoint": {"filepath": "some/best.keras"},
}  # fmt: skip
"""Required arguments of Keras callbacks."""

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "BackupAndRestore": ({"backup_dir": "x"}, "would restore old weights"),
    "LearningRateScheduler": ({"schedule": "builtins.abs"}, "schedule of .* must be a function, not 'builtins.abs'"),
    "LambdaCallback": ({"on_epoch_end": "print"}, "on_epoch_end of .* must be a function, not 'print'"),
    "OrbaxCheckpoint": ({"directory": "x"}, "requires the package orbax-checkpoint.*Try: pip install orbax-checkpoint"),
    "TensorBoard": ({}, "requires the package tensorboard, which is not installed.*Try: pip install tensorboard"),
    "RemoteMonitor": ({}, "requires the package requests"),
    "ModelCheckpoint": ({"filepath": "best"}, "must end in `.keras`"),
    "CSVLogger": ({"filename": "no such/log.csv"}, "the folder no such of .* does not exist.*Try: mkdir -p 'no such'"),
}  # fmt: skip

OTHERS = ("Callback", "CallbackList", "SwapEMAWeights")
"""Callbacks that are not tested here: a base class, a container, and one that tests/stages/callbacks tests."""


def check(name: str, **arguments: Any) -> None:
    place, target = "train.callbacks[0]", f"keras.callbacks.{name}"
    checks.check_callback(place, target)
    checks.check_arguments(place, target, arguments)


@pytest.mark.parametrize("name", [name for name in dir(keras.callbacks) if name[0].isupper() and name not in OTHERS])
def test_a_keras_callback_is_accepted_or_refused(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    if name in REFUSED:
        arguments, message = REFUSED[name]
        monkeypatch.setattr(checks, "find_spec", lambda module: None)
        with pytest.raises(UserError, match=message):
            check(name, **arguments)
    if name not in ("BackupAndRestore", "OrbaxCheckpoint"):
        monkeypatch.setattr(checks, "find_spec", lambda module: True)
        check(name, **ARGUMENTS.get(name, {"schedule": abs} if name == "LearningRateScheduler" else {}))
    assert not [*tmp_path.iterdir()]


def test_a_subclass_needs_the_same_package(monkeypatch: Patch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda module: None)
    for target in (f"{__name__}.Board", "keras.callbacks.TensorBoard"):
        with pytest.raises(UserError, match=f"{target} requires the package tensorboard"):
            checks.check_callback("train.callbacks[0]", target)


class Board(keras.callbacks.TensorBoard):
    pass


def test_an_experiment_with_a_wrong_callback_is_refused_before_training() -> None:
    given = experiment("train.callbacks=[{_target_: keras.callbacks.ModelCheckpoint, filepath: best}]")
    with pytest.raises(UserError, match=r"^train\.callbacks\[0\]: keras\.callbacks\.ModelCheckpoint: The filepath"):
        check_own_code(given)


def test_the_page_names_all_callbacks_that_are_refused_or_need_a_package() -> None:
    page = (ROOT / "docs" / "how-to" / "callbacks.md").read_text()
    for name in ("BackupAndRestore", "SwapEMAWeights", *checks.FUNCTIONS):
        assert f"`{name}`" in page
    for name, (_, package) in checks.PACKAGES.items():
        installed = package == "requests"  # MLflow installs it
        assert installed or (f"`{name}`" in page and f"pip install {package}" in page)
    assert importlib.util.find_spec("requests")
