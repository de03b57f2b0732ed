"""Composes configurations with Hydra: one job, or each of a sweep, and completes a command line that is typed.

By Hydra's own classes and not by `hydra.main`, which makes directories, changes the logging and lets launchers,
sweepers and callbacks be chosen that would go past the checks. Written for Hydra 1.3, whose last feature release it is.
"""

import dataclasses
import functools
import os
import pickle
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.bash_completion import BashCompletion
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from pipeline.command_line.arguments import FLAGS, PROGRAM, Arguments, read_arguments
from pipeline.command_line.overrides import Grid, checked, chooses_sweep, is_of_sweep, override_of, parsed, sweep_lines
from pipeline.config.errors import dotted, explain, explained, unknown_key
from pipeline.config.experiment import read_sweep
from pipeline.config.names import read_options
from pipeline.config.schemas import SearchSettings, SweepSettings, register_schemas
from stages.errors import UserError

yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # which OmegaConf reads files by

_interpolation_map = defaults_list._create_interpolation_map


def _rarely_mapped(overrides: Any, defaults: list[Any], self_added: bool) -> DictConfig:
    """Return Hydra's copy of all choices so far, but only where a list of defaults refers to them."""
    used = any(default.is_interpolation() for default in defaults)
    return _interpolation_map(overrides, defaults, self_added) if used else OmegaConf.create()


defaults_list._create_interpolation_map = _rarely_mapped  # type: ignore[assignment]

NAMED_BY_USERS = (
    "tracking.tags", "precision.layers", "strategy.layers", "task.loss", "optimizer.arguments", "schedule.arguments",
)  # fmt: skip
"""Mappings whose names are the user's own, and are typed without a plus sign."""


@dataclass(frozen=True)
class Composed:
    """One job as Hydra composed it.

    document: the configuration, without Hydra's node; choices: the option taken from each group.
    overrides: as they were given, and `typed` the names of those that the user typed for this very command.
    config_dirs: the folders of configuration that the user has added.
    """

    document: DictConfig
    choices: Mapping[str, str]
    overrides: tuple[str, ...]
    typed: tuple[str, ...] = ()
    config_dirs: tuple[Path, ...] = ()


class Composer:
    """Composes what a command line asks for."""

    def __init__(self, arguments: Arguments) -> None:
        """Prepare Hydra for the folders in `arguments`.

        Raises:
            UserError: for the first override that has no effect, or that Hydra cannot read.

        Attributes:
            options: those of all groups.
        """
        register_schemas()
        own, *more = arguments.folders
        path = create_config_search_path(str(own))
        for folder in more:
            path.prepend("command-line", f"file://{folder}", "schema")  # which has to be the last
        GlobalHydra.instance().clear()
        self.loader = Hydra.create_main_hydra2("pipeline", path).config_loader
        self._config_dirs = tuple(folder.resolve() for folder in more)
        self.options = read_options(arguments.folders)
        typed = parsed(arguments.overrides)
        self._is_multirun = arguments.sweep or chooses_sweep(typed)
        inherited = checked(parsed(arguments.inherited), self.options, sweep=False)
        overrides = (*inherited, *checked(typed, self.options, self._is_multirun))
        none = [one for one in overrides if one.key_or_group == "sweep" and one.value() == "none"]
        self._is_one = bool(none) and not self._is_multirun
        # A file may set what `none` does not have, such as the trials of its search.
        self._overrides = tuple(one for one in overrides if not (self._is_one and one in none))
        self._inherited = {override.key_or_group for override in inherited}
        self._bases: dict[tuple[str, ...], tuple[bytes, Mapping[str, str]]] = {}

    def one(self) -> Composed:
        """Return the configuration of a single run.

        Raises:
            UserError: where it cannot be composed.
        """
        return self.compose(self._overrides)

    @functools.cached_property
    def sweep(self) -> SweepSettings:
        """Settings of the sweep: how its jobs run, and what a file says that varies; raises as `one` does.

        What another run was a job of is no sweep of the run that inherits its overrides.
        """
        choices = [
            self._parsed(next(sweep_lines(override)))
            for override in self._overrides
            if is_of_sweep(override) or (self._chooses(override) and override.key_or_group not in self._inherited)
        ]
        return read_sweep(self.compose(choices).document)

    @property
    def is_sweep(self) -> bool:
        """Whether several jobs are asked for: by -m, or by a file that says what varies; raises as `one` does.

        `sweep=none` on the command line makes it one run, whatever a file says.

        Raises:
            UserError: also where settings of a sweep were typed, and there is none.
        """
        typed = [override for override in self._overrides if is_of_sweep(override)]
        if self._is_multirun or (self.sweep.over and not self._is_one):
            return True
        if typed:
            line = typed[0].input_line
            raise UserError(
                f"{line} only applies to a sweep, but this command starts a single run",
                "-m and a setting with several values, or sweep=<option>",
                f"python -m pipeline -m {line} seed=1,2",
            )
        return False

    @property
    def searches(self) -> bool:
        """Whether what varies is drawn, each job by the results of those before; raises as `one` does."""
        return isinstance(self.sweep, SearchSettings)

    @functools.cached_property
    def of_jobs(self) -> list[Override]:
        """The overrides of a sweep's jobs: those of its file, unless the command line has the same, then its own."""
        lines = [override_of(str(name), values) for name, values in self.sweep.over.items()]
        from_file = checked(parsed(lines), self.options, sweep=True)
        varied = {override.key_or_group for override in from_file} & self._inherited  # by what is typed now
        own = [one for one in self._overrides if not is_of_sweep(one) and one.key_or_group not in varied]
        replaced = {override.key_or_group for override in own}
        return [*(override for override in from_file if override.key_or_group not in replaced), *own]

    @functools.cached_property
    def grid(self) -> Grid:
        """The jobs of the sweep, not composed yet; raises as `one` does."""
        return Grid(self.of_jobs, self.sweep)

    def jobs(self) -> Iterator[Composed]:
        """Yield every combination of the values given, the last key changing fastest; raises as `one` does."""
        for lines in self.grid:
            yield self.compose([self._parsed(line) for line in lines])

    def with_lines(self, lines: Sequence[str]) -> Composed:
        """Return a trial of a search: the overrides that do not vary, and `lines`; raises as `one` does."""
        fixed = [override for override in self.of_jobs if not override.is_sweep_override()]
        return self.compose([*fixed, *map(self._parsed, lines)])

    @staticmethod
    @functools.cache
    def _parsed(line: str) -> Override:
        return OverridesParser.create().parse_override(line)

    def show(self, resolve: bool) -> None:
        """Print the configuration as YAML."""
        document = self.one().document
        if resolve:
            with explained():
                OmegaConf.resolve(document)
        sys.stdout.write(OmegaConf.to_yaml(document))

    def _chooses(self, override: Override) -> bool:
        """Return whether `override` chooses a group's option, as Hydra decides it."""
        repository = self.loader.repository  # type: ignore[attr-defined]
        return bool(repository.group_exists(override.key_or_group)) and not isinstance(override.value(), dict)

    def compose(self, overrides: Sequence[Override]) -> Composed:
        """Return a job: its options are composed once for all jobs that share them, its values set in a copy."""
        lines = tuple(str(override.input_line) for override in overrides)
        options = tuple(line for line, override in zip(lines, overrides, strict=True) if self._chooses(override))
        if options not in self._bases:
            self._bases[options] = self._base(options)
        saved, choices = self._bases[options]

        def resolve(name: str) -> str:  # `${hydra:runtime.choices.model}` of a user's file
            return choices[name.removeprefix("runtime.choices.")]

        OmegaConf.register_new_resolver("hydra", resolve, replace=True)
        document: DictConfig = pickle.loads(saved)
        values = [override for override in overrides if not self._chooses(override)]
        for override in values:
            _refuse_alias(document, override)
            _apply(document, override)
        typed = [override for override in overrides if override.key_or_group not in self._inherited]
        if self._inherited:
            own: DictConfig = pickle.loads(saved)
            for override in values:
                with suppress(UserError):  # it may need an inherited one
                    if override in typed:
                        _apply(own, override)
            _refuse_other_targets(document, own)
        names = tuple(override.key_or_group for override in typed)
        return Composed(document, choices, lines, names, self._config_dirs)

    def _base(self, options: tuple[str, ...]) -> tuple[bytes, Mapping[str, str]]:
        """Return the configuration under `options`, pickled, and the option of each group.

        As Hydra's `load_configuration` does, but without Hydra's own node, a dozen files, which nothing reads.
        """
        loader: Any = self.loader
        with explained():
            parsed, files = loader._parse_overrides_and_create_caching_repo("config", list(options))
            found = defaults_list.create_defaults_list(files, "config", parsed, False, False)
            document = loader._compose_config_from_defaults_list(found.defaults, files)
        document.pop("hydra", None)
        OmegaConf.set_struct(document, True)
        for name in NAMED_BY_USERS:
            if isinstance(node := OmegaConf.select(document, name), DictConfig):
                OmegaConf.set_struct(node, False)
        choices: Any = found.overrides.known_choices
        return pickle.dumps(document), choices


def _refuse_other_targets(document: DictConfig, own: DictConfig) -> None:
    """Refuse a `_target_` in `document` that is not in `own`, which has no values of another run."""
    known = _targets(own)
    if others := {target: name for target, name in sorted(_targets(document).items()) if target not in known}:
        problem = f"the settings taken from another run would import {', '.join(others)}"
        target, name = next(iter(others.items()))
        fix = "" if re.search(r"\.\d+\.", name) else f"{name}={shlex.quote(target)}"  # no override names a list's part
        raise UserError(problem, "a _target_ from this command or from an option's file", fix)


def _targets(document: DictConfig) -> dict[str, str]:
    """Return every `_target_` in a configuration, resolved, and the dotted name of one that has it."""
    found: dict[str, str] = {}
    pending: list[tuple[str, Any]] = [("", document)]
    while pending:
        place, node = pending.pop()
        for key in node if isinstance(node, DictConfig) else range(len(node)):
            with suppress(OmegaConfBaseException):  # a missing value names nothing
                part = node[key]
                if key == "_target_":
                    found[str(part)] = f"{place}{key}"
                elif OmegaConf.is_config(part):
                    pending.append((f"{place}{key!s}.", part))
    return found


def _refuse_alias(document: DictConfig, override: Override) -> None:
    """Refuse a name that only refers to a group, such as `train.optimizer`: setting it would cut it off the group."""
    node: Any = document
    part, _, rest = override.key_or_group.partition(".")
    while isinstance(node, DictConfig) and part in node:
        named: Any = node._get_node(part)
        if OmegaConf.is_interpolation(node, part) and isinstance(named._maybe_dereference_node(), DictConfig):
            group = str(named._value())[2:-1]
            value = str(override.input_line).partition("=")[2]
            fix = shlex.quote(f"{group}.{rest}={value}") if rest else f"{group}=<option>"
            problem = f"{override.input_line}: this setting is defined in the group {group}"
            raise UserError(problem, f"a setting of {group}", fix)
        node = named
        part, _, rest = rest.partition(".")


def _apply(document: DictConfig, override: Override) -> None:
    """Set a value, or refuse it in the project's words."""
    typed, name = str(override.input_line), override.key_or_group
    try:
        ConfigLoaderImpl._apply_overrides_to_config([override], document)
    except (HydraException, OmegaConfBaseException) as error:
        if isinstance(error.__cause__, ConfigKeyError | ConfigAttributeError | None):
            if (inner := str(getattr(error.__cause__, "full_key", ""))).startswith(f"{name}."):  # within a mapping
                raise unknown_key(inner, list(dotted(document))) from error
            parent = OmegaConf.select(document, name.rpartition(".")[0] or "<none>", throw_on_missing=False)
            if isinstance(parent, DictConfig) and not dataclasses.is_dataclass(OmegaConf.get_type(parent)):
                raise _absent(override, [str(key) for key in parent]) from error
            raise unknown_key(name, list(dotted(document)), typed.partition("=")[2]) from error
        raise explain(error, typed=typed) from error


def _absent(override: Override, names: Sequence[str]) -> UserError:
    """Return the error for a name that a mapping of the user's own `names` does not have."""
    typed, name = str(override.input_line), override.key_or_group
    if override.is_delete():
        existing = [f"~{name.rpartition('.')[0]}.{one}" for one in names]
        return UserError(f"{typed} cannot delete {name}, which does not exist", existing or "an existing name")
    return UserError(f"{name} does not exist yet", "a plus sign, which adds a new name", f"+{typed}")


def complete(words: Sequence[str]) -> None:
    """Print a script for bash to evaluate (`install=bash`), or completions of $COMP_LINE (`query=bash`)."""
    if Path(sys.argv[0]).name != PROGRAM or list(words) not in (["install=bash"], ["query=bash"]):
        form = f'eval "$({PROGRAM} --shell-completion install=bash)"'
        raise UserError(f"--shell-completion requires install=bash and the command {PROGRAM}", "", form)
    if words[0] == "install=bash":
        BashCompletion(Composer(Arguments()).loader).install()
    else:
        print("\n".join(matches(os.environ.get("COMP_LINE", ""))))


def matches(line: str) -> list[str]:
    """Return completions of the last word of `line`, without Hydra's own settings; a wrong line has none."""
    *words, prefix = line.split(" ")[1:] or [""]
    if prefix.startswith("-"):
        return [flag for flag in FLAGS if flag.startswith(prefix)]
    try:
        arguments = read_arguments([word for word in words if word])
        plugin = BashCompletion(Composer(Arguments(folders=arguments.folders)).loader)
        typed = " ".join([*(["-m"] if arguments.sweep else []), *arguments.overrides, prefix])
        completions = plugin._query(config_name="config", line=typed)
    except (UserError, HydraException, OmegaConfBaseException, ValueError):
        return []
    return [match for match in completions if not match.lstrip("+~").startswith(("hydra", "schema"))]
