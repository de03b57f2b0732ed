"""The command line: its flags, and the overrides between them. Imports neither Hydra nor the configuration."""

import argparse
import difflib
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from pipeline.config.names import named_elsewhere, package_folder, read_options
from pipeline.paths import CONF
from stages.errors import UserError

PROGRAM = "tf-pipeline"
"""The console script; without it the command is `python -m pipeline`."""

INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
SHELLS = ("bash",)
FLAGS = ("--help", "--version", "--cfg", "--resolve", "--package", "--info", "--multirun", "--config-dir",
         "--config-path", "--config-name", "--shell-completion")  # fmt: skip
"""Flags that have an effect."""

_MODES = {"run": "--run", "sweep": "-m", "show": "--cfg job", "info": "--info", "completion": "--shell-completion"}


@dataclass(frozen=True)
class Arguments:
    """The command line after the command's name.

    overrides: in order, without the flags between them.
    inherited: overrides of the run that is resumed or forked, unless the command sets them itself.
    show: whether to print the configuration instead of running it: its `package`, with interpolations `resolve`d.
    info: the topic of Hydra's information to print.
    folders: of the configuration: the primary one, then those of --config-dir and `hydra.searchpath`.
    """

    overrides: tuple[str, ...] = ()
    inherited: tuple[str, ...] = ()
    help: bool = False
    version: bool = False
    sweep: bool = False
    show: bool = False
    resolve: bool = False
    package: str | None = None
    info: str | None = None
    completion: bool = False
    folders: tuple[Path, ...] = (CONF,)
    primary: str = "config"


def read_arguments(words: Sequence[str]) -> Arguments:
    """Returns the flags and overrides in `words`.

    Raises:
        UserError: for a flag that does not exist, has no effect here, occurs twice, or conflicts with another.
    """
    flags, unknown = _parser().parse_known_intermixed_args(list(words))
    if unknown:
        place = list(words).index(unknown[0])
        raise _unknown_flag(unknown[0], (*words, "")[place + 1])
    for name, allowed in (("cfg", ("job",)), ("info", INFO)):
        value = getattr(flags, name)
        if value not in (None, *allowed):
            raise UserError(f"unknown value '--{name} {value}'", allowed, f"--{name} {allowed[0]}")
    flags.show = flags.cfg == "job"
    modes = [flag for name, flag in _MODES.items() if getattr(flags, name) not in (None, False)]
    if len(modes) > 1:
        raise UserError(f"{' and '.join(modes)} do not go together", tuple(_MODES.values()), modes[-1])
    for name in ("resolve", "package"):
        if getattr(flags, name) and not flags.show:
            raise UserError(f"--{name} does nothing without --cfg job", "--cfg job with it", f"--cfg job --{name}")
    folders = [_folder(flags.config_path, "--config-path") if flags.config_path else CONF]
    if flags.config_dir:
        folders.append(_folder(flags.config_dir, "--config-dir"))
    search_paths = [word for word in flags.overrides if word.lstrip("+").startswith("hydra.searchpath=")]
    folders += [package_folder(address) for word in search_paths for address in _addresses(word)]
    return Arguments(
        overrides=tuple(word for word in flags.overrides if word not in search_paths),
        help=flags.help,
        version=flags.version,
        sweep=flags.sweep,
        show=flags.show,
        resolve=flags.resolve,
        package=flags.package,
        info=flags.info,
        completion=flags.completion,
        folders=tuple(folders),
        primary=_primary(folders[0], flags.config_name),
    )


def command_name() -> str:
    """Returns the command as it was typed: the console script, or `python -m pipeline`."""
    return PROGRAM if Path(sys.argv[0]).name == PROGRAM else "python -m pipeline"


class _Once(argparse.Action):
    """Refuses a second value, of which argparse would keep the last one and ignore the first."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if getattr(namespace, self.dest) is not None:
            raise UserError(f"{option_string} is given twice", "once", f"{option_string} {values}")
        setattr(namespace, self.dest, values)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(message, "", "--help")


def _unknown_flag(word: str, following: str) -> UserError:
    """Returns the error for a flag that does not exist, or a setting that is typed as one."""
    name, equals, value = word.partition("=")
    near = difflib.get_close_matches(name, FLAGS, 1)
    if equals and name in FLAGS:
        return UserError(f"'{word}'", "the flag and its value as two words", f"{name} {value}")
    value = value if equals else "true" if not following or following.startswith("-") or "=" in following else following
    name = name.lstrip("-").replace("-", "_")
    is_ours = name.partition(".")[0] in read_options([CONF]).groups
    instead = None if is_ours else named_elsewhere(name, value)
    if near and not instead:
        return UserError(f"unknown flag '{word}'", FLAGS, near[0])
    return UserError(f"unknown flag '{word}'", "key=value, without dashes", instead or shlex.quote(f"{name}={value}"))


def _parser() -> argparse.ArgumentParser:
    """Returns a parser of Hydra's flags, by Hydra's names."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    for *flags, name in (
        ("--help", "-h", "help"),
        ("--version", "version"),
        ("--run", "-r", "run"),
        ("--multirun", "-m", "sweep"),
        ("--resolve", "resolve"),
        ("--shell-completion", "-sc", "completion"),
    ):
        parser.add_argument(*flags, dest=name, action="store_true")
    parser.add_argument("--cfg", "-c", action=_Once)
    parser.add_argument("--info", "-i", action=_Once, nargs="?", const="all")
    for *flags, name in (
        ("--package", "-p", "package"),
        ("--config-dir", "-cd", "config_dir"),
        ("--config-path", "-cp", "config_path"),
        ("--config-name", "-cn", "config_name"),
    ):
        parser.add_argument(*flags, dest=name, action=_Once)
    return parser


def _folder(text: str, flag: str) -> Path:
    folder = Path(text).expanduser().absolute()
    if not folder.is_dir():
        raise UserError(f"{flag} {text} is not a directory", "a folder of options", f"{flag} <folder>")
    return folder


def _addresses(override: str) -> list[str]:
    """Returns the folders and packages in `hydra.searchpath=[…]`."""
    try:
        addresses = yaml.safe_load(override.partition("=")[2])
    except yaml.YAMLError:
        addresses = None
    if not isinstance(addresses, list) or not all(isinstance(address, str) for address in addresses):
        raise UserError(
            f"{override} is not a list of folders",
            "folders, or packages as pkg://<package>, in brackets",
            "'hydra.searchpath=[pkg://my_package.conf]'",
        )
    return addresses


def _primary(folder: Path, name: str | None) -> str:
    chosen = (name or "config").removesuffix(".yaml")
    if not (folder / f"{chosen}.yaml").is_file():
        flag = f"--config-name {name}" if name else f"--config-path {folder}"
        raise UserError(
            f"{flag}: there is no {chosen}.yaml in {folder}",
            "a primary configuration; --config-dir adds options to the project's own",
            "--config-dir <folder>",
        )
    return chosen


def names_run(arguments: Arguments) -> bool:
    """Returns whether an override may name a run whose overrides the command inherits."""
    return any(word.lstrip("+~").startswith(("resume", "fork", "run")) for word in arguments.overrides)
