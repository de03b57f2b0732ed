"""Callbacks of Keras that cannot work: what they need is missing, or a configuration cannot say it."""

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
"""Modules that callbacks of Keras need, and the packages that have them: TensorFlow does not install these."""

FUNCTIONS = ("LambdaCallback", "LearningRateScheduler")
"""Callbacks of Keras that take functions."""


def check_callback(place: str, target: str) -> None:
    """Refuse what is not a callback, and one that cannot work here.

    Args:
        place: What named it, for errors.

    Raises:
        UserError: For a target that does not exist or is not a callback, a package that is missing, and a callback that
            does what the training does.
    """
    if target.startswith("stages.callbacks."):
        return
    for name in PACKAGES if target.startswith(KERAS) else ():  # before Keras is imported
        _check_package(place, target, name, target == f"{KERAS}{name}")
    found = load(place, target)
    if isinstance(found, type) and not extends(found, f"{KERAS}Callback"):  # a function may make one
        raise UserError(f"{place}: {target} is not a Keras callback", "a subclass of keras.callbacks.Callback")
    if extends(found, f"{KERAS}BackupAndRestore"):
        problem = f"{place}: {target} would restore old weights and train all epochs again"
        raise UserError(problem, "no such callback, because an interrupted run resumes by itself", "train.callbacks=[]")
    for name in PACKAGES:
        _check_package(place, target, name, extends(found, f"{KERAS}{name}"))


def _check_package(place: str, target: str, name: str, needs: bool) -> None:
    module, package = PACKAGES[name]
    if needs and find_spec(module) is None:
        problem = f"{place}: {target} requires the package {package}, which is not installed"
        raise UserError(problem, "the package, or a different callback", f"pip install {package}")


def check_arguments(place: str, target: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of Keras' own callbacks, of any other target none, that end a training at their first use.

    Raises:
        UserError: For a function as a text, a folder that does not exist, or what the callback itself refuses.
    """
    name = target.removeprefix(KERAS)
    if name == target or name == "OrbaxCheckpoint":  # which creates its folder
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
    except Exception as error:  # Keras checks values here, by errors of all kinds
        raise UserError(f"{place}: {target}: {error}", "arguments that it accepts") from error


def extends(found: Any, base: str) -> bool:
    """Return whether a class extends the one at the import path `base`."""
    return isinstance(found, type) and issubclass(found, import_target(base))
