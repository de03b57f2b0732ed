"""Compose configurations with Hydra: a single run, or each job of a sweep.

`hydra.main` is not used: it creates directories, configures logging, and accepts launchers, sweepers and callbacks that
would bypass the checks.
"""

import dataclasses
import functools
import pickle
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from pipeline.command_line.arguments import Arguments
from pipeline.command_line.overrides import (
    Combinations,
    checked,
    chooses_sweep,
    is_of_sweep,
    override_of,
    parsed,
    sweep_lines,
)
from pipeline.config.by_rows import replace_by_rows
from pipeline.config.errors import as_written, dotted, explain, explained, unknown_key
from pipeline.config.experiment import read_sweep
from pipeline.config.names import read_options
from pipeline.config.schemas import SearchSettings, SweepSettings
from pipeline.internals import hydra
from pipeline.internals.hydra import Override
from stages.errors import UserError

NAMED_BY_USERS = (
    "tracking.tags", "precision.layers", "strategy.layers", "task.loss", "optimizer.arguments", "schedule.arguments",
    "model.encoders",
)  # fmt: skip
"""Mappings to which users add names without a plus sign."""


@dataclass(frozen=True)
class Composed:
    """The configuration of one job."""

    document: DictConfig
    """All settings, with their interpolations."""
    choices: Mapping[str, str]
    """The chosen option of each group."""
    overrides: tuple[str, ...]
    """The overrides that were applied."""
    typed: tuple[str, ...] = ()
    """The names of the overrides in the user's command. Other overrides were inherited from another run."""
    config_dirs: tuple[Path, ...] = ()
    """The folders of options that the user has added."""


class Composer:
    """Composes the configurations that a command line describes.

    Attributes:
        folders: The folders of options, the project's first.
        options: The options of all groups.
    """

    def __init__(self, arguments: Arguments) -> None:
        """Read the options in the folders of `arguments`, and its overrides.

        Raises:
            UserError: For the first override that has no effect, or that Hydra cannot read.
        """
        self.folders = arguments.folders
        self._files = hydra.Files(arguments.folders)
        self._config_dirs = tuple(folder.resolve() for folder in arguments.folders[1:])
        self.options = read_options(arguments.folders)
        typed = parsed(arguments.overrides)
        self._is_multirun = arguments.sweep or chooses_sweep(typed)
        inherited = checked(parsed(arguments.inherited), self.options, sweep=False)
        overrides = (*inherited, *checked(typed, self.options, self._is_multirun))
        none = [one for one in overrides if one.key_or_group == "sweep" and one.value() == "none"]
        self._is_one = bool(none) and not self._is_multirun
        # `sweep=none` is not applied, because a file may set values that this option lacks, such as `sweep.trials`.
        self._overrides = tuple(one for one in overrides if not (self._is_one and one in none))
        self._inherited = {override.key_or_group for override in inherited}
        self._bases: dict[tuple[str, ...], tuple[bytes, Mapping[str, str]]] = {}

    def one(self) -> Composed:
        """Return the configuration of a single run.

        Raises:
            UserError: If it cannot be composed.
        """
        return self.compose(self._overrides)

    @functools.cached_property
    def sweep(self) -> SweepSettings:
        """The settings of the sweep: how its jobs run, and the values in its file.

        A run that inherits the overrides of a sweep's job is not itself a sweep.

        Raises:
            UserError: As `one` does.
        """
        choices = [
            self._parsed(next(sweep_lines(override)))
            for override in self._overrides
            if is_of_sweep(override) or (self._chooses(override) and override.key_or_group not in self._inherited)
        ]
        return read_sweep(self.compose(choices).document)

    @property
    def is_sweep(self) -> bool:
        """Whether the command starts several jobs, because of -m or of a file with a sweep.

        `sweep=none` on the command line makes it a single run in any case.

        Raises:
            UserError: As `one` does, and if a single run has settings of a sweep.
        """
        sweep_settings = [override for override in self._overrides if is_of_sweep(override)]
        if self._is_multirun or (self.sweep.over and not self._is_one):
            return True
        if sweep_settings:
            line = sweep_settings[0].input_line
            raise UserError(
                f"{line} only applies to a sweep, but this command starts a single run",
                "-m and a setting with several values, or sweep=<option>",
                f"python -m pipeline -m {line} seed=1,2",
            )
        return False

    @property
    def searches(self) -> bool:
        """Whether the command starts a search, whose jobs depend on earlier results."""
        return isinstance(self.sweep, SearchSettings)

    @functools.cached_property
    def of_jobs(self) -> list[Override]:
        """The overrides of a sweep's jobs. Overrides on the command line replace those in the sweep's file."""
        lines = [override_of(str(name), values) for name, values in self.sweep.over.items()]
        from_file = checked(parsed(lines), self.options, sweep=True)
        varied = {override.key_or_group for override in from_file} & self._inherited
        own = [one for one in self._overrides if not is_of_sweep(one) and one.key_or_group not in varied]
        replaced = {override.key_or_group for override in own}
        return [*(override for override in from_file if override.key_or_group not in replaced), *own]

    @functools.cached_property
    def grid(self) -> Combinations:
        """The jobs of the sweep, which are not composed yet."""
        return Combinations(self.of_jobs, self.sweep)

    def jobs(self) -> Iterator[Composed]:
        """Yield the configuration of every combination of values; the last key changes fastest.

        Raises:
            UserError: As `one` does.
        """
        for lines in self.grid:
            yield self.compose([self._parsed(line) for line in lines])

    def with_lines(self, lines: Sequence[str]) -> Composed:
        """Return the configuration of a trial of a search: the overrides that do not vary, and `lines`.

        Raises:
            UserError: As `one` does.
        """
        fixed = [override for override in self.of_jobs if not override.is_sweep_override()]
        return self.compose([*fixed, *map(self._parsed, lines)])

    @staticmethod
    @functools.cache
    def _parsed(line: str) -> Override:
        return hydra.parse(line)

    def show(self, resolve: bool) -> None:
        """Print the configuration as YAML."""
        document = self.one().document
        if resolve:
            with explained():
                OmegaConf.resolve(document)
        sys.stdout.write(OmegaConf.to_yaml(document))

    def _chooses(self, override: Override) -> bool:
        """Return whether `override` chooses an option of a group."""
        return self._files.has_group(override.key_or_group) and not isinstance(override.value(), dict)

    def compose(self, overrides: Sequence[Override]) -> Composed:
        """Return the configuration with these overrides.

        Jobs that choose the same options share one composition, and set their values in copies of it.
        """
        lines = tuple(str(override.input_line) for override in overrides)
        options = tuple(line for line, override in zip(lines, overrides, strict=True) if self._chooses(override))
        if options not in self._bases:
            self._bases[options] = self._base(options)
        saved, choices = self._bases[options]
        hydra.resolve_choices(choices)
        document: DictConfig = pickle.loads(saved)
        values = [override for override in overrides if not self._chooses(override)]
        for override in values:
            _refuse_alias(document, override)
            _apply(document, override)
        typed = [override for override in overrides if override.key_or_group not in self._inherited]
        if self._inherited:
            typed_only: DictConfig = pickle.loads(saved)
            for override in values:
                with suppress(UserError):  # it may depend on an inherited override
                    if override in typed:
                        _apply(typed_only, override)
            _refuse_other_targets(document, typed_only)
        names = tuple(override.key_or_group for override in typed)
        with explained(dotted(document)):
            replace_by_rows(document)
        return Composed(document, choices, lines, names, self._config_dirs)

    def _base(self, options: tuple[str, ...]) -> tuple[bytes, Mapping[str, str]]:
        """Return the configuration with `options`, pickled, and the option of each group."""
        with explained():
            document, choices = self._files.compose(options)
        for group, _, key in (name.partition(".") for name in NAMED_BY_USERS):
            settings = OmegaConf.select(document, group)  # in a user's file, it may be a list
            if isinstance(settings, DictConfig) and isinstance(node := OmegaConf.select(settings, key), DictConfig):
                OmegaConf.set_struct(node, False)
        return pickle.dumps(document), choices


def _refuse_other_targets(document: DictConfig, typed_only: DictConfig) -> None:
    """Refuse a `_target_` in `document` that is not in the configuration without inherited overrides."""
    known = _targets(typed_only)
    if others := {target: name for target, name in sorted(_targets(document).items()) if target not in known}:
        problem = f"the settings inherited from another run would import {', '.join(others)}"
        target, name = next(iter(others.items()))
        # An override cannot name an item of a list.
        fix = "" if re.search(r"\.\d+\.", name) else f"{name}={shlex.quote(target)}"
        raise UserError(problem, "a _target_ from this command or from an option's file", fix)


def _targets(document: DictConfig) -> dict[str, str]:
    """Return each `_target_` in a configuration, resolved, with the dotted name of a setting that has it."""
    targets: dict[str, str] = {}
    pending: list[tuple[str, Any]] = [("", document)]
    while pending:
        place, node = pending.pop()
        for key in node if isinstance(node, DictConfig) else range(len(node)):
            with suppress(OmegaConfBaseException):  # a missing value has no target
                part = node[key]
                if key == "_target_":
                    targets[str(part)] = f"{place}{key}"
                elif OmegaConf.is_config(part):
                    pending.append((f"{place}{key!s}.", part))
    return targets


def _refuse_alias(document: DictConfig, override: Override) -> None:
    """Refuse to set a reference to a group, such as `train.optimizer`, because a value would replace the reference."""
    node: Any = document
    part, _, rest = override.key_or_group.partition(".")
    while isinstance(node, DictConfig) and part in node:
        value = None
        with suppress(OmegaConfBaseException):  # a missing value, or an interpolation that cannot be resolved
            value = node[part]
        if OmegaConf.is_interpolation(node, part) and isinstance(value, DictConfig):
            group = as_written(node, part)[2:-1]
            given = str(override.input_line).partition("=")[2]
            fix = shlex.quote(f"{group}.{rest}={given}") if rest else f"{group}=<option>"
            problem = f"{override.input_line}: this setting is defined in the group {group}"
            raise UserError(problem, f"a setting of {group}", fix)
        node = value
        part, _, rest = rest.partition(".")


def _apply(document: DictConfig, override: Override) -> None:
    """Apply an override to a configuration.

    Raises:
        UserError: If it cannot be applied.
    """
    typed, name = str(override.input_line), override.key_or_group
    try:
        hydra.apply(document, override)
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
    """Return the error for a name that is not among the `names` of a mapping without a schema."""
    typed, name = str(override.input_line), override.key_or_group
    if override.is_delete():
        existing = [f"~{name.rpartition('.')[0]}.{one}" for one in names]
        return UserError(f"{typed} cannot delete {name}, which does not exist", existing or "an existing name")
    return UserError(f"{name} does not exist yet", "a plus sign, which adds a new name", f"+{typed}")
