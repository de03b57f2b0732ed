"""Read JSON and YAML files of runs as typed records: a value of the wrong type is an error."""

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from stages.settings.places import regular_file

OTHERS = "others"
"""The field of an open record that contains the values with undeclared names."""


@dataclass(kw_only=True)
class OpenRecord:
    """Base of records that also keep values with undeclared names, in the same mapping of the file."""

    others: dict[str, Any] = field(default_factory=dict)

    def as_mapping(self) -> dict[str, Any]:
        """Return the record as a mapping for its file, without values that are None."""
        kind: Any = type(self)
        values = {name: getattr(self, name) for name in known_types(kind)}
        return {**{name: value for name, value in values.items() if value is not None}, **self.others}


DEEPEST = 100
"""Maximum depth of nested mappings and lists in YAML."""


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        OSError: If the file does not exist or is not a regular file.
        ValueError: If it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(regular_file(path).read_bytes())
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def yaml_text(path: Path) -> bytes:
    """Return the text of a YAML file that is safe to load; libyaml crashes on deep nesting.

    Raises:
        OSError: If the file does not exist or is not a regular file.
        ValueError: If it is nested too deeply or has aliases, which can expand a small file to any size.
        yaml.YAMLError: If it is not YAML.
    """
    text = regular_file(path).read_bytes()
    depth = 0
    for event in yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST or isinstance(event, yaml.AliasEvent):
            raise ValueError("it is nested too deeply, or has aliases")
    return text


def convert(value: Any, kind: Any, name: str) -> Any:
    """Convert a JSON value to a type.

    Args:
        value: The value.
        kind: A dataclass, a class, a list or mapping of these, or a union of one of these with None.
        name: The name of the value, for errors; empty for a whole file.

    Raises:
        ValueError: If the value has a different type.

    Example:
        >>> convert({"loss": 1}, dict[str, float], "metrics")
        {'loss': 1.0}
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or (origin is types.UnionType and value is None):
        return value
    if origin is types.UnionType:
        return convert(value, parts[0], name)
    if isinstance(value, dict):
        if dataclasses.is_dataclass(kind):
            return _as_dataclass(value, kind, name)
        if origin in (dict, Mapping):
            return {key: convert(part, parts[1], f"{name}.{key}".lstrip(".")) for key, part in value.items()}
    if isinstance(value, list) and origin in (list, Sequence):
        return [convert(part, parts[0], name) for part in value]
    if kind is float and type(value) in (int, float):
        return _as_float(value, name)
    if kind in (bool, int, str) and type(value) is kind:
        return value
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise ValueError(f"{name or 'its content'} has the wrong type: {json.dumps(value)[:40]}")


def convert_parts(values: Mapping[str, Any], kinds: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    """Convert the values of a mapping to the types in `kinds`; values with other names are unchanged."""
    parts = convert(values, dict[str, Any], name)
    return {key: convert(part, kinds.get(key, Any), f"{name}.{key}".lstrip(".")) for key, part in parts.items()}


def _as_dataclass(values: Mapping[str, Any], kind: Any, name: str) -> Any:
    kinds = known_types(kind)
    unknown = [key for key in values if key not in kinds]
    if issubclass(kind, OpenRecord):
        declared = {key: value for key, value in values.items() if key in kinds}
        return kind(**convert_parts(declared, kinds, name), others={key: values[key] for key in unknown})
    if unknown:
        raise ValueError(f"{name or 'it'} has {unknown[0]!r}, which this version does not support")
    try:
        return kind(**convert_parts(values, kinds, name))
    except TypeError as error:  # a field without a default is missing
        raise ValueError(f"{name or 'it'} is incomplete ({error})") from error


def _as_float(value: float, name: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large") from None


@functools.cache
def known_types(record: Any) -> Mapping[str, Any]:
    """Return the types of the fields that a record declares, by their names."""
    hints = typing.get_type_hints(record)
    return {entry.name: hints[entry.name] for entry in dataclasses.fields(record) if entry.name != OTHERS}
