"""Checks of Keras callbacks: a package may be missing, or an argument may not be possible in a configuration."""

import shlex
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.targets import load
from stages.errors import UserError
from stages.targets import import_target

KERAS = "keras.callbacks."

PACKAGES = {
    "TensorBoard": ("tensorboard", "tensorboard"), "RemoteMonitor": ("requests", "requests"),
    "OrbaxCheckpoint": ("orbax", "orbax-checkpoint"),
}  # fmt: skip
"""Modules that Keras callbacks need, and the packages that contain them. TensorFlow does not install these."""

FUNCTIONS = ("LambdaCallback", "LearningRateScheduler")
"""Keras callbacks whose arguments are functions."""


def check_callback(place: str, target: str) -> None:
    """Refuse a target that is not a callback or cannot work here.

    Args:
        place: The setting that names it, for errors.
        target: The import path of the callback.

    Raises:
        UserError: If the target does not exist or is not a callback, a package is missing, or the callback would
            interfere with resuming.
    """
    if target.startswith("stages.callbacks."):
        return
    for name in PACKAGES if target.startswith(KERAS) else ():  # before Keras is imported
        _check_package(place, target, name, target == f"{KERAS}{name}")
    callback = load(place, target)
    if isinstance(callback, type) and not extends(callback, f"{KERAS}Callback"):  # a function may return a callback
        raise UserError(f"{place}: {target} is not a Keras callback", "a subclass of keras.callbacks.Callback")
    if extends(callback, f"{KERAS}BackupAndRestore"):
        problem = f"{place}: {target} would restore old weights and train all epochs again"
        raise UserError(problem, "no such callback, because an interrupted run resumes by itself", "train.callbacks=[]")
    for name in PACKAGES:
        _check_package(place, target, name, extends(callback, f"{KERAS}{name}"))


def _check_package(place: str, target: str, name: str, needs: bool) -> None:
    module, package = PACKAGES[name]
    if needs and find_spec(module) is None:
        problem = f"{place}: {target} requires the package {package}, which is not installed"
        raise UserError(problem, "the package, or a different callback", f"pip install {package}")


def check_arguments(place: str, target: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of a Keras callback that would end the training when they are first used.

    Other targets are not checked.

    Raises:
        UserError: If a function is given as text, a folder does not exist, or the callback itself refuses an argument.
    """
    name = target.removeprefix(KERAS)
    if name == target or name == "OrbaxCheckpoint":  # creating this one would create its folder
        return
    for key, value in arguments.items() if name in FUNCTIONS else ():
        if (key == "schedule" or key.startswith("on_")) and not callable(value):
            expected = f"the import path of your own function that returns keras.callbacks.{name}({key}=…)"
            fix = "'train.callbacks=[{_target_: <my_package.my_function>}]'"
            raise UserError(f"{place}: {key} of {target} must be a function, not {value!r}", expected, fix)
    if name == "CSVLogger":
        folder = Path(str(arguments["filename"])).expanduser().parent
        if not folder.is_dir():
            problem = f"{place}: the folder {folder} of {target} does not exist"
            raise UserError(problem, "an existing folder", f"mkdir -p {shlex.quote(str(folder))}")
    try:
        import_target(target)(**arguments)
    except Exception as error:  # Keras raises errors of many types for wrong values
        raise UserError(f"{place}: {target}: {error}", "arguments that it accepts") from error


def extends(target: Any, base: str) -> bool:
    """Return whether `target` is a subclass of the class at the import path `base`."""
    return isinstance(target, type) and issubclass(target, import_target(base))
