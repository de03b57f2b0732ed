"""Searches as commands: their trials, their results, interruptions, and refusals before anything starts."""

import functools
import json
import re
import shlex
import signal
from pathlib import Path

import keras
import numpy as np
import optuna
import pytest
from mlflow import MlflowClient

from benchmarks.made_runs import MadeRun, make_sweep
from pipeline.commands import runs
from pipeline.comparison.report import notes
from pipeline.comparison.words import value_text
from pipeline.runs.lock import is_locked
from pipeline.search.study import STUDY, open_storage
from pipeline.sweep.index import compare, latest, read_index, write_index
from pipeline.system.signals import until
from tests import commands
from tests.pipeline.experiments import SMALL, TRAINED, Printed, sweep_runs, write_files

pytestmark = pytest.mark.slow

SPACE = ("optimizer.learning_rate=tag(log,interval(1e-4,1))", "train.batch_size=64,96")
FIXED = (
    "sweep=tpe", "sweep.trials=4", "sweep.startup_trials=2", "sweep.seed=1", "data=synthetic", "data.height=8",
    "data.width=8", "model=mlp", "train.epochs=3", "deterministic=true", "pipeline.export=null",
    "pipeline.inspect=null", "tracking.system_metrics=false",
)  # fmt: skip

SHORT = (*SMALL, *TRAINED, "tracking=off")
"""Settings of trials that take a moment."""


@functools.cache
def study(folder: Path) -> optuna.Study:
    return optuna.load_study(study_name="search", storage=open_storage(folder / STUDY))


@pytest.fixture(scope="module")
def searched(module_outputs: Path) -> tuple[Path, str]:
    """Return the folder and the output of a search that was not interrupted."""
    done = commands.succeed(*FIXED, *SPACE, f"outputs={module_outputs}")
    return latest(module_outputs), done.stdout


def test_trials_are_child_runs_of_the_search(searched: tuple[Path, str]) -> None:
    folder, printed = searched
    trials = study(folder).trials
    status, jobs, _ = read_index(folder)
    assert status == "FINISHED"
    assert len(jobs) == len(trials) == 4
    assert printed.count("trial ") >= 4
    for trial, job in zip(trials, jobs, strict=True):
        summary = json.loads((folder / job["folder"] / "summary.json").read_text())
        assert f"optimizer.learning_rate={trial.params['optimizer.learning_rate']!r}" in summary["overrides"]
        if trial.state.name == "COMPLETE":
            assert trial.value == summary["metrics"]["val/best_loss"]
            assert list(trial.intermediate_values) == [1, 2, 3]
        else:
            assert trial.state.name == "PRUNED"
            assert summary["facts"]["pruned_after_epoch"] == trial.last_step < 3
        assert summary["stages"]["evaluate"]["status"] == "skipped"
        assert not [name for name in summary["metrics"] if name.startswith("test/")]
    client = MlflowClient(f"sqlite:///{folder.parents[1] / 'mlflow.db'}")
    parent, children = sweep_runs(folder.parents[1])
    tracked = [parent, *children]
    assert {run.info.status for run in tracked} == {"FINISHED"}
    [tested] = [run for run in children if "test/accuracy" in run.data.metrics]  # the test split is touched once
    assert parent.data.metrics["test/accuracy"] == tested.data.metrics["test/accuracy"]
    best = study(folder).best_trial
    assert tested.info.run_name.startswith("best: ")
    assert [path.name for path in folder.glob("best_*")] == [f"best_{best.number + 1}"]
    trained = json.loads((folder / jobs[best.number]["folder"] / "summary.json").read_text())
    assert tested.data.tags["reused_run"] == trained["run_id"]
    assert f"{100 * tested.data.metrics['test/accuracy']:.2f}" in (folder / "comparison.md").read_text()
    assert "compared with the baseline" not in printed
    files = {entry.path for entry in client.list_artifacts(parent.info.run_id)}
    assert {"history.png", "comparison.html"} <= files
    metrics = {name for run in tracked for name in run.data.metrics}
    assert "val/best_loss" in metrics
    assert not {name for name in metrics if name.startswith("system/")}  # they are switched off


def test_the_table_of_runs_has_the_search_and_its_trials(searched: tuple[Path, str], capsys: Printed) -> None:
    folder, _ = searched
    assert runs.main([f"--outputs={folder.parents[1]}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    [row] = [line for line in lines if "sweep of " in line]
    assert re.search(r"FINISHED +sweep of synthetic_mlp +20", row), row
    assert sum("└" in line for line in lines) >= 4
    assert runs.main(["kind=sweep", "--json", f"outputs={folder.parents[1]}"]) == 0
    [entry] = json.loads(capsys.readouterr().out)
    assert (entry["kind"], entry["folder"]) == ("sweep", str(folder))


def test_all_reports_name_the_best_of_the_complete_trials(searched: tuple[Path, str]) -> None:
    """On the console, in Markdown, on the page and in MLflow, by the goal of the search; pruned trials are listed."""
    folder, printed = searched
    best = study(folder).best_trial
    assert [trial for trial in study(folder).trials if trial.state.name == "PRUNED"]
    parent, _ = sweep_runs(folder.parents[1])
    markdown = (folder / "comparison.md").read_text()
    note, page = parent.data.tags["mlflow.note.content"], (folder / "comparison.html").read_text()
    for text in (" ".join(printed.split()), markdown, page, note):
        assert f"Trial {best.number + 1} has the lowest validation loss of " in text
        assert f"{value_text('val/best_loss', best.value)}: optimizer.learning_rate=" in re.sub("<[^>]*>", "", text)
        assert re.search(r"pruned: trials? \d+ \(epoch \d+\)", text)
        assert f"optimizer.learning_rate={best.params['optimizer.learning_rate']!r}" in text
        for wrong in ("No winner", "×", "vs baseline", "FINISHED:"):
            assert wrong not in text, text
    said = [line for line in markdown.splitlines() if not line.startswith("    python -m pipeline")]
    assert not re.search(r"\d\.\d{8}", "\n".join(said))  # numbers are short, but for those of the command
    assert f"{best.params['optimizer.learning_rate']:.12g}" in (folder / "comparison.csv").read_text()


@pytest.mark.smoke
def test_the_best_trial_is_chosen_by_the_goal_of_the_search(tmp_path: Path) -> None:
    """The comparison of a sweep would choose by a different metric or direction, or among pruned trials."""
    rates = ("0.0012345678901234", "0.0012345999999999", "0.5")
    losses = (0.3, 0.2, 0.1)
    trials = [MadeRun({"optimizer.learning_rate": rate}, np.ones(9, bool), val_loss=loss)
              for rate, loss in zip(rates, losses, strict=True)]  # fmt: skip
    folder = make_sweep(tmp_path / "s", trials)
    status, jobs, _ = read_index(folder)
    pruned = folder / jobs[2]["folder"] / "summary.json"
    pruned.write_text(json.dumps(json.loads(pruned.read_text()) | {"facts": {"pruned_after_epoch": 1}}))
    for best, metrics in (([0], ["train/loss"]), ([0, 1], ["train/loss", "val/loss"]), ([], ["train/loss"])):
        found = {"answer": "the answer", "metrics": metrics, "best": [jobs[number]["folder"] for number in best]}
        write_index(jobs, folder, status, {"search": found})
        comparison = compare(folder)
        assert [row.settings["optimizer.learning_rate"] for row in comparison.rows] == ["0.00123457", "0.0012346"]
        assert comparison.best is (comparison.rows[0] if len(best) == 1 else None)
        lines = notes(comparison)
        assert "the answer" in lines
        commands = [f"python -m pipeline optimizer.learning_rate={rates[number]}" for number in best]
        assert [line[12:] for line in lines if line.startswith("run it")] == commands
        assert "pruned: trial 3 (epoch 1)" in lines
        assert not [line for line in lines if "baseline" in line or "speed" in line]
    folder = make_sweep(tmp_path / "t", [MadeRun({"fork": "a", "seed": seed}, None) for seed in "12"])
    status, jobs, _ = read_index(folder)
    found = {"answer": "", "metrics": ["train/loss"], "best": [jobs[1]["folder"]]}
    write_index(jobs, folder, status, {"search": found})
    assert "run it      python -m pipeline fork=a seed=2" in notes(compare(folder)), "the seed of the best is its own"


def test_a_killed_search_ends_as_an_uninterrupted_one(searched: tuple[Path, str], outputs: Path) -> None:
    """It tries the same points with the same results to the bit. The interrupted trial is resumed in its folder."""
    command = commands.start(*FIXED, *SPACE, f"outputs={outputs}")
    assert until(lambda: [*outputs.glob("sweeps/*/3_*/summary.json")], 300)
    command.kill()
    assert command.wait(120) == -signal.SIGKILL
    assert until(lambda: not any(is_locked(path.parent) for path in outputs.glob("sweeps/*/*/summary.json")), 300)
    again = commands.succeed(*FIXED, *SPACE, f"outputs={outputs}")
    assert "resuming search" in again.stdout
    [folder] = outputs.glob("sweeps/*")
    mine, whole = (
        [(trial.params, trial.state, trial.values, trial.intermediate_values) for trial in study(place).trials]
        for place in (folder, searched[0])
    )
    assert mine == whole


def test_a_search_for_two_goals_continues_after_failures_and_reports_the_pareto_front(outputs: Path) -> None:
    """The command that it prints trains a single run."""
    varied = ("strategy.device=/gpu:7,/cpu:0", "optimizer.learning_rate=0.1,0.01")
    goals = "sweep.metric=[val/best_accuracy,train/images_per_second]"
    done = commands.succeed("-m", "sweep=grid", *SHORT, *varied, goals, f"outputs={outputs}")
    trials, best = study(latest(outputs)).trials, study(latest(outputs)).best_trials
    assert sorted(trial.state.name for trial in trials) == ["COMPLETE", "COMPLETE", "FAIL", "FAIL"]
    [reason, _] = [trial.user_attrs["reason"] for trial in trials if trial.state.name == "FAIL"]
    assert "/gpu:7 does not exist" in reason
    said = " ".join(done.stdout.split())
    assert "Pareto-optimal for validation accuracy and training images per second: trial" in said
    numbers = re.findall(r"trial (\d+) \(validation accuracy \S+, training images per second", said)
    assert numbers == [str(trial.number + 1) for trial in best]
    assert (latest(outputs) / "history.png").is_file()
    printed = re.findall(r"^run it(.*)", done.stdout, re.MULTILINE)
    assert len(printed) == len(best)
    commands.succeed(*shlex.split(printed[0])[3:])
    assert (len([*outputs.glob("runs/*/*")]), len([*outputs.glob("sweeps/*")])) == (1, 1)


def penalized(input_shape: tuple[int, int, int], num_classes: int, l2: float) -> keras.Model:
    dense = keras.layers.Dense(num_classes, kernel_regularizer=keras.regularizers.L2(l2))
    return keras.Sequential([keras.Input(input_shape), keras.layers.Flatten(), dense])


def test_the_strength_of_a_penalty_is_not_searched_by_a_loss_that_includes_the_penalty(outputs: Path) -> None:
    network = f"network: {{_target_: {__name__}.penalized, l2: 0.1}}"
    option = f"defaults: [/schema/model@_here_: model, _self_]\n{network}\n"
    write_files(outputs.parent / "conf", {"model/penalized.yaml": option})
    space = ("model=penalized", "model.network.l2=interval(0.01,1)", "sweep=random", "sweep.trials=2")
    words = (f"--config-dir={outputs.parent}/conf", *SHORT, *space, f"outputs={outputs}")
    done = commands.run(*words)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "Try: sweep.metric=val/best_accuracy" in done.stdout
    assert "\nresume  " in done.stdout
    commands.succeed(*words, "sweep.metric=val/best_accuracy")
    done = commands.run(*words, "sweep.metric=val/best_accuracy", "model.network.l2=interval(-2,-1)")  # Keras has none
    assert (done.returncode, "\nresume  " in done.stdout) == (3, False), "all trials have failed: none is left"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["sweep=tpe"], "no setting has several values", marks=pytest.mark.smoke),
        (["sweep=tpe", "seed=1,2", "sweep.metric=baseline/accuracy_difference"], "would choose on the test split"),
        (
            ["sweep=tpe", "task.loss._target_=keras.losses.Huber,keras.losses.MeanAbsoluteError"],
            "different losses have different scales",
        ),
        (["sweep=tpe", "sweep.sampler=grid", "optimizer.learning_rate=interval(1e-4,1)"], "is an interval"),
        (["sweep=tpe", "optimizer.learning_rat=interval(0.1,1)"], "optimizer.learning_rate"),
        (["sweep=tpe", "seed=1,2", "sweep.zip=[seed,data.split_seed]", "data.split_seed=1,2"], "draws each setting"),
        (["-m", "optimizer.learning_rate=interval(0.1,1)"], "sweep=tpe"),
        (["sweep=tpe", "seed=1,2", "resume=none-such"], "is not a search with these trials"),
    ],
)
def test_wrong_searches_are_refused_before_anything_starts(words: list[str], said: str, tmp_path: Path) -> None:
    done = commands.run(*words, f"outputs={tmp_path / 'outputs'}", trains=False)
    assert said in done.stderr
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stdout + done.stderr
    assert not [*tmp_path.rglob("sweeps/*"), *tmp_path.rglob("mlflow.db")]
