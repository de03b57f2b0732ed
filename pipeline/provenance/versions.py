"""Versions of Python, of this project and of the packages of a run, and its machine."""

import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata

from pipeline import __version__
from pipeline.system import machine

VERSIONED = ("tensorflow", "keras", "numpy", "mlflow", "hydra-core", "omegaconf", "tensorflow-datasets", "scikit-learn")


@cache
def versions() -> Mapping[str, str]:
    """Returns the versions of Python, this project and the packages that decide a run's numbers."""
    numbers = {"python": sys.version.split()[0], "pipeline": __version__}
    for name in VERSIONED:
        try:
            numbers[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            numbers[name] = "none"
    return numbers


@cache
def packages() -> str:
    """Returns all installed distributions as lines `name==version`, without addresses.

    As they were at the first call: those that this process, or the one that it was forked from, has imported.
    """
    numbers = {entry.metadata["Name"]: entry.version for entry in metadata.distributions()}
    lines = [f"{name}=={version}" for name, version in numbers.items() if name]
    return "\n".join(sorted(lines, key=str.lower)) + "\n"


def environment() -> dict[str, object]:
    return {"machine": machine.facts(), "versions": versions()}
