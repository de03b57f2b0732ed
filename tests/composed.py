"""Cache Hydra's compositions of the options in `conf/`, for the tests of a process and the commands forked from it.

Each composition takes a third of a second, and the tests need hundreds. Folders of custom options are not cached.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pipeline.command_line.arguments import read_arguments
from pipeline.command_line.compose import Composer
from pipeline.config.schemas import SCHEMAS

Base = tuple[bytes, Mapping[str, str]]
_known: dict[tuple[Any, ...], Base] = {}
_ahead: set[tuple[str, ...]] = {()}
_compose = Composer._base


def remember() -> None:
    """Make `Composer` compose each choice of options once."""
    Composer._base = _base  # type: ignore[assignment, method-assign]


def _base(composer: Composer, options: tuple[str, ...]) -> Base:
    if composer._config_dirs:
        return _compose(composer, options)
    key = (composer.folders, options)
    if key not in _known:
        _known[key] = _compose(composer, options)
    return _known[key]


def compose_ahead(arguments: Sequence[str]) -> None:
    """Compose the options of a command line before this process forks the command."""
    chosen = tuple(word for word in arguments if word.partition("=")[0] in SCHEMAS and "," not in word)
    if chosen not in _ahead or not _known:
        _ahead.add(chosen)
        with suppress(Exception):  # the command will report the error
            Composer(read_arguments(chosen)).one()
