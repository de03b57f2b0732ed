"""`evaluate.against`: refused before work where it cannot be, compared and recorded where it can."""

import json
from pathlib import Path

import pytest

from pipeline.console import Console
from pipeline.exit_codes import DONE, FAILED
from pipeline.planning.job import Job
from pipeline.run.launch import run_job
from stages.errors import UserError
from tests.pipeline.experiments import experiment

pytestmark = pytest.mark.slow

SMALL = ("data=synthetic", "data.examples=200", "model=mlp", "train.epochs=1", "tracking=off", "pipeline.export=null")
CHEAP = ("pipeline.inspect=null", "evaluate.mistakes=0")


def run(outputs: Path, *overrides: str) -> int:
    return run_job(Job(experiment(*SMALL, *CHEAP, *overrides, outputs=outputs)), Console())


def test_a_run_is_compared_with_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its folder or its name; a run on other examples ends before it is trained."""
    assert run(tmp_path, "name=first") == DONE
    [first] = tmp_path.glob("runs/first/*")
    assert run(tmp_path, "name=second", "seed=2", f"evaluate.against={first.name}") == DONE
    assert f"against {first.name}: accuracy" in capsys.readouterr().out
    [second] = tmp_path.glob("runs/second/*/summary.json")
    summary = json.loads(second.read_text())
    compared = summary["facts"]["against"]
    accuracies = [json.loads((first / "summary.json").read_text())["metrics"], summary["metrics"]]
    before, after = (metrics["test/accuracy"] for metrics in accuracies)
    assert compared["accuracy"]["difference"] == pytest.approx(after - before)
    assert summary["metrics"]["against/agreement"] == compared["agreement"]
    assert f"against {first.name}" in (second.parent / "test_metrics.md").read_text()
    assert run(tmp_path, "name=third", "data.split_seed=3", f"evaluate.against={first}") == FAILED
    assert "was tested on other examples" in capsys.readouterr().out
    [third] = tmp_path.glob("runs/third/*/summary.json")
    stages = {name: stage["status"] for name, stage in json.loads(third.read_text())["stages"].items()}
    assert (stages["model"], stages["train"]) == ("failed", "skipped")


@pytest.mark.smoke
@pytest.mark.parametrize("text", ["nope", "x" * 5000, "no/such/folder"])
def test_a_run_that_is_not_there_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"evaluate.against=.* is no run under"):
        run(tmp_path, f"evaluate.against={text}")
    assert not list(tmp_path.glob("runs/*"))
