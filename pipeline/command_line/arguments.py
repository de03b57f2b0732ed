"""The command line: its verb, its flags, the overrides between them, and its help. This module does not use Hydra."""

import argparse
import difflib
import itertools
import re
import shlex
import sys
import textwrap
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from pipeline import __version__
from pipeline.config.names import Options, is_setting, options_folder, suggestion_for_other_name, suggestion_for_path
from pipeline.paths import CONF
from stages.errors import UserError
from stages.settings.ranges import assignment

PROGRAM = "tf-pipeline"
"""The console script; without it the command is `python -m pipeline`."""

VERBS = {
    "run": ("[…]", "train, evaluate and export; the default"),
    "runs": ("", "list runs and sweeps"),
    "compare": ("", "compare the jobs of the last sweep, or any runs"),
    "diff": ("RUN RUN", "show the differences between two runs"),
    "ui": ("", "open MLflow's UI"),
    "predict": ("RUN FILES", "predict with an exported model"),
    "serve": ("RUN", "serve an exported model over HTTP"),
    "sync": ("", "send pending records to MLflow"),
    "clean": ("", "delete files that are no longer needed"),
}
"""The verbs, which are modules of `pipeline/commands/`, each with its arguments and a description."""

OTHER_VERBS = {
    "train": "run", "fit": "run", "list": "runs", "ls": "runs", "mlflow": "ui", "infer": "predict", "upload": "sync",
}  # fmt: skip
"""Verbs that users may know from other tools, and the verb to type instead."""

COMMAND_LINE: ContextVar[Sequence[str]] = ContextVar("command_line")
"""The command that a thread runs, instead of the process's `sys.argv`."""

FLAGS = ("--help", "--version", "--cfg", "--resolve", "--multirun", "--config-dir", "--shell-completion")

_HEAD = """\
usage: python -m pipeline [flags] [group=option] [setting=value] ...
       python -m pipeline <verb> [options]

Train, evaluate and export a TensorFlow/Keras model as a pipeline of stages, and track the run in MLflow.

Examples:
  python -m pipeline                                     train on real digits, on one device: half a minute
  python -m pipeline strategy=mirrored precision=mixed   the same on all devices, in mixed precision
  python -m pipeline -m strategy=one_device,mirrored precision=float32,mixed   run a sweep of four jobs

Verbs (each has its own --help):
{verbs}

The same command resumes an interrupted run or sweep. <run> is the folder of a run or the beginning of its id:
  resume=never              start a new run
  resume=<run>              resume this run
  fork=<run>                start a new run from the best weights of this run
  from=evaluate run=<run>   evaluate and export this run again, without training

Groups and their options, chosen by group=option (the first option is the default):

"""

_TAIL = """
Change a setting by its dotted name: train.epochs=5 train.batch_size=128 optimizer.learning_rate=0.003 seed=7

Flags, and settings that change what the command does:
  -m, --multirun          run a sweep over all values given as a,b,c, range(1,4) or glob(c*)
  sweep=<option>          run a sweep defined in a file; sweep.n_jobs=2 runs two jobs of any sweep at a time
  dry_run=true            print the plan and exit
  debug=fast              run two steps of everything
  -c job, --cfg job       print the configuration and exit; --resolve resolves all references
  -cd, --config-dir DIR   add a folder with your own options
  -h, --help              print this help and exit
  --version               print the version and exit

Set HYDRA_FULL_ERROR=1 in the environment to see the traceback of an error. The command tf-pipeline does
the same; eval "$(tf-pipeline --shell-completion install=bash)" makes bash complete verbs, groups, options and settings.
"""
_WIDTH = 118


def verb_of(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the verb that a command line names, `run` by default, and the other words.

    The verb is the first word. Only `outputs=<folder>` may precede it, as in the entry point of a container.
    """
    before, rest = _split(words)
    return (rest[0], [*before, *rest[1:]]) if rest and rest[0] in VERBS else ("run", list(words))


def refuse_unknown_verb(words: Sequence[str]) -> None:
    """Raise UserError if the first word is meant as a verb: a plain word that is not a setting or a folder."""
    before, rest = _split(words)
    word, following = [*rest, "", ""][:2]
    is_setting_with_spaces = following.startswith("=")  # `seed = 1`
    if not re.fullmatch(r"[A-Za-z][\w-]*", word) or is_setting_with_spaces or suggestion_for_path(word):
        return
    near = OTHER_VERBS.get(word.lower()) or "".join(difflib.get_close_matches(word.lower(), VERBS, 1, cutoff=0.7))
    if near or not is_setting(word):
        fix = shlex.join(["python", "-m", "pipeline", *([*before, near, *rest[1:]] if near else ["--help"])])
        raise UserError(f"'{word}' is neither a verb nor an override", f"{', '.join(VERBS)} or key=value", fix)


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the leading words `outputs=<folder>`, and the other words."""
    before = list(itertools.takewhile(lambda word: word.startswith("outputs="), words))
    return before, list(words[len(before) :])


@dataclass(frozen=True)
class Arguments:
    """The command line after the name of the command and the verb."""

    overrides: tuple[str, ...] = ()
    """Overrides in order, without the flags between them."""
    inherited: tuple[str, ...] = ()
    """Overrides of the run that is resumed or forked, unless the command sets them itself."""
    help: bool = False
    sweep: bool = False
    show: bool = False
    """Print the configuration instead of running it."""
    resolve: bool = False
    """Resolve interpolations in the printed configuration."""
    completion: bool = False
    folders: tuple[Path, ...] = (CONF,)
    """Folders of the configuration: the project's `conf`, then the folders of --config-dir."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        fix = "--cfg job" if "--cfg" in message else "--config-dir <folder>" if "--config-dir" in message else ""
        raise UserError(message, "", fix or "python -m pipeline --help")


def read_arguments(words: Sequence[str]) -> Arguments:
    """Return the flags and overrides of a run.

    Args:
        words: The words of the command line after the verb.

    Raises:
        UserError: If a flag does not exist or conflicts with another one.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    modes = parser.add_mutually_exclusive_group()
    actions = (
        parser.add_argument("--help", "-h", action="store_true"),
        parser.add_argument("--version", action="version", version=f"tf-experiment-pipeline {__version__}"),
        modes.add_argument("--multirun", "-m", dest="sweep", action="store_true"),
        modes.add_argument("--cfg", "-c", choices=("job",)),
        modes.add_argument("--shell-completion", "-sc", dest="completion", action="store_true"),
        parser.add_argument("--resolve", action="store_true"),
        parser.add_argument("--config-dir", "-cd", action="append", default=[]),
    )
    known = {flag for action in actions for flag in action.option_strings}
    for place, word in enumerate(words):  # argparse reads `-cn x` as `-c n`
        if word.startswith("-") and word.partition("=")[0] not in known and word.strip("-"):
            raise _unknown_flag(word, words[place + 1] if place + 1 < len(words) else "")
    flags = parser.parse_intermixed_args(list(words))
    values = vars(flags)
    shows = values.pop("cfg") is not None or flags.resolve
    folders = (CONF, *map(options_folder, values.pop("config_dir")))
    return Arguments(**{**values, "overrides": tuple(flags.overrides)}, show=shows, folders=folders)


def _unknown_flag(flag: str, following: str) -> UserError:
    """Return the error for a flag that does not exist, with the setting or flag to type instead.

    Args:
        flag: The flag as typed.
        following: The next word of the command, which may be the value of the flag.
    """
    dashed, *values = re.split(r"[=\s]+", flag.lstrip("-"), maxsplit=1)
    name, value = dashed.replace("-", "_"), values[0] if values else ""
    value = value or (following if following[:1] != "-" and "=" not in following else "")
    near = [*difflib.get_close_matches(flag, FLAGS, 1, cutoff=0.8), *(f for f in FLAGS if f[2] == name.lower())][:1]
    fix = near[0] if near else suggestion_for_other_name(name, value)
    if not fix:
        fix = "--help" if not is_setting(name) else assignment(name, value) if value else f"{name}=<value>"
    return UserError(f"unknown flag '{flag}'", ("key=value without dashes", *FLAGS), fix)


def command_name() -> str:
    """Return the command as it was typed: the console script, or `python -m pipeline`."""
    return PROGRAM if Path(command_line()[0]).name == PROGRAM else "python -m pipeline"


def command_line() -> Sequence[str]:
    """Return the program and the arguments of the run in this thread, without the verb `run`."""
    program, *words = COMMAND_LINE.get(sys.argv)
    return (program, *verb_of(words)[1])


def names_run(arguments: Arguments) -> bool:
    """Return whether an override may name a run whose overrides the command inherits."""
    return any(word.lstrip("+~").startswith(("resume", "fork", "run")) for word in arguments.overrides)


def help_text(options: Options) -> str:
    """Return the text of `--help`, with every verb, group and option."""
    forms = {f"python -m pipeline {verb} {arguments}".rstrip(): about for verb, (arguments, about) in VERBS.items()}
    verbs = [f"  {form:{max(map(len, forms))}}   {about}" for form, about in forms.items()]
    column = max(map(len, options.groups), default=0)
    indent = " " * (column + 4)
    rows = []
    for group, names in options.groups.items():
        listed = ", ".join(names if options.defaults.get(group) is not None else ("(none)", *names))
        lines = [options.about[group]] if group in options.about else []
        lines += textwrap.wrap(listed, _WIDTH - len(indent))
        rows.append(f"  {group:{column}}  " + f"\n{indent}".join(lines))
    return _HEAD.format(verbs="\n".join(verbs)) + "\n".join(rows) + "\n" + _TAIL
