"""Settings of a search that nothing would read are refused where they were typed; the fix gives them an effect."""

import shlex
from pathlib import Path

import pytest

from pipeline.command_line.arguments import read_arguments
from pipeline.command_line.compose import Composer
from pipeline.config.sweep_settings import SearchSettings
from pipeline.search.checks import Search, checked_search, refuse_unread
from pipeline.search.space import read_axes
from stages.errors import UserError
from tests.pipeline.experiments import experiment

UNREAD = {
    "sweep=tpe sweep.population=5": "sweep.sampler=tpe has no generations",
    "sweep=nsga2 sweep.population=20": "sweep.trials=20 are one generation",
    "sweep=random sweep.startup_trials=3 sweep.pruner=none": "neither sweep.sampler=random nor sweep.pruner=none",
    "sweep=nsga2 sweep.startup_trials=3": "neither sweep.sampler=nsga2 nor sweep.pruner=none",
    "sweep=tpe sweep.startup_trials=20": "sweep.trials=20 are all drawn at random",
    "sweep=tpe sweep.min_epochs=3 sweep.pruner=none": "no trial is pruned",
    "sweep=tpe sweep.min_epochs=5 train.epochs=5": "no trial is pruned after its last",
    "sweep=grid sweep.seed=3": "a grid has an order",
}

READ = (
    "sweep=nsga2 sweep.population=5",
    "sweep=grid sweep.startup_trials=3",
    "sweep=cmaes sweep.startup_trials=3 sweep.pruner=none",
    "sweep=tpe sweep.min_epochs=4 train.epochs=5 sweep.seed=1",
)


def search(outputs: Path, *words: str) -> Search:
    composer = Composer(
        read_arguments([*words, "optimizer.epsilon=interval(1,2)", f"outputs={outputs}", "tracking=off"])
    )
    assert isinstance(composer.sweep, SearchSettings)
    return checked_search(composer.sweep, read_axes(composer.of_jobs), composer.with_lines, composer.typed_of_sweep)


def check(*words: str) -> None:
    composer = Composer(read_arguments(words))
    assert isinstance(composer.sweep, SearchSettings)
    refuse_unread(composer.sweep, composer.typed_of_sweep, experiment(*(one for one in words if "train." in one)))


@pytest.mark.parametrize("given", UNREAD)
def test_a_setting_without_effect_is_refused(given: str) -> None:
    with pytest.raises(UserError, match=UNREAD[given]) as caught:
        check(*given.split())
    check(*given.split(), *shlex.split(str(caught.value.fix)))


@pytest.mark.parametrize("given", READ)
def test_a_setting_with_an_effect_is_not_refused(given: str) -> None:
    check(*given.split())


def test_it_is_refused_before_the_search(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"sweep\.population has no effect"):
        search(tmp_path, "sweep=tpe", "sweep.population=5")


def test_the_run_to_compare_with_is_found_before_the_search(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"evaluate\.against=nowhere"):
        search(tmp_path, "sweep=tpe", "evaluate.against=nowhere")


def test_an_interval_of_a_whole_setting_is_searched(tmp_path: Path) -> None:
    searched = search(tmp_path, "sweep=tpe", "seed=interval(0,100)")
    assert [axis.is_whole for axis in searched.axes] == [True, False]
