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
    """Prints what bash is to evaluate (`install=bash`, `uninstall=bash`), or completions of a line (`query=bash`).

    Raises:
        UserError: for another shell or word, and without the console script: bash completes by a command's name, and
            `python` is not this one.
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
    """Returns how the last word of `line` can go on; nothing of Hydra's own settings, which have no effect.

    A line that is wrong already has no completions.
    """
    *words, last = line.split(" ")[1:] or [""]
    if last.startswith("-"):
        return [flag for flag in FLAGS if flag.startswith(last)]
    try:
        known = read_arguments([word for word in words if word])
        plugin = BashCompletion(Composer(Arguments(folders=known.folders, primary=known.primary)).loader)
        flags = ["-m"] if known.sweep else []
        found = plugin._query(config_name=known.primary, line=" ".join([*flags, *known.overrides, last]))
    except (UserError, HydraException, OmegaConfBaseException, ValueError):
        return []
    return [match for match in found if not match.lstrip("+~").startswith(("hydra", "schema"))]
