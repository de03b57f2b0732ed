"""Functions and classes that a configuration names by `_target_`."""

import importlib
from typing import Any


def import_target(target: str) -> Any:
    """Returns what the import path `target` names.

    Raises:
        ImportError, AttributeError or ValueError: where there is nothing of that name.
    """
    module, _, name = target.rpartition(".")
    return getattr(importlib.import_module(module), name)
