"""Dotted names of a configuration: of its values, and those of which errors suggest the nearest one."""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pipeline.targets import load, settings_class
from stages.errors import UserError


def flatten(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields dotted names and values; an empty mapping is a value."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{name}.")
        else:
            yield name, value


def split_override(override: str) -> tuple[str, str]:
    """Returns the name in an override, without plus signs or tilde, and its value; empty where it has none."""
    name, _, value = override.lstrip("+~").partition("=")
    return name, value


def dotted(node: DictConfig, prefix: str = "") -> Iterator[str]:
    """Yields the name of every key below `node`, such as `train.epochs`."""
    names: list[Any] = list(node)
    for key in names:
        if OmegaConf.is_interpolation(node, key):
            continue  # set under the name that it refers to
        yield f"{prefix}{key}"
        if not OmegaConf.is_missing(node, key) and isinstance(node[key], DictConfig):
            yield from dotted(node[key], f"{prefix}{key}.")


def declared(document: DictConfig) -> Iterator[str]:
    """Yields the settings that custom stages declare and the configuration does not have."""
    for name in map(str, document):
        node = None if OmegaConf.is_interpolation(document, name) else document._get_node(name)
        if isinstance(node, DictConfig) and not node._is_none() and isinstance(node.get("_target_"), str):
            names = _settings_of(name, node["_target_"])
            yield from (f"{name}.{entry}" for entry in names if entry != "_target_" and entry not in node)


def _settings_of(stage: str, target: str) -> list[str]:
    """Return the names of the dataclass that a custom stage declares; an error of its import is told elsewhere."""
    with suppress(UserError):
        schema = None if target.startswith(("stages.", "pipeline.")) else settings_class(load(stage, target))
        return [entry.name for entry in dataclasses.fields(schema)] if schema else []
    return []
