"""Completion of flags, groups, options and settings in bash, by Hydra's own plugin."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra._internal.core_plugins.bash_completion import BashCompletion
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from pipeline.command_line.arguments import FLAGS, PROGRAM, Arguments, read_arguments
from pipeline.command_line.compose import Composer
from stages.errors import UserError


def complete(words: Sequence[str]) -> None:
    """Print a script for bash to evaluate (`install=bash`), or completions of $COMP_LINE (`query=bash`)."""
    if Path(sys.argv[0]).name != PROGRAM or list(words) not in (["install=bash"], ["query=bash"]):
        form = f'eval "$({PROGRAM} --shell-completion install=bash)"'
        raise UserError("--shell-completion needs install=bash and the console script", PROGRAM, form)
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
