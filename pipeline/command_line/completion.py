"""Completion of the command line in bash: verbs, flags, groups, options and settings."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from glob import escape, glob
from pathlib import Path

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.command_line.arguments import FLAGS, PROGRAM, VERBS, read_arguments, verb_of
from pipeline.command_line.compose import Composer
from pipeline.command_line.overrides import checked, parsed
from pipeline.config.errors import dotted
from stages.errors import UserError

SCRIPT = f"""\
_tf_pipeline() {{
    local IFS=$'\\n'
    COMPREPLY=($(COMP_LINE="${{COMP_LINE:0:COMP_POINT}}" {PROGRAM} --shell-completion query=bash 2>/dev/null))
}}
COMP_WORDBREAKS=${{COMP_WORDBREAKS//=}}
complete -o nospace -o default -F _tf_pipeline {PROGRAM}
"""
"""The script for bash to evaluate. Without `=` in COMP_WORDBREAKS, an override is a single word."""


def complete(words: Sequence[str], flags_of: Callable[[str], Sequence[str]]) -> None:
    """Print a script for bash to evaluate (`install=bash`), or completions of $COMP_LINE (`query=bash`).

    Args:
        words: The words after `--shell-completion`.
        flags_of: Returns the flags of a verb other than `run`.
    """
    if Path(sys.argv[0]).name != PROGRAM or list(words) not in (["install=bash"], ["query=bash"]):
        form = f'eval "$({PROGRAM} --shell-completion install=bash)"'
        raise UserError(f"--shell-completion requires install=bash and the command {PROGRAM}", "", form)
    print(SCRIPT if words[0] == "install=bash" else "\n".join(matches(os.environ.get("COMP_LINE", ""), flags_of)))


def matches(line: str, flags_of: Callable[[str], Sequence[str]]) -> list[str]:
    """Return completions of the last word of `line`; empty if the words before it are wrong.

    After a verb other than `run`, only its flags are completed here; the shell completes file names.
    """
    *typed, prefix = line.split(" ")[1:] or [""]
    verb, words = verb_of([word for word in typed if word])
    if verb != "run" or prefix.startswith("-"):
        flags = FLAGS if verb == "run" else flags_of(verb)
        return [flag for flag in flags if prefix and flag.startswith(prefix)]
    verbs = [] if any(typed) else [name for name in VERBS if name.startswith(prefix)]
    return [*verbs, *_overrides(words, prefix)]


def _overrides(words: Sequence[str], prefix: str) -> list[str]:
    """Return the groups, options and settings that begin with `prefix`, after the words of a run."""
    try:
        arguments = read_arguments(words)
        composer = Composer(replace(arguments, overrides=()))
        overrides = checked(parsed(arguments.overrides), composer.options, sweep=True)
        document = composer.compose([one for one in overrides if not one.is_sweep_override()]).document
    except (UserError, HydraException, OmegaConfBaseException, ValueError):
        return []
    name, sign, value = prefix.partition("=")
    if sign:
        options = composer.options.groups.get(name.lstrip("+"))
        values = _values(document, name, value) if options is None else options
        return [f"{name}={one}" for one in values if one.startswith(value)]
    plain = name.lstrip("+~")
    groups = [f"{group}=" for group in composer.options.groups]
    names = {one for one in (*groups, *_settings(document, plain)) if one.startswith(plain)}
    return [name[: len(name) - len(plain)] + one for one in sorted(names)]


def _settings(document: DictConfig, prefix: str) -> Iterator[str]:
    """Yield the settings that begin with `prefix`, up to their next dot."""
    names = set(dotted(document))
    for name in names - {name.rpartition(".")[0] for name in names}:
        rest, dot, _ = name[len(prefix) :].partition(".")
        yield f"{name[: len(prefix)]}{rest}{dot or '='}"


def _values(document: DictConfig, name: str, prefix: str) -> list[str]:
    """Return the files whose path begins with `prefix`, or the current value of a setting."""
    if prefix.startswith((".", "/")):
        return sorted(glob(f"{escape(prefix)}*"))  # noqa: PTH207  # pathlib would drop a leading `./`
    value = OmegaConf.select(document, name, throw_on_missing=False, throw_on_resolution_failure=False)
    is_plain = value is not None and not OmegaConf.is_config(value)
    return [str(value).lower() if isinstance(value, bool) else str(value)] if is_plain else []
