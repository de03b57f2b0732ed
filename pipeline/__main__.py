"""`python -m pipeline` and `tf-pipeline`: choose the verb, and end the process with its exit code."""

from pipeline.system import early_signals  # noqa: F401 - ends the process on a signal, until a run handles signals

# isort: split

import os
import sys
from importlib import import_module
from typing import NoReturn

from pipeline.command_line.arguments import verb_of
from pipeline.command_line.command import exit_code
from pipeline.redaction import guard_output, learn_arguments
from pipeline.system import streams


def main() -> NoReturn:
    """Run the verb that the command line names, and end the process with its exit code."""
    streams.guard()
    learn_arguments(sys.argv[1:])
    guard_output()
    code = exit_code(_run_verb)
    if sys.modules.keys() & {"tensorflow", "mlflow"}:  # their destructors take long, and everything is written and sent
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _run_verb() -> int:
    verb, words = verb_of(sys.argv[1:])
    code: int = import_module(f"pipeline.commands.{verb}").main(words)
    return code


if __name__ == "__main__":
    main()
