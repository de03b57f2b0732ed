"""Studies: which trials come, and that an interrupted one goes on as if it had not been."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from matplotlib import image

from pipeline.console import Console
from pipeline.exit_codes import FAILED, WRONG_CONFIGURATION
from pipeline.planning.job import PrunedError, SweepRun
from pipeline.search.plan import Goal, SearchPlan
from pipeline.search.plots import draw, importances
from pipeline.search.pruning import Pruner
from pipeline.search.space import Axis
from pipeline.search.study import STUDY, Study, Trial
from pipeline.search.trials import Trials
from pipeline.sweep.process import LOG
from stages.errors import UserError

pytestmark = pytest.mark.slow

PLAN = SearchPlan((Goal("val/best_loss", "minimize"),), "tpe", 8, 3, None, 1, 4, seed=3, n_jobs=1)
SPACE = (Axis("x", low=-2.0, high=2.0), Axis("kind", ("a", "b", "c")))
SMALL = (Axis("units", low=1, high=3, is_whole=True), Axis("kind", ("a", "b")))


def loss(trial: Trial) -> float:
    x, kind = (line.partition("=")[2] for line in trial.lines)
    return (float(x) - 0.5) ** 2 + "bac".index(kind)


def run(study: Study, at_most: int = 10**6) -> list[Trial]:
    """Runs trials until there are no more, or so many."""
    for _ in range(at_most):
        trial = study.ask()
        if trial is None:
            break
        study.tell(trial.number, [loss(trial)])
    return study.trials()


@pytest.mark.parametrize("sampler", ["random", "tpe", "cmaes", "nsga2"])
def test_an_interrupted_search_draws_what_an_uninterrupted_one_does(sampler: str, tmp_path: Path) -> None:
    plan = replace(PLAN, sampler=sampler)
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    whole = run(Study(tmp_path / "whole", plan, SPACE))
    for _ in range(2):  # each in a process of its own, as far as the study knows
        run(Study(tmp_path / "cut", plan, SPACE), at_most=3)
    cut = run(Study(tmp_path / "cut", plan, SPACE))
    assert len(whole) == 8
    assert [trial.lines for trial in cut] == [trial.lines for trial in whole]
    other = run(Study(_made(tmp_path / "other"), replace(plan, seed=4), SPACE))
    assert [trial.lines for trial in other] != [trial.lines for trial in whole]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize("sampler", ["random", "tpe", "grid"])
def test_no_point_is_tried_twice(sampler: str, tmp_path: Path) -> None:
    trials = run(Study(tmp_path, replace(PLAN, sampler=sampler, trials=50), SMALL))
    assert len({trial.lines for trial in trials}) == len(trials) == 6
    assert [trial.ordinal for trial in trials] == [1, 2, 3, 4, 5, 6]


def test_a_grid_has_the_order_of_a_sweep(tmp_path: Path) -> None:
    trials = run(Study(tmp_path, replace(PLAN, sampler="grid", trials=4), SMALL))
    assert [trial.lines for trial in trials] == [
        ("units=1", "kind=a"), ("units=1", "kind=b"), ("units=2", "kind=a"), ("units=2", "kind=b"),
    ]  # fmt: skip


def test_more_trials_are_added_to_a_study(tmp_path: Path) -> None:
    run(Study(tmp_path, replace(PLAN, trials=5), SPACE))
    assert len(run(Study(tmp_path, replace(PLAN, trials=8), SPACE))) == 8


def test_what_failed_is_kept_and_no_best(tmp_path: Path) -> None:
    study = Study(tmp_path, replace(PLAN, trials=3), SPACE)
    for how in ({"reason": "diverged"}, {"pruned": True}, {"values": [0.5]}):
        trial = study.ask()
        assert trial is not None
        study.tell(trial.number, **how)
    assert [trial.state for trial in study.trials()] == ["FAIL", "PRUNED", "COMPLETE"]
    assert study.trials()[0].reason == "diverged"
    assert [trial.ordinal for trial in study.best()] == [3]


def test_a_trial_that_its_process_refuses_has_the_reason(tmp_path: Path) -> None:
    study = Study(tmp_path, replace(PLAN, trials=2), SPACE)
    trials = Trials(SimpleNamespace(plan=study._plan), study, tmp_path, SweepRun(None, "x"), Console())  # type: ignore[arg-type]
    for code, reason in ((WRONG_CONFIGURATION, "fork=a: it is gone"), (FAILED, None)):
        trial = study.ask()
        assert trial is not None
        folder = tmp_path / str(trial.number)
        folder.mkdir()
        (folder / LOG).write_text("09:49:57 error: fork=a: it is gone\n")
        made = SimpleNamespace(number=trial.ordinal, exit_code=None, reason=None, entry={})
        trials._begun[folder] = trial, made  # type: ignore[assignment]
        trials.ended(SimpleNamespace(folder=folder), code)  # type: ignore[arg-type]
        assert made.reason == reason
    assert [trial.reason for trial in study.trials()] == ["fork=a: it is gone", "it died before its run began"]


def test_of_two_goals_the_front_is_best(tmp_path: Path) -> None:
    goals = (Goal("val/best_accuracy", "maximize"), Goal("train/seconds", "minimize"))
    study = Study(tmp_path, replace(PLAN, sampler="nsga2", goals=goals, trials=3), SPACE)
    for values in ([0.9, 10.0], [0.8, 1.0], [0.7, 5.0]):
        trial = study.ask()
        assert trial is not None
        study.tell(trial.number, values)
    assert [trial.values for trial in study.best()] == [(0.9, 10.0), (0.8, 1.0)]


@pytest.mark.parametrize("count", [1, 2])
def test_what_mattered_is_drawn_once_there_are_trials_enough(count: int, tmp_path: Path) -> None:
    """Of two goals the picture of the progress is that of their front."""
    goals = (Goal("val/best_loss", "minimize"), Goal("train/images_per_second", "maximize"))[:count]
    study = Study(tmp_path, replace(PLAN, sampler="random", goals=goals), SPACE)
    assert draw(study, goals, tmp_path) == []
    for number in range(1, 6):
        trial = study.ask()
        assert trial is not None
        study.tell(trial.number, [loss(trial), 1.0][:count] if number < 5 else [loss(trial), 2.0][:count])
        names = {path.name for path in draw(study, goals, tmp_path)}
        enough = 4 if count == 1 else 5  # nothing can matter to what does not vary
        assert names == {"history.png", "importance.png"} if number >= enough else names == {"history.png"}
    for name in ("history.png", "importance.png"):
        height, width, _ = image.imread(tmp_path / name).shape
        assert min(height, width) > 100
    shares = importances(study, goals)
    assert set(shares) == {"x", "kind"}
    assert sum(share[0] for share in shares.values()) == pytest.approx(1.0)


def test_a_damaged_study_is_refused(tmp_path: Path) -> None:
    (tmp_path / STUDY).write_text("no database, but long enough to be taken for one" * 10)
    with pytest.raises(UserError, match="cannot be opened"):
        Study(tmp_path, PLAN, SPACE)


def prune(study: Study, curve: Sequence[float], kind: str = "median", least: int = 2) -> int | None:
    """Runs a trial whose metric is `curve`, and returns the epoch after which it was pruned."""
    trial = study.ask()
    assert trial is not None
    pruner = Pruner(study.address, study.name, study.id_of(trial.number), "val/loss", len(curve), kind, 2, least)
    try:
        for epoch, value in enumerate(curve, 1):
            pruner({"val/loss": value}, epoch)
    except PrunedError as pruned:
        study.tell(trial.number, pruned=True)
        return pruned.epoch
    study.tell(trial.number, [min(curve)])
    return None


def test_the_median_prunes_what_is_worse_at_the_same_epoch(tmp_path: Path) -> None:
    study = Study(tmp_path, PLAN, SPACE)
    assert prune(study, [1.0, 0.6, 0.4, 0.3]) is None
    assert prune(study, [9.0, 9.0, 9.0, 9.0]) is None  # a startup trial
    assert prune(study, [1.1, 0.7, 0.5, 0.2]) is None  # better than the median, (1 + 9) / 2
    assert prune(study, [8.0, 8.0, 8.0, 8.0]) == 2  # before, every trial is trained
    assert prune(study, [1.0, 0.5, 0.4, 7.0]) is None  # its best so far counts, as do those of the others
    assert study.trials()[3].epochs == 2


def test_halving_lets_one_in_three_go_on(tmp_path: Path) -> None:
    study = Study(tmp_path, replace(PLAN, trials=30), SPACE)
    ended = [prune(study, [float(number)] * 9, "halving", 1) for number in range(9)]
    assert ended[0] is None
    assert all(epoch == 1 for epoch in ended[1:])


@pytest.mark.smoke
def test_an_epoch_that_is_reported_again_counts_once(tmp_path: Path) -> None:
    study = Study(tmp_path, PLAN, SPACE)
    trial = study.ask()
    assert trial is not None
    pruner = Pruner(study.address, study.name, study.id_of(trial.number), "val/loss", 4, "median", 2, 1)
    for value in (1.0, 0.5):
        pruner({"val/loss": value}, 1)
    pruner({"train/loss": 1.0}, 2)
    assert study.study.trials[0].intermediate_values == {1: 1.0}
