"""Attributes of objects as JSON and arrays, by which a checkpoint holds the state of callbacks."""

from collections.abc import Mapping
from typing import Any

import numpy as np

_PRIVATE_TO_KERAS = ("_model", "params", "validation_data", "min_delta")
"""Attributes that Keras sets; it flips the sign of `min_delta` at a callback's first use, and would flip it twice."""


def state_of(target: object, name: str, arrays: dict[str, np.ndarray]) -> tuple[dict[str, Any], list[str]]:
    """Returns the attributes of `target` that are numbers, strings, lists, mappings or arrays, as JSON can hold them.

    Args:
        name: prefix of the names of its arrays.
        arrays: receives its arrays.

    Returns:
        The attributes, and the names of those left out that are neither functions nor objects of the same kind.
    """
    attributes: dict[str, Any] = {}
    left_out: list[str] = []
    for key, value in vars(target).items():
        if key in _PRIVATE_TO_KERAS:
            continue
        own_arrays: dict[str, np.ndarray] = {}
        try:
            attributes[key] = _encode(value, f"{name}.{key}.", own_arrays)
            arrays |= own_arrays
        except TypeError:
            if not callable(value):
                left_out.append(f"{key} ({type(value).__name__})")
    return attributes, left_out


def restore_attributes(target: object, state: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Sets the attributes of `target` that `state_of` has returned."""
    for key, value in state.items():
        setattr(target, key, decoded(value, arrays))


def _encode(value: Any, prefix: str, arrays: dict[str, np.ndarray]) -> Any:
    if value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind != "O":
        name = f"{prefix}{len(arrays)}"
        arrays[name] = np.array(value)
        return {"array": name, "scalar": isinstance(value, np.generic)}
    if type(value) in (list, tuple, set):
        return {type(value).__name__: [_encode(item, prefix, arrays) for item in value]}
    if type(value) is dict:
        return {"dict": [[_encode(part, prefix, arrays) for part in pair] for pair in value.items()]}
    raise TypeError(type(value).__name__)


def decoded(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Returns one value of the attributes that `state_of` has returned."""
    if not isinstance(value, dict):
        return value
    if "array" in value:
        array = arrays[value["array"]]
        return array[()] if value["scalar"] else array
    if "dict" in value:
        return {decoded(k, arrays): decoded(v, arrays) for k, v in value["dict"]}
    [(kind, items)] = value.items()
    return {"list": list, "tuple": tuple, "set": set}[kind](decoded(item, arrays) for item in items)
