"""`python -m pipeline` and `python -m pipeline run`: run one job, or with -m a sweep or search."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.command_line.arguments import help_text, names_run, read_arguments, refuse_unknown_verb
from pipeline.command_line.command import exit_code
from pipeline.config.names import read_options
from pipeline.exit_codes import DONE
from pipeline.system import environment, signals, streams
from pipeline.system.signals import Interrupted

if TYPE_CHECKING:
    from pipeline.command_line.compose import Composer


def main(words: Sequence[str]) -> int:
    """Run the job, sweep or search that the command line describes; return the exit code."""
    with signals.listening(owns_process=True):
        try:
            code = exit_code(lambda: _execute(words))
        except Interrupted as interrupted:  # before a run has begun; afterwards the run ends as KILLED
            code = interrupted.exit_code
        signals.ended(code)
    return code


def _execute(words: Sequence[str]) -> int:
    """Execute the command and return the exit code. Help is printed before anything heavy is imported."""
    refuse_unknown_verb(words)
    arguments = read_arguments(words)
    if arguments.help:
        print(help_text(read_options(arguments.folders)), end="")
        return streams.all_written(DONE)
    if (here := str(Path.cwd())) not in sys.path:  # at the end, so it does not hide other modules
        sys.path.append(here)
    environment.prepare()
    if arguments.completion:
        from pipeline.command_line.completion import complete

        complete(arguments.overrides, _flags)
        return DONE
    if names_run(arguments) and not arguments.show:
        from pipeline.decide.inherited import inherit_overrides

        arguments = inherit_overrides(arguments)
    with environment.imports_kept():
        from pipeline.command_line.compose import Composer

        composer = Composer(arguments)
        is_sweep = not arguments.show and composer.is_sweep
    if arguments.show:
        composer.show(arguments.resolve)
        return streams.all_written(DONE)
    code = _run_several(composer) if is_sweep else _run_one(composer)
    signals.ended(code)
    return code


def _flags(verb: str) -> list[str]:
    flags: list[str] = import_module(f"pipeline.commands.{verb}").main.flags
    return flags


def _run_one(composer: "Composer") -> int:
    composed = composer.one()  # a wrong key is reported before the slow imports of a run

    from pipeline.checks.combinations import read_composed
    from pipeline.config.debug import debugged
    from pipeline.console import Console
    from pipeline.decide.job import Job
    from pipeline.launch.run import run_job
    from pipeline.system.early_signals import STARTED

    return run_job(Job(debugged(read_composed(composed))), Console(), started=STARTED)


def _run_several(composer: "Composer") -> int:
    from pipeline.console import Console
    from pipeline.search.work import work_of
    from pipeline.sweep.outcome import reported
    from pipeline.sweep.sweep import run_sweep

    return reported(lambda: run_sweep(work_of(composer), Console()))
