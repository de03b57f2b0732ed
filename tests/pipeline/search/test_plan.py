"""The plan of a search, checked before its first trial."""

from pathlib import Path

import pytest
from optuna.distributions import IntDistribution

from pipeline.command_line.arguments import read_arguments
from pipeline.command_line.compose import Composer
from pipeline.config.sweep import SearchSettings
from pipeline.console import Console
from pipeline.search.plan import read_axes
from pipeline.search.trials import Search
from stages.errors import UserError


def search(outputs: Path, *words: str) -> Search:
    composer = Composer(
        read_arguments([*words, "optimizer.epsilon=interval(1,2)", f"outputs={outputs}", "tracking=off"])
    )
    assert isinstance(composer.sweep, SearchSettings)
    axes = read_axes(composer.of_jobs, composer.with_lines)
    return Search(composer.sweep, axes, composer.with_lines, Console())


def test_the_run_to_compare_with_is_found_before_the_search(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"evaluate\.against=nowhere"):
        search(tmp_path, "sweep=tpe", "evaluate.against=nowhere")


def test_a_search_minimizes_the_error_that_training_monitors(tmp_path: Path) -> None:
    """Without being told."""
    [goal] = search(tmp_path, "sweep=tpe", "train.monitor=val_rmse").plan.goals
    assert (goal.metric, goal.direction) == ("val/best_rmse", "minimize")


def test_an_interval_of_a_whole_setting_is_searched(tmp_path: Path) -> None:
    searched = search(tmp_path, "sweep=tpe", "train.batch_size=interval(8,64)")
    assert [isinstance(axis.drawn_from, IntDistribution) for axis in searched.plan.axes] == [True, False]
