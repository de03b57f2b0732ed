"""Functions and classes that a configuration names by `_target_`, and their parameters.

The functions of this project's stages are read from their source, because importing them starts TensorFlow. Custom code
is imported, so a wrong name or setting is refused before anything is recorded.
"""

import ast
import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import stages
from pipeline.system.environment import light_imports, quiet_stderr
from stages.errors import UserError
from stages.targets import imported


def load(place: str, target: str) -> Callable[..., Any]:
    """Import the function or class `target` of the setting `place`, such as `model.network`.

    Raises:
        UserError: If it does not exist.
    """
    expected = "the import path of a function or class, from an installed package or the working directory"
    fix = f"{place}._target_=<package>.<module>.<function>"
    with quiet_stderr(), light_imports():
        function: Callable[..., Any] = imported(target, f"{place}._target_={target}", expected, fix)
    return function


def signature(place: str, target: str) -> inspect.Signature:
    """Return the signature of a function, or of a class without `self`.

    For compiled code without a signature, it is one that accepts any arguments.

    Raises:
        UserError: If `target` does not exist.
    """
    if (read := _read(target)) is not None:
        return read
    try:
        return inspect.signature(load(place, target))
    except (TypeError, ValueError):
        return inspect.Signature([inspect.Parameter("settings", inspect.Parameter.VAR_KEYWORD)])


def named_parameters(called: inspect.Signature) -> dict[str, inspect.Parameter]:
    """Return the parameters that have a name, without `*args` and `**kwargs`."""
    return {
        name: entry
        for name, entry in called.parameters.items()
        if entry.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    }


@functools.cache
def _read(target: str) -> inspect.Signature | None:
    """Return the signature of a function of this project's stages from its source; None for any other function."""
    package, *inner, name = ("", *target.split("."))[target.count(".") > 0 :]
    path = Path(stages.__path__[0], *inner).with_suffix(".py")
    if package != "stages" or not path.is_file():
        return None
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            for part in ast.walk(node.args):
                if isinstance(part, ast.arg):
                    part.annotation = None
            node.args.defaults = [ast.Constant(None) for _ in node.args.defaults]
            node.args.kw_defaults = [default and ast.Constant(None) for default in node.args.kw_defaults]
            return inspect.signature(eval(f"lambda {ast.unparse(node.args)}: None"))
    return None


def settings_class(function: Callable[..., Any]) -> type | None:
    """Return the dataclass that a stage's function declares for its parameter `settings`, if it declares one."""
    annotation = getattr(function, "__annotations__", {}).get("settings")
    if isinstance(annotation, str):  # in a module with `from __future__ import annotations`
        annotation = eval(annotation, vars(inspect.getmodule(function)))
    kinds = typing.get_args(annotation) or (annotation,)
    return next((kind for kind in kinds if isinstance(kind, type) and dataclasses.is_dataclass(kind)), None)


def check_installed(setting: str, packages: Sequence[str], extra: str) -> None:
    """Raise UserError if a package that `setting` requires is not installed.

    Args:
        setting: The setting that requires the packages, for errors.
        packages: The required packages.
        extra: The extra of this project that contains them.
    """
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        expected = f"the packages of this project's extra '{extra}': {', '.join(packages)}"
        fix = f"pip install {' '.join(missing)}"
        raise UserError(f"{setting}: the package {missing[0]} is not installed", expected, fix)
