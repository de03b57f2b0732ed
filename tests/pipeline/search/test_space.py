"""The search space, from Hydra's overrides to Optuna's distributions, and the checks before the first trial."""

import math
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from optuna.distributions import CategoricalDistribution, IntDistribution

from pipeline.command_line.arguments import read_arguments
from pipeline.command_line.compose import Composer
from pipeline.config.schemas import SearchSettings
from pipeline.console import Console
from pipeline.internals.hydra import parse
from pipeline.launch.slots import Slot
from pipeline.runs.facts import Facts, TaskFacts
from pipeline.runs.folder import RunFolder
from pipeline.search.plan import Axis, probes, read_axes
from pipeline.search.search import Search
from pipeline.sweep.index import read_index
from pipeline.sweep.sweep import Sweep
from pipeline.tracking.follower import Follower
from pipeline.tracking.tracker import Tracker
from stages.errors import UserError
from tests.pipeline.experiments import Printed, compose, write_run

PLAIN = compose()


def axes(*words: str) -> list[Axis]:
    return read_axes([parse(word) for word in words], lambda lines: PLAIN)


@pytest.mark.parametrize(
    ("word", "low", "high", "whole", "log", "ends"),
    [("a=interval(1,5)", 1, 5, False, False, ("1.0", "5.0")), ("a=range(1,10,2)", 1, 9, True, False, ("1", "9")),
     ("a=tag(log,interval(1e-4,1e-1))", 1e-4, 1e-1, False, True, ("0.0001", "0.1")),
     ("a=tag(log,int(interval(1,64)))", 1, 64, True, True, ("1", "64")),
     ("a=range(0,1,0.25)", 0, 0.75, False, False, ("0.0", "0.75"))],
)  # fmt: skip
def test_numbers(word: str, low: float, high: float, whole: bool, log: bool, ends: tuple[str, ...]) -> None:
    [axis] = axes(word)
    drawn = axis.drawn_from
    assert (drawn.low, drawn.high, drawn.log) == (low, high, log)
    assert (isinstance(drawn, IntDistribution), axis.lines) == (whole, [f"a={end}" for end in ends])


@pytest.mark.parametrize("word", ["a=range(1,10,2)", "a=range(0,1,0.1)", "a=3,1,2", "a=choice(x,y)"])
def test_a_search_draws_the_same_values_as_a_sweep_tries(word: str) -> None:
    """The end of `range` is exclusive in both, and the values of a list stay as they were typed."""
    override = parse(word)
    swept = [str(value) for value in override.sweep_string_iterator()]
    [axis] = axes(word)
    assert axis.grid is not None
    searched = [axis.line(value).partition("=")[2] for value in axis.grid]
    if isinstance(axis.drawn_from, CategoricalDistribution):
        assert searched == swept
    else:
        assert [float(value) for value in searched] == pytest.approx([float(value) for value in swept])


@pytest.mark.parametrize(
    ("word", "ends"),
    [("train.batch_size=tag(log,interval(8,64))", ("8", "64")), ("+evaluate.batch_size=interval(1,5)", ("1", "5")),
     ("train.batch_size=interval(8.5,64)", ("9", "64")), ("optimizer.learning_rate=interval(1,2)", ("1.0", "2.0"))],
)  # fmt: skip
def test_an_interval_has_whole_numbers_if_the_setting_has(word: str, ends: tuple[str, ...]) -> None:
    """The schema of the setting decides, because Hydra makes both ends floats."""
    [axis] = axes(word)
    assert axis.lines == [f"{axis.key}={end}" for end in ends]


def test_a_setting_with_one_value_is_not_an_axis() -> None:
    assert axes("a=1", "b=[1,2]", "c=1,2") == [Axis("c", CategoricalDistribution(("1", "2")))]


@pytest.mark.parametrize(
    "word",
    ["a=interval(5,1)", "a=tag(log,interval(0,1))", "a=tag(log,range(1,10,2))",
     "a=tag(fast,interval(1,2))", "a=tag(log,choice(1,2))"],
)  # fmt: skip
def test_an_override_from_which_no_value_can_be_drawn_is_refused(word: str) -> None:
    with pytest.raises(UserError, match="Try: 'a=interval"):
        axes(word)


def test_probes_try_both_ends_of_every_axis() -> None:
    space = axes("a=x,y,z", "b=interval(0,1)")
    assert list(probes(space)) == [["a=x", "b=0.0"], ["a=y", "b=0.0"], ["a=z", "b=0.0"], ["a=x", "b=1.0"]]


def test_a_drawn_value_is_the_same_after_the_command_line() -> None:
    """It is equal to the bit."""
    [axis] = axes("a=tag(log,interval(1e-7,1))")
    for value in (1e-7, math.pi / 10, 1 / 3, 0.1 + 0.2):
        override = parse(axis.line(value))
        assert override.value() == value


def search(outputs: Path, *words: str, axis: str = "optimizer.epsilon=interval(1,2)") -> Search:
    composer = Composer(read_arguments([*words, axis, f"outputs={outputs}"]))
    assert isinstance(composer.sweep, SearchSettings)
    return Search(composer.sweep, read_axes(composer.of_jobs, composer.with_lines), composer.with_lines)


def test_a_search_is_refused_if_the_run_to_fork_or_to_compare_with_is_not_usable(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "a" / "earlier")
    OmegaConf.save(PLAIN.document, run / "config.yaml")
    with pytest.raises(UserError, match="has no checkpoint"):
        search(tmp_path, "sweep=tpe", f"fork={run}", "tracking=off").announce(Console(), is_new=True)
    with pytest.raises(UserError, match=r"evaluate\.against=nowhere"):
        search(tmp_path, "sweep=tpe", "evaluate.against=nowhere", "tracking=off")


def test_a_search_minimizes_the_error_that_training_monitors(tmp_path: Path) -> None:
    [goal] = search(tmp_path, "sweep=tpe", "train.monitor=val_rmse", "tracking=off").plan.goals
    assert (goal.metric, goal.direction) == ("val/best_rmse", "minimize")
    with pytest.raises(UserError, match=r"it is unknown whether higher is better.*sweep\.direction=maximize"):
        search(tmp_path, "sweep=tpe", "sweep.metric=val/best_brier_score", "tracking=off")


def test_a_grid_tries_all_points_unless_fewer_trials_are_requested(tmp_path: Path, capsys: Printed) -> None:
    for words, said in (((), "30 of 30 points, sampler grid"), (("sweep.trials=20",), "20 of 30 points")):
        search(tmp_path, "sweep=grid", "tracking=off", *words, axis="seed=range(0,30)").announce(Console(), True)
        assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("facts", "words", "said"),
    [(Facts(val_examples="other"), (), r"trial 2 has other validation examples .* python -m pipeline -m"),
     (Facts(task=TaskFacts(higher_is_better=[])), ("sweep.metric=val/best_accuracy",),
      r"its name suggests maximize, but the runs' task minimize.* Try: sweep\.direction=\[minimize\]")],
)  # fmt: skip
def test_a_trial_whose_results_cannot_be_compared_ends_the_search(
    facts: Facts, words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    """It has other validation examples than the first trial, or a task that wants the opposite of the goal."""
    trials = search(tmp_path, "sweep=tpe", "tracking=off", *words).begin(tmp_path, Console())
    metrics = {"val/best_accuracy": 0.5, "val/best_loss": 1.0}
    for own in (Facts(val_examples="a"), facts):
        job = trials.next()
        assert job is not None
        run = RunFolder(write_run(tmp_path / job.folder, metrics=metrics, facts=own)).read()
        if own is facts:
            with pytest.raises(UserError, match=said):
                trials.tell(job, run)
        else:
            trials.tell(job, run)
    assert [trial.state.name for trial in trials.study.trials()] == ["COMPLETE", "FAIL"]


def test_the_study_gets_the_result_of_a_trial_that_finished_before_the_search_was_killed(
    tmp_path: Path, capsys: Printed
) -> None:
    """The next command opens the study again, reads the result from the run, and does not train it again."""
    work = search(tmp_path, "sweep=tpe", "sweep.trials=1", "tracking=off", "sweep.finish=all")
    folder, console = tmp_path / "sweeps" / "s", Console()
    folder.mkdir(parents=True)
    killed = work.begin(folder, console).next()
    assert killed is not None
    write_run(folder / killed.folder, metrics={"val/best_loss": 0.25})
    trials = work.begin(folder, console)
    Sweep(work, trials, folder, Tracker(), Follower(), None, console).run(trials, [Slot()])
    [trial] = trials.study.trials()
    assert (trial.state.name, trial.values) == ("COMPLETE", [0.25])
    assert trials.has_succeeded
    assert "already finished, skipped" in capsys.readouterr().out
    [index] = read_index(folder).jobs
    assert index["exit_code"] == 0
