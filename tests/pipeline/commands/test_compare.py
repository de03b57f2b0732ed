"""`python -m pipeline compare`: its arguments, its errors and its files."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.made_runs import MadeRun, make_run, make_sweep
from pipeline.commands.compare import main
from pipeline.runs.summary import Summary
from pipeline.sweep.select import compared
from tests.pipeline.experiments import Patch, Printed

RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of four jobs, a later one of two jobs, and three single runs."""
    place = tmp_path_factory.mktemp("outputs")
    runs = [
        MadeRun({"strategy": strategy, "seed": seed}, RANDOM.random(100) < 0.9, metrics={"my/score": 1.5})
        for strategy in ("one_device", "mirrored")
        for seed in ("1", "2")
    ]
    make_sweep(place / "sweeps" / "20260101-000000-aaaa", runs)
    make_sweep(place / "sweeps" / "20260102-000000-bbbb", runs[:1] + runs[2:3])
    for name, run in zip(("first", "second", "third"), (runs[0], runs[2], runs[3]), strict=True):
        make_run(place / "runs" / "made" / f"20260103-000000-{name}", run)
    return place


def ran(outputs: Path, *arguments: str) -> int:
    return main(["--outputs", str(outputs), *arguments])


def test_the_last_sweep_by_default(outputs: Path, capsys: Printed) -> None:
    assert ran(outputs) == 0
    printed = capsys.readouterr().out
    assert "sweep 20260102-000000-bbbb" in printed
    assert "Both combinations have the same validation loss, 0.500." in printed.replace("\n", " ")
    folder = outputs / "sweeps" / "20260102-000000-bbbb"
    assert {path.suffix for path in folder.glob("comparison.*")} == {".md", ".csv", ".html"}
    assert max(map(len, printed.splitlines()[:5])) <= 80


def test_a_comparison_with_another_baseline_does_not_replace_the_standard_files(outputs: Path, capsys: Printed) -> None:
    folder = outputs / "sweeps" / "20260101-000000-aaaa"
    for word in (folder.name, str(folder)):
        assert ran(outputs, word) == 0
        assert f"sweep {folder.name}" in capsys.readouterr().out
    before = {path: path.read_bytes() for path in folder.glob("comparison.*")}
    assert ran(outputs, folder.name, "--baseline", "strategy=mirrored", "--columns", "my/score") == 0
    assert {path: path.read_bytes() for path in folder.glob("comparison.*")} == before


def test_runs_by_name_and_by_filter(outputs: Path, tmp_path: Path, capsys: Printed, monkeypatch: Patch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ran(outputs, "20260103-000000-first", "20260103-000000-second") == 0
    assert capsys.readouterr().out.startswith("2 runs")
    assert ran(outputs, "kind=run", "strategy=mirrored", "test/accuracy>0.1", "--to", "~/there") == 0
    assert capsys.readouterr().out.startswith("2 runs")
    assert (tmp_path / "there" / "comparison.html").is_file()


def test_a_sweep_among_runs_stands_for_its_jobs_with_the_test_results_of_their_finishing_runs(tmp_path: Path) -> None:
    """This also holds for jobs found by filters. A finishing run counts separately only if the user names it."""
    folder = tmp_path / "sweeps" / "20260101-000000-aaaa"
    correct = RANDOM.random(100) < 0.9
    make_sweep(folder, [MadeRun({"seed": seed}, None) for seed in "12"])
    make_run(folder / "best_1", MadeRun({"seed": "1", "from": "evaluate", "run": "x"}, correct))
    for words in (["status=FINISHED"], [folder.name, folder.name], [folder.name, "data=digits"], []):
        [row] = compared(words, tmp_path)[1].rows
        assert [run.seed for run in row.runs] == ["1", "2"], words
        assert row.values("test/accuracy") == [correct.mean()]
        assert (values := row.runs[0].by_example()) is not None
        assert values.mean() == correct.mean()
    [row] = compared([str(folder / "best_1")], tmp_path)[1].rows
    assert row.runs[0].settings["from"] == "evaluate"


@pytest.mark.parametrize(
    ("name", "forms"),
    [("learning_rate", ("2e-3", "0.002")), ("nesterov", ("True", "true")), ("clipnorm", ("Null", "null")),
     ("exclude", ("[bias, 8]", "[bias,8.0]"))],
)  # fmt: skip
def test_typed_defaults_are_not_different_settings_and_no_run_counts_twice(
    name: str, forms: tuple[str, str], tmp_path: Path, capsys: Printed
) -> None:
    name = f"optimizer.{name}"
    typed: list[dict[str, str]] = [{}, {"seed": "42"}, {name: forms[0]}, {name: forms[1], "seed": "43"}]
    for number, settings in enumerate(typed):
        folder = tmp_path / "runs" / "made" / f"20260103-000000-{number}000"
        make_run(folder, MadeRun(settings, RANDOM.random(100) < 0.9))
        seed = settings.get("seed", "42")
        (folder / "config.yaml").write_text(
            f"seed: {seed}\noptimizer: {{learning_rate: 0.002, nesterov: true, clipnorm: null, exclude: [bias, 8]}}\n"
        )
    names = [f"20260103-000000-{number}000" for number in range(len(typed))]
    texts = []
    for words in ((names[0], names[1]), (names[0], names[2]), names[::3], (names[0], names[0])):
        assert ran(tmp_path, *words) == 0
        texts.append(" ".join(capsys.readouterr().out.split()))
    assert ["Over 2 runs:" in line or "Over 2 seeds:" in line for line in texts] == [True, True, True, False]
    assert ["Over 2 seeds:" in line for line in texts] == [False, False, True, False]
    assert ["Nothing to compare: all runs have the same settings." in line for line in texts] == [True] * 3 + [False]
    assert "Nothing to compare: this is one run, with validation loss 0.5, test accuracy" in texts[-1]
    run = Summary.read(folder)
    replace(run, overrides=[*run.overrides, "fork='04e12345'", "fork_weights=last"]).write(folder)
    assert ran(tmp_path, *names[::3]) == 0
    assert "seeds:" not in (printed := " ".join(capsys.readouterr().out.split()))
    assert "fork_weights=last" in printed
    assert ran(tmp_path, folder.name) == 0
    assert re.search(r"fork=\S*04e12345\S* fork_weights=last$", capsys.readouterr().out, re.M)


def test_own_columns_and_a_baseline(outputs: Path, capsys: Printed) -> None:
    columns = ("--columns", "my/score,val/accuracy,seconds")
    assert ran(outputs, *columns, "--baseline", "strategy=mirrored,data=digits") == 0
    printed = capsys.readouterr().out
    expected = ("my/score", "baseline: strategy=mirrored", "images/s")
    assert [text in printed for text in expected] == [True, True, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--baseline", "strategy=tpu"], "strategy=tpu: no combination has these settings. Expected one of: strategy"),
        (["--baseline", "mirrored"], "mirrored=: no combination has these settings"),
        (["--columns", "my/scare"], "no run has the metric my/scare"),
        (["nowhere"], "nowhere matches no run in"),
        (["status=FAILED"], "no run matches"),
        (["~a=b"], "no run has a setting or metric ~a"),
        (["test/accuracy>high"], "does not compare two numbers"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(
    arguments: list[str], message: str, outputs: Path, capsys: Printed
) -> None:
    assert ran(outputs, *arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert (printed.err.count("\n"), printed.out) == (1, "")


def test_without_a_sweep_there_is_nothing_to_compare(tmp_path: Path, capsys: Printed) -> None:
    assert ran(tmp_path) == 2
    assert "no sweep was found in" in capsys.readouterr().err
