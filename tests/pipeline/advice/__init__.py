"""Commands and calls that lead to each piece of advice, by the place in the source that gives it."""

from collections.abc import Callable
from pathlib import Path

from stages.errors import UserError

Case = str | Callable[[Path], str | tuple[UserError, str]]
"""A command; or a function of an empty folder, the working directory, that makes the files that a command needs and
returns it; for an error that only a running stage raises, the error and the command to which its advice is added."""
