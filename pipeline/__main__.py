"""`python -m pipeline`: composes the configuration, then runs one job, or with -m a sweep of them."""

from pipeline.system import early_signals  # acts while the rest is imported

# isort: split

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pipeline.command_line.arguments import help_text, names_run, read_arguments
from pipeline.command_line.command import exit_code
from pipeline.config.names import read_options
from pipeline.exit_codes import DONE
from pipeline.redaction import guard_output, learn_arguments
from pipeline.system import environment, signals, streams
from pipeline.system.signals import Interrupted

if TYPE_CHECKING:
    from pipeline.command_line.compose import Composer


def main() -> NoReturn:
    """The command: ends the process with the contract's exit code."""
    streams.guard()
    learn_arguments(sys.argv[1:])
    guard_output()
    with signals.listening(owns_process=True):
        try:
            with signals.interruptible(signals.BEFORE_RUN_SECONDS):
                code = exit_code(_execute)
        except Interrupted as interrupted:  # before a run has begun; later it is marked KILLED
            code = interrupted.exit_code
        signals.ended(code)
    if sys.modules.keys() & {"tensorflow", "mlflow"}:  # whose destructors would take long: all is written and sent
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _execute() -> int:
    """Execute the command and return the exit code. Help is printed before anything heavy is imported."""
    arguments = read_arguments(sys.argv[1:])
    if arguments.help:
        print(help_text(read_options(arguments.folders)), end="")
        return streams.all_written(DONE)
    if (here := str(Path.cwd())) not in sys.path:  # as `python -m pipeline` has it; last, so that it hides nothing
        sys.path.append(here)
    environment.prepare()
    if arguments.completion:
        from pipeline.command_line.completion import complete

        complete(arguments.overrides)
        return DONE
    if names_run(arguments) and not arguments.show:
        from pipeline.planning.inherited import inherit_overrides

        arguments = inherit_overrides(arguments)
    with environment.imports_kept():
        from pipeline.command_line.compose import Composer

        composer = Composer(arguments)
        is_sweep = not arguments.show and composer.is_sweep
    if arguments.show:
        composer.show(arguments.resolve)
        return streams.all_written(DONE)
    run = _run_one if not is_sweep else _run_search if composer.searches else _run_sweep
    code = run(composer)
    signals.ended(code)
    return code


def _run_one(composer: "Composer") -> int:
    composed = composer.one()  # a wrong key is answered without the imports of a run

    from pipeline.checks.combinations import read_composed
    from pipeline.config.debug import debugged
    from pipeline.console import Console
    from pipeline.planning.job import Job
    from pipeline.run.engine import run_job

    return run_job(Job(debugged(read_composed(composed)), composed.overrides, started=early_signals.STARTED), Console())


def _run_sweep(composer: "Composer") -> int:
    from pipeline.console import Console
    from pipeline.sweep.run import checked
    from pipeline.sweep.session import Sweep

    return Sweep(checked(composer.jobs(), len(composer.grid)), composer.sweep, Console()).start()


def _run_search(composer: "Composer") -> int:
    from pipeline.config.schemas import SearchSettings
    from pipeline.console import Console
    from pipeline.targets import check_installed

    assert isinstance(composer.sweep, SearchSettings)
    check_installed("a search", ["optuna", "cmaes"], "optuna")
    from pipeline.search.plan import read_axes
    from pipeline.search.trials import Search

    axes = read_axes(composer.of_jobs, composer.with_lines)
    return Search(composer.sweep, axes, composer.with_lines, Console()).start()


if __name__ == "__main__":
    main()
