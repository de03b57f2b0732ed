"""Verbs such as `python -m pipeline compare`: their parser, their one-line errors and their exit codes."""

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from pipeline.exit_codes import FAILED, WRONG_CONFIGURATION
from pipeline.paths import outputs_folder
from pipeline.system import environment, streams
from pipeline.system.streams import no_room
from stages.errors import UserError, printable_lines


class Command(argparse.ArgumentParser):
    """A verb: `python -m pipeline <name>`. Calling it parses the words after the verb and returns the exit code.

    Every verb has the option `outputs`, an absolute path, written as `--outputs <folder>` or, as for a run, as
    `outputs=<folder>`.
    """

    def __init__(
        self, name: str, work: Callable[[Any], int], description: str | None, examples: str | None = None
    ) -> None:
        """Create the parser.

        Args:
            name: The verb.
            work: Is called with the parsed options and returns the exit code.
            description: The text that `--help` shows above the options.
            examples: The text that `--help` shows below the options, unchanged.
        """
        layout = argparse.RawDescriptionHelpFormatter
        super().__init__(f"python -m pipeline {name}", description=description, epilog=examples, formatter_class=layout)
        self._work = work
        about = "folder of all results, also outputs=FOLDER (default: ./outputs)"
        self.add_argument("--outputs", type=outputs_folder, default="", metavar="FOLDER", help=about)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse words, and accept `outputs=<folder>` as `--outputs=<folder>`."""
        words = sys.argv[1:] if args is None else args
        return super().parse_known_args(
            [f"--{word}" if word.startswith("outputs=") else word for word in words], namespace
        )

    def error(self, message: str) -> NoReturn:
        """Raise the UserError for words that cannot be parsed."""
        raise UserError(message, "", f"{self.prog} --help")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End the process after `--help`, with 1 if part of the help could not be written."""
        super().exit(streams.all_written(status), message)

    @property
    def flags(self) -> list[str]:
        """The long names of the options, for completion."""
        return [name for action in self._actions for name in action.option_strings if name.startswith("--")]

    def __call__(self, words: Sequence[str]) -> int:
        """Run the verb; return the exit code, which is 1 if part of the output could not be written."""
        environment.prepare()
        return streams.all_written(exit_code(lambda: self._work(self.parse_args(words))))


def exit_code(work: Callable[[], int]) -> int:
    """Return the exit code of `work`, after printing the exception that it raises, if any.

    A UserError (2) and a file that cannot be read or written (1) are printed in one line. Any other exception is a
    defect (1) and is printed with its traceback.
    """
    try:
        return work()
    except Exception as error:
        reported = no_room(error) or error
        is_known = isinstance(reported, (UserError, OSError))
        if not is_known or os.environ.get("HYDRA_FULL_ERROR") == "1":
            print("".join(traceback.format_exception(error)), file=sys.stderr)
        if is_known:
            file = reported.filename if isinstance(reported, OSError) else None
            place = f"{file}: " if file is not None else ""
            print_error(f"{place}{getattr(reported, 'strerror', None) or reported}")
        return WRONG_CONFIGURATION if isinstance(error, UserError) else FAILED


def say(*lines: str) -> None:
    """Print lines with control characters escaped, because they may contain names from other people's files."""
    print(*map(printable_lines, lines), sep="\n", flush=True)


def print_error(line: str) -> None:
    """Print an error to standard error."""
    print(f"error: {printable_lines(line)}", file=sys.stderr)


def print_warning(line: str) -> None:
    """Print a warning to standard error."""
    print(f"warning: {printable_lines(line)}", file=sys.stderr)
