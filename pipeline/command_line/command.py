"""Commands beside `python -m pipeline`: their parser, their errors in one line, their exit codes."""

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from pipeline.exit_codes import FAILED, WRONG_CONFIGURATION
from pipeline.paths import outputs_folder
from pipeline.redaction import guard_output, learn_arguments
from pipeline.system import environment, streams
from pipeline.system.streams import no_room
from stages.errors import UserError, printable_lines

INTERRUPTED = 130
"""Exit code after Ctrl-C, as a shell's."""


class Command(argparse.ArgumentParser):
    """`python -m pipeline.<name>`: called, it reads the words of its command line, does its work, and returns the code.

    It has the option `outputs`, an absolute path, as `--outputs <folder>` and, like `python -m pipeline`, as
    `outputs=<folder>`.
    """

    def __init__(
        self, name: str, work: Callable[[Any], int], description: str | None, examples: str | None = None
    ) -> None:
        """work: from the options to the exit code. examples: what `--help` shows below the options, as it stands."""
        layout = argparse.RawDescriptionHelpFormatter
        super().__init__(f"python -m pipeline.{name}", description=description, epilog=examples, formatter_class=layout)
        self._work = work
        told = "folder of all results, also outputs=FOLDER (default: ./outputs)"
        self.add_argument("--outputs", type=outputs_folder, default="", metavar="FOLDER", help=told)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Take `outputs=<folder>` for the option."""
        words = sys.argv[1:] if args is None else args
        return super().parse_known_args(
            [f"--{word}" if word.startswith("outputs=") else word for word in words], namespace
        )

    def __call__(self, arguments: Sequence[str] | None = None) -> int:
        """Run the command; `arguments`: None for those of the process."""
        environment.prepare()
        return exit_code(lambda: self._work(self.parse_args(arguments)))


def exit_code(work: Callable[[], int]) -> int:
    """Returns the exit code of `work`.

    A UserError (2), and a file that cannot be read or written (1), are printed in a line; a defect (1) has a traceback.
    """
    try:
        return work()
    except Exception as error:
        told = no_room(error) or error
        is_known = isinstance(told, (UserError, OSError))
        if not is_known or os.environ.get("HYDRA_FULL_ERROR") == "1":
            print("".join(traceback.format_exception(error)), file=sys.stderr)
        if is_known:
            place = f"{told.filename}: " if isinstance(told, OSError) and told.filename is not None else ""
            print_error(f"{place}{getattr(told, 'strerror', None) or told}")
        return WRONG_CONFIGURATION if isinstance(error, UserError) else FAILED


def say(*lines: str) -> None:
    """Print lines, in which names of others' may be: control characters are escapes."""
    print(*map(printable_lines, lines), sep="\n", flush=True)


def print_error(line: str) -> None:
    print(f"error: {printable_lines(line)}", file=sys.stderr)


def print_warning(line: str) -> None:
    print(f"warning: {printable_lines(line)}", file=sys.stderr)


def run_command(main: Callable[[], int]) -> NoReturn:
    """Ends the process with the exit code of `main`; 1 where part of what it has printed is lost, 130 after Ctrl-C.

    At once: a KeyboardInterrupt would be lost in one of TensorFlow's callbacks. What is written is whole or not there.
    """
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    streams.guard()
    learn_arguments(sys.argv[1:])
    guard_output()
    sys.exit(streams.all_written(exit_code(main)))
