"""`evaluate.against`: the comparison is recorded, and one that is not possible is refused before any work."""

from pathlib import Path

import pytest

from pipeline.console import Console
from pipeline.decide.job import Job
from pipeline.exit_codes import FAILED
from pipeline.launch.run import run_job
from stages.errors import UserError
from tests.pipeline.experiments import BARE, SMALL, experiment, last, ran

pytestmark = pytest.mark.slow

WORDS = (*SMALL, *BARE, "evaluate.mistakes=0", "train.epochs=1", "tracking=off")


def test_a_run_is_compared_with_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The other run is named by its folder or its name; a run on other examples fails before training."""
    first = ran(tmp_path, *WORDS, "name=first")
    name = first.folder.name
    second = ran(tmp_path, *WORDS, "name=second", "seed=2", f"evaluate.against={name}")
    assert f"the run {name}: accuracy" in " ".join(capsys.readouterr().out.split())
    compared = second.facts.others["against"]
    accuracies = [run.metrics["test/accuracy"] for run in (first, second)]
    assert compared["accuracy"]["difference"] == pytest.approx(accuracies[1] - accuracies[0])
    assert second.metrics["against/agreement"] == compared["agreement"]
    assert f"the run {name}" in (second.folder / "test_metrics.md").read_text()
    other = experiment(*WORDS, "name=third", "data.split_seed=3", f"evaluate.against={first.folder}", outputs=tmp_path)
    assert run_job(Job(other), Console()) == FAILED
    assert "was tested on other examples" in capsys.readouterr().out
    stages = {name: stage.status for name, stage in last(tmp_path).stages.items()}
    assert (stages["model"], stages["train"]) == ("failed", "skipped")


@pytest.mark.smoke
@pytest.mark.parametrize("text", ["nope", "no/such/folder"])
def test_a_run_that_does_not_exist_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"evaluate.against=.* matches no run in"):
        ran(tmp_path, *WORDS, f"evaluate.against={text}")
    assert not list(tmp_path.glob("runs/*"))
