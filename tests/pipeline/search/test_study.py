"""Studies: the trials that they draw, and that an interrupted study continues as an uninterrupted one."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial

from pipeline.config.schemas import SearchSettings
from pipeline.decide.job import PrunedError
from pipeline.search import pictures
from pipeline.search.plan import Axis, Goal, Plan
from pipeline.search.study import STUDY, Pruner, Study, draw, id_of, open_storage
from stages.errors import UserError
from tests import commands

pytestmark = pytest.mark.slow

SETTINGS = SearchSettings(sampler="tpe", trials=8, startup_trials=3, pruner="none", population=4, seed=3)
SPACE = (Axis("x", FloatDistribution(-2.0, 2.0)), Axis("kind", CategoricalDistribution(("a", "b", "c"))))
PLAN = Plan(SETTINGS, (Goal("val/best_loss", "minimize"),), SPACE)
SMALL = (Axis("units", IntDistribution(1, 3)), Axis("kind", CategoricalDistribution(("a", "b"))))


def changed(**settings: Any) -> Plan:
    return replace(PLAN, settings=replace(SETTINGS, **settings))


def loss(trial: FrozenTrial) -> float:
    x, kind = trial.params.values()
    return float((x - 0.5) ** 2 + "bac".index(kind))


def run(study: Study, at_most: int = 10**6) -> list[FrozenTrial]:
    """Run trials until there are no more, or `at_most`; return all trials."""
    for _ in range(at_most):
        trial = study.ask()
        if trial is None:
            break
        study.tell(trial, [loss(trial)])
    return study.trials()


@pytest.mark.parametrize(("axis", "value"), [*itertools.product(SPACE, ("${x:}", "1]", None)), (SPACE[1], "d")])
def test_a_value_outside_of_the_space_is_refused(axis: Axis, value: Any) -> None:
    """The file of a study may be from somebody else."""
    with pytest.raises(UserError, match="the study holds"):
        axis.line(value)


@pytest.mark.parametrize("sampler", ["random", "tpe", "cmaes", "nsga2"])
def test_an_interrupted_search_draws_the_same_points_as_an_uninterrupted_one(sampler: str, tmp_path: Path) -> None:
    plan = changed(sampler=sampler)
    for name in ("whole", "cut", "other"):
        (tmp_path / name).mkdir()
    whole = run(Study(tmp_path / "whole", plan))
    for _ in range(2):  # each opens the study again, as a new process does
        run(Study(tmp_path / "cut", plan), at_most=3)
    cut = run(Study(tmp_path / "cut", plan))
    assert len(whole) == 8
    assert [trial.params for trial in cut] == [trial.params for trial in whole]
    other = run(Study(tmp_path / "other", changed(sampler=sampler, seed=4)))
    assert [trial.params for trial in other] != [trial.params for trial in whole]


@pytest.mark.parametrize("sampler", ["grid", "tpe", "nsga2"])
def test_each_point_is_tried_once_if_there_are_trials_for_all_even_after_interruptions(
    sampler: str, tmp_path: Path
) -> None:
    plan = replace(changed(sampler=sampler, trials=6), axes=SMALL)
    for _ in range(2):
        run(Study(tmp_path, plan), at_most=2)
    trials = run(Study(tmp_path, plan))
    points = {(f"units={units}", f"kind={kind}") for units in (1, 2, 3) for kind in "ab"}
    assert {plan.lines(trial) for trial in trials} == points
    assert [trial.number for trial in trials] == [0, 1, 2, 3, 4, 5]


def test_more_trials_are_added_to_a_study(tmp_path: Path) -> None:
    run(Study(tmp_path, changed(trials=5)))
    assert len(run(Study(tmp_path, changed(trials=8)))) == 8


def test_failed_and_pruned_trials_are_kept_and_never_the_best(tmp_path: Path) -> None:
    study = Study(tmp_path, changed(trials=3))
    for how in ({"reason": "diverged"}, {"pruned": True}, {"values": [0.5]}):
        trial = study.ask()
        assert trial is not None
        study.tell(trial, **how)
    assert [trial.state.name for trial in study.trials()] == ["FAIL", "PRUNED", "COMPLETE"]
    assert study.trials()[0].user_attrs["reason"] == "diverged"
    assert [trial.number for trial in study.best()] == [2]


def test_the_importance_of_settings_is_drawn_once_there_are_enough_trials(tmp_path: Path) -> None:
    """With two goals, the history shows the Pareto front."""
    goals = (Goal("val/best_loss", "minimize"), Goal("train/images_per_second", "maximize"))
    study = Study(tmp_path, replace(changed(sampler="random"), goals=goals))
    assert draw(study, tmp_path) == []
    for speed in (1.0, 1.0, 1.0, 1.0, 2.0):
        trial = study.ask()
        assert trial is not None
        study.tell(trial, [loss(trial), speed])
        names = {path.name for path in draw(study, tmp_path)}
        enough = {"importance.png"} if speed == 2.0 else set()  # importances need a metric that varies
        assert names == {"history.png"} | enough


@pytest.mark.parametrize(("direction", "best"), [("minimize", [0.5, 0.5, 0.25]), ("maximize", [0.5, 0.75, 0.75])])
def test_the_history_shows_the_best_value_so_far_and_pruned_trials(
    direction: str, best: list[float], tmp_path: Path
) -> None:
    study = Study(tmp_path, replace(changed(sampler="random"), goals=(Goal("val/metric", direction),)))
    for value in (0.5, 0.75, None, 0.25):
        trial = study.ask()
        assert trial is not None
        if value is None:
            storage = open_storage(study.file)
            storage.set_trial_intermediate_value(id_of(trial.number, storage), 1, 0.9)
            study.tell(trial, pruned=True)
        else:
            study.tell(trial, [value])
    [axes] = pictures.history(study.trials(), "val/metric", direction == "maximize").axes
    lines = {str(line.get_label()): line.get_xydata().tolist() for line in axes.get_lines()}  # type: ignore[union-attr]
    assert lines["best so far"] == [[1, best[0]], [2, best[1]], [4, best[2]], [4, best[2]]]
    assert lines["pruned"] == [[3, 0.9]]
    assert lines[f"best: trial {4 if direction == 'minimize' else 2}"] == [[4, 0.25] if best[-1] == 0.25 else [2, 0.75]]


def test_a_study_is_opened_after_a_line_was_not_written_whole_and_a_lock_was_left(tmp_path: Path) -> None:
    before = run(Study(tmp_path, PLAN), at_most=3)
    with (tmp_path / STUDY).open("a") as file:
        file.write('{"op_code":4,"worker')
    (tmp_path / f"{STUDY}.lock").touch()
    assert Study(tmp_path, PLAN).trials() == before
    assert [trial.params for trial in run(Study(tmp_path, PLAN))[:3]] == [trial.params for trial in before]


def prune(study: Study, curve: Sequence[float], kind: str = "median", least: int = 2, before: int = 0) -> int | None:
    """Run a trial whose metric is `curve`; return the epoch after which it was pruned.

    Args:
        study: The study.
        curve: The metric of each epoch.
        kind: The pruner.
        least: The number of epochs before a trial may be pruned.
        before: The number of epochs of the run that the trial forks.
    """
    trial = study.ask()
    assert trial is not None
    pruner = Pruner(study.file, trial.number, "val/loss", before, before + len(curve), kind, 2, least)
    try:
        for epoch, value in enumerate(curve, before + 1):
            pruner({"val/loss": value}, epoch)
    except PrunedError as pruned:
        study.tell(trial, pruned=True)
        return pruned.epoch
    study.tell(trial, [min(curve)])
    return None


def test_the_median_pruner_ends_trials_that_are_worse_at_the_same_epoch(tmp_path: Path) -> None:
    study = Study(tmp_path, PLAN)
    assert prune(study, [1.0, 0.6, 0.4, 0.3]) is None
    assert prune(study, [9.0, 9.0, 9.0, 9.0]) is None  # a startup trial
    assert prune(study, [1.1, 0.7, 0.5, 0.2]) is None  # better than the median, (1 + 9) / 2
    assert prune(study, [8.0, 8.0, 8.0, 8.0]) == 2  # not before epoch 2
    assert prune(study, [1.0, 0.5, 0.4, 7.0]) is None  # the best value so far counts
    assert study.optuna.trials[3].last_step == 2
    assert prune(study, [8.0, 8.0, 8.0, 8.0], before=5) == 7  # only the own epochs of a fork count


def test_halving_continues_one_trial_in_three(tmp_path: Path) -> None:
    study = Study(tmp_path, changed(trials=30))
    ended = [prune(study, [float(number)] * 9, "halving", 1) for number in range(9)]
    assert ended[0] is None
    assert all(epoch == 1 for epoch in ended[1:])


@pytest.mark.smoke
def test_an_epoch_that_is_reported_again_counts_once(tmp_path: Path) -> None:
    study = Study(tmp_path, PLAN)
    trial = study.ask()
    assert trial is not None
    pruner = Pruner(study.file, trial.number, "val/loss", 0, 4, "median", 2, 1)
    for value in (1.0, 0.5):
        pruner({"val/loss": value}, 1)
    pruner({"train/loss": 1.0}, 2)
    assert study.optuna.trials[0].intermediate_values == {1: 1.0}


def test_a_search_without_its_packages_is_refused_in_one_line(tmp_path: Path) -> None:
    run = "import runpy, sys; sys.modules['optuna'] = None; runpy.run_module('pipeline', None, '__main__', True)"
    ran = commands.run_alone(run, "sweep=tpe", "seed=choice(1,2)", f"outputs={tmp_path}/outputs")
    assert ran.returncode == 2
    assert re.fullmatch(r"error: a search: the package optuna is not installed.*Try: pip install optuna\n", ran.stderr)
    assert not (tmp_path / "outputs").exists()
