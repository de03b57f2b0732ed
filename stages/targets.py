"""Functions and classes that a configuration names by `_target_`."""

import importlib
from typing import Any


def import_target(target: str) -> Any:
    """Returns the object at the import path `target`.

    Raises:
        ImportError, AttributeError or ValueError: where there is none.
    """
    module, _, name = target.rpartition(".")
    return getattr(importlib.import_module(module), name)
