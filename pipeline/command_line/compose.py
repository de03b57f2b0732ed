"""Composes configurations with Hydra: one job, or each of a sweep.

By Hydra's own classes and not by `hydra.main`, which makes directories, changes the logging and lets launchers,
sweepers and callbacks be chosen that would go past the checks. Written for Hydra 1.3, whose last feature release it is.
"""

import copy
import functools
import pickle
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from pipeline.command_line.arguments import Arguments
from pipeline.command_line.grid import Grid, as_typed, override_of
from pipeline.command_line.overrides import (
    checked,
    chooses_sweep,
    of_hydra,
    of_sweep,
    parsed,
    sweep_lines,
    without_replaced,
)
from pipeline.config.errors import declared, dotted, explain, readable, unknown_key
from pipeline.config.experiment import read_sweep
from pipeline.config.names import flatten, read_options
from pipeline.config.schemas import register_schemas
from pipeline.config.sweep import SearchSettings, SweepSettings
from pipeline.paths import CONF
from stages.errors import UserError

NAMED_BY_USERS = ("tracking.tags", "precision.layers", "strategy.layers")
"""Mappings whose names are the user's own, and are typed without a plus sign."""

_FILLED_BY_HYDRA = ("runtime", "overrides", "searchpath", "job.name", "job.config_name", "job.override_dirname")


@dataclass(frozen=True)
class Composed:
    """One job as Hydra composed it.

    document: the configuration, without Hydra's node; choices: the option taken from each group.
    overrides: as they were given, and `typed` the names of those that the user typed for this very command.
    config_dirs: the folders of configuration that the user has added.
    flags: those that choose a primary configuration of the user's own.
    """

    document: DictConfig
    choices: Mapping[str, str]
    overrides: tuple[str, ...]
    typed: tuple[str, ...] = ()
    config_dirs: tuple[Path, ...] = ()
    flags: tuple[str, ...] = ()


class Composer:
    """Composes what a command line asks for."""

    def __init__(self, arguments: Arguments) -> None:
        """Prepares Hydra for the folders in `arguments`.

        Raises:
            UserError: for the first override that has no effect, or that Hydra cannot read.

        Attributes:
            replaced: overrides of keys that are given again later, which count.
            options: those of all groups.
        """
        register_schemas()
        primary, *more = arguments.folders
        path = create_config_search_path(str(primary))
        schema = path.get_path().pop()
        for folder in more:
            path.append("command-line", f"file://{folder}")
        path.get_path().append(schema)
        GlobalHydra.instance().clear()
        self.hydra = Hydra.create_main_hydra2("pipeline", path)
        self.loader = self.hydra.config_loader
        self._primary = arguments.primary
        self._config_dirs = tuple(folder.resolve() for folder in more)
        self._flags = (("--config-path", str(primary)) if primary != CONF else ()) + (
            ("--config-name", arguments.primary) if arguments.primary != "config" else ()
        )
        self._has_own = len(arguments.folders) > 1 or arguments.primary != "config"
        options = read_options(arguments.folders, arguments.primary)
        typed, self.replaced = without_replaced(parsed(arguments.overrides, options))
        self._is_multirun = arguments.sweep or chooses_sweep(typed)
        typed = checked(typed, options, self._is_multirun)
        inherited = checked(parsed(arguments.inherited, options), options, sweep=False)
        self._overrides = (*typed, *inherited)
        self.options = options
        self._inherited = {override.key_or_group for override in inherited}
        self._resolved: tuple[str, ...] | None = None
        self._bases: dict[tuple[str, ...], tuple[bytes, DictConfig]] = {}

    def one(self) -> Composed:
        """Returns the configuration of a single run.

        Raises:
            UserError: where a file gives one of Hydra's own settings.
            UserError: where it cannot be composed.
        """
        return self.compose(self._overrides)

    @functools.cached_property
    def sweep(self) -> SweepSettings:
        """Settings of the sweep: how its jobs run, and what a file says that varies.

        Raises:
            UserError, HydraException, OmegaConfBaseException: where the settings of `sweep` are wrong.
        """
        choices = [
            self._parsed(next(sweep_lines(override))) if override.is_sweep_override() else override
            for override in self._overrides
            if self._chooses(override) or of_sweep(override)
        ]
        return read_sweep(self.compose(choices).document)

    @property
    def is_sweep(self) -> bool:
        """Whether several jobs are asked for: by -m, or by a file that says what varies; raises as `sweep` does.

        `sweep=none` on the command line makes it one run, whatever a file says.

        Raises:
            UserError: also where settings of a sweep were typed, and there is none.
        """
        if self._is_multirun:
            return True
        is_one = any(override.key_or_group == "sweep" and override.value() == "none" for override in self._overrides)
        if self.sweep.over and not is_one:
            return True
        for override in self._overrides:
            if of_sweep(override) and override.value() != "none":
                raise UserError(
                    f"{override.input_line} is for a sweep, and this is one run",
                    "-m with values that vary, or sweep=<option>",
                    f"python -m pipeline -m {override.input_line} seed=1,2",
                )
        return False

    @property
    def searches(self) -> bool:
        """Whether what varies is drawn, each job by the results of those before; raises as `sweep` does."""
        return isinstance(self.sweep, SearchSettings)

    @functools.cached_property
    def of_jobs(self) -> list[Override]:
        """The overrides of a sweep's jobs: those of its file, unless the command line has the same, then its own."""
        lines = [override_of(str(name), values) for name, values in self.sweep.over.items()]
        from_file = checked(parsed(lines, self.options), self.options, sweep=True)
        own = [override for override in self._overrides if not of_sweep(override)]
        replaced = {override.key_or_group for override in own}
        return [*(override for override in from_file if override.key_or_group not in replaced), *own]

    @functools.cached_property
    def grid(self) -> Grid:
        """The jobs of the sweep, not composed yet; raises as `sweep` does."""
        return Grid(self.of_jobs, self.sweep)

    def count(self) -> int:
        """Returns how many jobs the sweep has, without composing them; with exclusions, at most how many."""
        return len(self.grid)

    def jobs(self) -> Iterator[Composed]:
        """Yields every combination of the values given, the last key changing fastest; raises as `one` does."""
        for lines in self.grid:
            yield self.compose([self._parsed(line) for line in lines])

    def with_lines(self, lines: Sequence[str]) -> Composed:
        """Returns a trial of a search: the overrides that do not vary, and `lines`; raises as `one` does."""
        fixed = [override for override in self.of_jobs if not override.is_sweep_override()]
        return self.compose([*fixed, *map(self._parsed, lines)])

    def first(self) -> Composed:
        """Returns the first job of the sweep, whatever their number; raises as `one` does."""
        return self.compose([self._parsed(line) for line in self.grid.first()])

    @staticmethod
    @functools.cache
    def _parsed(line: str) -> Override:
        return OverridesParser.create().parse_override(line)

    def show(self, package: str | None, resolve: bool) -> None:
        """Prints the configuration, or the node `package` of it, as YAML.

        Raises:
            UserError: where there is no such node.
        """
        document: Any = self.one().document
        if resolve:
            OmegaConf.resolve(document)
        whole = package in (None, "_global_")
        node: Any = document if whole else OmegaConf.select(document, str(package))
        if node is None:
            raise UserError(f"--package {package} is not in the configuration", [*map(str, document)], "--cfg job")
        if not whole:
            print("# @package", package)
        sys.stdout.write(OmegaConf.to_yaml(node) if OmegaConf.is_config(node) else str(node) + "\n")

    def info(self, about: str) -> None:
        """Prints what Hydra knows of itself: `all`, or one of `arguments.INFO`."""
        self.hydra.show_info(about, self._primary, [str(override.input_line) for override in self._overrides])

    def _chooses(self, override: Override) -> bool:
        """Returns whether `override` chooses a group's option, as Hydra decides it."""
        repository = self.loader.repository  # type: ignore[attr-defined]
        return bool(repository.group_exists(override.key_or_group)) and not isinstance(override.value(), dict)

    def compose(self, overrides: Sequence[Override]) -> Composed:
        """Returns a job: its options are composed once for all jobs that share them, its values set in a copy."""
        lines = tuple(str(override.input_line) for override in overrides)
        options = tuple(line for line, override in zip(lines, overrides, strict=True) if self._chooses(override))
        if options not in self._bases:
            self._bases[options] = self._base(options)
        saved, with_hydra = self._bases[options]
        if self._resolved != options:
            HydraConfig.instance().set_config(with_hydra)  # for `${hydra:…}` in a user's file
            self._resolved = options
        document: DictConfig = pickle.loads(saved)
        for override in overrides:
            if not self._chooses(override):
                _refuse_alias(document, override)
                _apply(document, override)
        choices = dict(with_hydra.hydra.runtime.choices)
        typed = tuple(override.key_or_group for override in overrides if override.key_or_group not in self._inherited)
        return Composed(document, choices, lines, typed, self._config_dirs, self._flags)

    def _base(self, options: tuple[str, ...]) -> tuple[bytes, DictConfig]:
        """Returns the configuration under `options`, pickled without Hydra's node, and with it."""
        with readable():
            try:
                document = self.loader.load_configuration(self._primary, list(options), RunMode.RUN)
            except (HydraException, OmegaConfBaseException) as error:
                raise explain(error) from error
        if self._has_own:
            self._refuse_hydras_own(document)
        without = copy.copy(document)
        with open_dict(without):
            without.pop("hydra")
        for name in NAMED_BY_USERS:
            if isinstance(node := OmegaConf.select(without, name), DictConfig):
                OmegaConf.set_struct(node, False)
        return pickle.dumps(without), document

    def _refuse_hydras_own(self, document: DictConfig) -> None:
        """Refuses what a file says of Hydra's own settings: they have no effect."""
        for name, value in _leaves(document).items():
            if value != self._hydras_own.get(name) and not name.startswith(_FILLED_BY_HYDRA):
                raise of_hydra(f"hydra.{name}={value} in a file", f"hydra.{name}")

    @functools.cached_property
    def _hydras_own(self) -> dict[str, Any]:
        """Hydra's own settings as they are without any file: composed once for all options of a sweep's jobs."""
        return _leaves(self.loader.load_configuration(None, [], RunMode.RUN))


def _refuse_alias(document: DictConfig, override: Override) -> None:
    """Refuses a name that only refers to a group, such as `train.optimizer`: setting it would cut it off the group."""
    parts = override.key_or_group.split(".")
    node: Any = document
    for index, part in enumerate(parts):
        if not isinstance(node, DictConfig) or part not in node:
            return
        if OmegaConf.is_interpolation(node, part):
            group = str(node._get_node(part)._value())[2:-1]  # type: ignore[union-attr]
            if isinstance(OmegaConf.select(document, group), DictConfig):
                name = ".".join([group, *parts[index + 1 :]])
                typed = name if "." in name else f"{name}=<option>, or {name}.<setting>"
                raise UserError(
                    f"{override.input_line}: {'.'.join(parts[: index + 1])} refers to {group}",
                    f"the settings of {group}, under that name",
                    typed if "=" in typed else f"{typed}=<value>",
                )
            return
        node = None if OmegaConf.is_missing(node, part) else node[part]


def _apply(document: DictConfig, override: Override) -> None:
    """Sets a value, or refuses it in the project's words."""
    typed = str(override.input_line)
    if override.value() == "" and typed.endswith("=") and not typed.startswith("outputs="):
        _refuse_empty(document, override.key_or_group)
    try:
        with readable():
            ConfigLoaderImpl._apply_overrides_to_config([override], document)
    except (HydraException, OmegaConfBaseException) as error:
        name = override.key_or_group
        if override.is_add() and OmegaConf.select(document, name, throw_on_missing=False) is not None:
            raise UserError(f"+{name}: there is a {name} already", "no plus sign", typed.lstrip("+")) from error
        if isinstance(error.__cause__, ConfigKeyError | ConfigAttributeError | None):
            names = list(dotted(document))
            if name not in names:
                raise unknown_key(name, names, typed.partition("=")[2], list(declared(document))) from error
        raise explain(error, typed=typed) from error


def _refuse_empty(document: DictConfig, name: str) -> None:
    """Refuses `name=`, which the shell makes of a variable that is not set; an empty text is `name=''`."""
    if name not in (names := list(dotted(document))):
        raise unknown_key(name, names, "", list(declared(document)))
    with suppress(OmegaConfBaseException):
        default: Any = OmegaConf.select(document, name)
        plain = OmegaConf.to_container(default) if OmegaConf.is_config(default) else default
        value = plain if isinstance(plain, str) and plain else "<value>" if plain is None else as_typed(plain)
        fix = f"{name}={value}" if value == "<value>" else shlex.quote(f"{name}={value}")
        raise UserError(f"{name}= gives no value", "a value; '' is an empty text", fix)


def _leaves(document: DictConfig) -> dict[str, Any]:
    """Returns Hydra's own settings in a configuration by their dotted names."""
    values: Any = OmegaConf.to_container(document.hydra, resolve=False)
    return dict(flatten(values))
