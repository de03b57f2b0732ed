"""Completion of flags, groups, options and settings in bash, by Hydra's own plugin."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra._internal.core_plugins.bash_completion import BashCompletion
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from pipeline.command_line.arguments import FLAGS, PROGRAM, SHELLS, Arguments, read_arguments
from pipeline.command_line.compose import Composer
from stages.errors import UserError

_FORM = f'eval "$({PROGRAM} --shell-completion install=bash)"'


def complete(words: Sequence[str]) -> None:
    """Prints a script for bash to evaluate (`install=bash`, `uninstall=bash`), or completions (`query=bash`).

    Raises:
        UserError: for another shell or word, and without the console script, as bash completes by a command's name.
    """
    task, _, shell = words[0].partition("=") if len(words) == 1 else ("", "", "")
    if task not in ("install", "uninstall", "query") or shell not in SHELLS:
        typed = f"--shell-completion {shlex.join(words)}".rstrip()
        raise UserError(f"unknown flag '{typed}'", ("install=bash", "uninstall=bash"), _FORM)
    if Path(sys.argv[0]).name != PROGRAM:
        raise UserError("completion needs the console script, as bash completes by a command's name", PROGRAM, _FORM)
    if task == "query":
        print("\n".join(matches(os.environ.get("COMP_LINE", ""))))
        return
    plugin = BashCompletion(Composer(Arguments()).loader)
    plugin.install() if task == "install" else plugin.uninstall()


def matches(line: str) -> list[str]:
    """Returns completions of the last word of `line`, without Hydra's own settings, which have no effect.

    A wrong line has no completions.
    """
    *words, prefix = line.split(" ")[1:] or [""]
    if prefix.startswith("-"):
        return [flag for flag in FLAGS if flag.startswith(prefix)]
    try:
        arguments = read_arguments([word for word in words if word])
        plugin = BashCompletion(Composer(Arguments(folders=arguments.folders, primary=arguments.primary)).loader)
        flags = ["-m"] if arguments.sweep else []
        completions = plugin._query(
            config_name=arguments.primary, line=" ".join([*flags, *arguments.overrides, prefix])
        )
    except (UserError, HydraException, OmegaConfBaseException, ValueError):
        return []
    return [match for match in completions if not match.lstrip("+~").startswith(("hydra", "schema"))]
