"""Default values of settings, which complete the configuration of a run that is older than these settings."""

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.config.schemas import TopSettings, top_level_key


def with_defaults(earlier: DictConfig, document: DictConfig) -> dict[str, Any]:
    """Return the configuration of an earlier run, with defaults for the settings that it does not have.

    The default of a setting is the one in its dataclass. Whoever adds a setting chooses a default that changes
    nothing for existing configurations. A default such as `${seed}` has the value of the earlier run's `seed`. Settings
    without a default, such as those of a custom stage, are not added.

    Args:
        earlier: The configuration that the run recorded.
        document: A configuration of this version, with the settings that may be missing in `earlier`.
    """
    top = _plain(OmegaConf.structured(TopSettings), resolve=False)
    defaults = _references(document) | _defaults(document, {top_level_key(name): value for name, value in top.items()})
    with suppress(OmegaConfBaseException):  # a default may refer to a setting that the run did not have
        return _plain(OmegaConf.merge(OmegaConf.create(defaults), earlier))
    return _plain(earlier)


def _references(document: DictConfig) -> dict[str, Any]:
    """Return the groups that the primary configuration defines as references to others, such as `load: ${data}`."""
    values = _plain(document, resolve=False)
    return {name: value for name, value in values.items() if OmegaConf.is_interpolation(document, name)}


def _defaults(node: DictConfig, own: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the defaults of the settings in `node`, at any depth; references such as `${seed}` stay references.

    Args:
        node: A node of a configuration.
        own: The defaults of the dataclass of `node`; empty without one.
    """
    key: Any
    values = {str(key): own[key] for key in node if key in own and own[key] != MISSING}
    for key in node:
        if OmegaConf.is_interpolation(node, key) or OmegaConf.is_missing(node, key):
            continue
        child = node[key]
        if isinstance(child, DictConfig):
            schema = OmegaConf.get_type(child)
            is_schema = dataclasses.is_dataclass(schema)
            parts = _defaults(child, _plain(OmegaConf.structured(schema), resolve=False) if is_schema else {})
            values |= {str(key): parts} if parts else {}
    return values


def _plain(config: Any, resolve: bool = True) -> dict[str, Any]:
    values = OmegaConf.to_container(config, resolve=resolve)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}
