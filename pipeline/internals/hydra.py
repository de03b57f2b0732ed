"""Private names of Hydra (1.3 and 1.4): its grammar of overrides, and composition without Hydra's own settings.

Hydra's public `compose()` also composes Hydra's own settings, a dozen files that this project does not use, and takes
250 ms instead of 90 ms. `tests/pipeline/internals/test_hydra.py` compares the results. The grammar has no public
interface.
"""

from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, RangeSweep, ValueType
from hydra.core.plugins import Plugins
from hydra.core.utils import setup_globals
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import DictConfig, OmegaConf

from stages.settings.ranges import SCHEMAS

__all__ = ["Files", "Override", "RangeSweep", "ValueType", "apply", "parse", "resolve_choices"]

PRIMARY = "config"
"""The name of the primary configuration, `config.yaml`."""


def parse(text: str) -> Override:
    """Parse an override in Hydra's grammar.

    Raises:
        HydraException: If it is not an override.
        RecursionError, ValueError: For deep nesting, and for a number with thousands of digits.
    """
    [override] = OverridesParser.create().parse_overrides([text])
    return override


def apply(document: DictConfig, override: Override) -> None:
    """Set, add or delete a value of `document`, according to Hydra's rules.

    Raises:
        HydraException, OmegaConfBaseException: If there is no such setting, or the value is of the wrong type.
    """
    ConfigLoaderImpl._apply_overrides_to_config([override], document)


_INTERPOLATION_MAP = "_create_interpolation_map"
"""A function of Hydra 1.3 that copies all choices for each file, in case its defaults list refers to one of them.

It takes a third of the time of a composition. Hydra 1.4 does not copy anything.
"""


def _copy_choices_if_used() -> None:
    """Make Hydra 1.3 copy the choices only for files whose defaults list refers to one."""
    copy_choices = getattr(defaults_list, _INTERPOLATION_MAP)

    def copy_if_used(overrides: Any, defaults: list[Any], self_added: bool) -> DictConfig:
        is_used = any(default.is_interpolation() for default in defaults)
        return copy_choices(overrides, defaults, self_added) if is_used else OmegaConf.create()

    setattr(defaults_list, _INTERPOLATION_MAP, copy_if_used)


if hasattr(defaults_list, _INTERPOLATION_MAP):
    _copy_choices_if_used()


def resolve_choices(choices: Mapping[str, Any]) -> None:
    """Make `${hydra:runtime.choices.<group>}` in users' files resolve to the option of the group."""

    def resolve(name: str) -> Any:
        return choices[name.removeprefix("runtime.choices.")]

    register: Any = OmegaConf.register_resolver
    if "replace" not in signature(register).parameters:  # OmegaConf 2.3
        register = OmegaConf.register_new_resolver
    register("hydra", resolve, replace=True)


class SchemaSource(ConfigSource):
    """Provides the dataclasses of the settings to Hydra as configurations named `schema/<group>/<name>`.

    Unlike in Hydra's ConfigStore, a node is created when it is loaded, because only a few of them are.
    """

    @staticmethod
    def scheme() -> str:
        return "dataclass"

    def load_config(self, config_path: str) -> ConfigResult:
        group, name = _group_and_name(config_path)
        node = OmegaConf.structured(SCHEMAS[group][name])
        return ConfigResult(self.provider, self.full_path(), node, {"package": None})

    def is_group(self, config_path: str) -> bool:
        return config_path.removeprefix("schema/") in SCHEMAS or config_path == "schema"

    def is_config(self, config_path: str) -> bool:
        group, name = _group_and_name(config_path)
        return name in SCHEMAS.get(group, {})

    def available(self) -> bool:
        return True

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return sorted(SCHEMAS.get(config_path.removeprefix("schema/"), {}))


def _group_and_name(path: str) -> tuple[str, str]:
    """Return the group and the name of a schema; the group is empty for any other configuration."""
    group, _, name = path.removesuffix(".yaml").removeprefix("schema/").rpartition("/")
    return (group, name) if path.startswith("schema/") else ("", name)


class Files:
    """The configuration files in `folders`, and the schemas of the settings. The first folder has `config.yaml`."""

    def __init__(self, folders: Sequence[Path]) -> None:
        setup_globals()  # the resolvers of interpolations, such as `${now:%Y}`
        Plugins.instance().register(SchemaSource)
        first, *more = folders
        self._path = create_config_search_path(str(first))
        for folder in more:
            self._path.prepend("command-line", f"file://{folder}", "schema")  # `schema` must be the last
        self._path.prepend("settings", "dataclass://", "schema")
        self._loader = ConfigLoaderImpl(self._path)

    def has_group(self, name: str) -> bool:
        """Return whether there is a config group with this name."""
        return self._loader.repository.group_exists(name)

    def compose(self, options: Sequence[str]) -> tuple[DictConfig, Mapping[str, Any]]:
        """Return the configuration with these options and unresolved interpolations, and the option of each group.

        Args:
            options: Overrides that choose options of groups.

        Raises:
            HydraException, OmegaConfBaseException: If it cannot be composed.
        """
        # An empty repository, because Hydra copies the sources that one is created with: everything in its ConfigStore.
        repository = CachingConfigRepository(ConfigRepository(ConfigSearchPathImpl()))
        repository.initialize_sources(self._path)
        overrides = [parse(option) for option in options]
        chosen = defaults_list.create_defaults_list(
            repository, PRIMARY, overrides, prepend_hydra=False, skip_missing=False
        )
        document = self._loader._compose_config_from_defaults_list(chosen.defaults, repository)
        OmegaConf.set_struct(document, True)
        return document, chosen.overrides.known_choices
