"""The jobs that a command asks for: a sweep over a grid, or a search."""

from pipeline.command_line.compose import Composer
from pipeline.config.schemas import SearchSettings
from pipeline.sweep.grid import Grid, checked_jobs
from pipeline.sweep.source import Work
from pipeline.targets import check_installed


def work_of(composer: Composer) -> Work:
    """Return the jobs that a command line describes, all of them checked.

    Args:
        composer: Composes the configurations of the jobs.

    Raises:
        UserError: If a setting is wrong, or Optuna is not installed.
    """
    if not isinstance(composer.sweep, SearchSettings):
        return Grid(checked_jobs(composer.jobs(), len(composer.grid)), composer.sweep)
    check_installed("a search", ["optuna", "cmaes"], "optuna")
    from pipeline.search.plan import read_axes  # with Optuna, which a sweep does not need
    from pipeline.search.search import Search

    return Search(composer.sweep, read_axes(composer.of_jobs, composer.with_lines), composer.with_lines)
