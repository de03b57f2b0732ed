"""Attributes of callbacks in checkpoints: numbers, strings, lists, mappings and arrays."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_PRIVATE_TO_KERAS = ("_model", "params", "validation_data", "min_delta")
"""Attributes that Keras sets. It flips the sign of `min_delta` at the first use of a callback, so twice if restored."""


def _no_secrets(name: str, value: object) -> bool:
    return False


_is_secret: Callable[[str, object], bool] = _no_secrets


def leave_out_secrets(is_secret: Callable[[str, object], bool]) -> None:
    """Have checkpoints of this process leave out attributes with secrets, such as a token of a monitoring service.

    Args:
        is_secret: Returns whether an attribute with this name and value has a secret.
    """
    global _is_secret  # one per process, as the secrets that it knows are
    _is_secret = is_secret


def state_of(target: object, name: str, arrays: dict[str, np.ndarray]) -> tuple[dict[str, Any], list[str]]:
    """Return the attributes of `target` that are numbers, strings, lists, mappings or arrays, in a form for JSON.

    Secrets are left out, see `leave_out_secrets`.

    Args:
        target: The object, such as a callback.
        name: A prefix for the names of its arrays.
        arrays: Receives its arrays.

    Returns:
        The attributes, and the names of attributes that are left out and are not callable.
    """
    attributes: dict[str, Any] = {}
    left_out: list[str] = []
    for key, value in vars(target).items():
        if key in _PRIVATE_TO_KERAS:
            continue
        own_arrays: dict[str, np.ndarray] = {}
        try:
            encoded = _encode(value, f"{name}.{key}.", own_arrays)
            if not _is_secret(key, encoded):
                attributes[key] = encoded
                arrays |= own_arrays
        except TypeError:
            if not callable(value):
                left_out.append(f"{key} ({type(value).__name__})")
    return attributes, left_out


def restore_attributes(target: object, state: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Set the attributes of `target` to those that `state_of` has returned."""
    for key, value in state.items():
        setattr(target, key, decoded(value, arrays))


def _encode(value: Any, prefix: str, arrays: dict[str, np.ndarray]) -> Any:
    if value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind != "O":
        name = f"{prefix}{len(arrays)}"
        arrays[name] = np.array(value)
        return {"array": name}
    if type(value) in (list, tuple, set):
        return {type(value).__name__: [_encode(item, prefix, arrays) for item in value]}
    if type(value) is dict:
        return {"dict": [[_encode(part, prefix, arrays) for part in pair] for pair in value.items()]}
    raise TypeError(type(value).__name__)


def decoded(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return the original value for one of the attributes that `state_of` has returned."""
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays[value["array"]][()]  # an array without dimensions becomes a NumPy number
    if "dict" in value:
        return {decoded(k, arrays): decoded(v, arrays) for k, v in value["dict"]}
    [(kind, items)] = value.items()
    return {"list": list, "tuple": tuple, "set": set}[kind](decoded(item, arrays) for item in items)
