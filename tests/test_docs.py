"""The documents are true: their code runs, their links and paths exist, their map is that of the code."""

import re
import sys
from pathlib import Path

import pytest

from pipeline.api import Run
from pipeline.command_line.arguments import read_arguments
from pipeline.command_line.compose import Composer
from pipeline.config.experiment import read
from pipeline.console import Console
from pipeline.planning.job import Job
from pipeline.run.launch import run_job
from pipeline.run_folder.summary import Summary
from tests import module_map
from tests.conftest import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def blocks(page: str, language: str) -> list[str]:
    """Returns the code blocks of a page."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), flags=re.DOTALL)


def test_module_map_is_that_of_the_code() -> None:
    page = module_map.PAGE.read_text()
    assert page == module_map.updated(page), "Try: python -m tests.module_map"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_exist(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert "://" in link or (page.parent / link).exists(), link
    for path in re.findall(r"`((?:pipeline|stages|tests|conf|benchmarks|docs)/[\w/.-]+)`", text):
        assert (ROOT / path).exists() or page.name == "CHANGELOG.md", path


@pytest.mark.slow
def test_blocks_of_the_page_on_notebooks_run(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the id of the run that its first block makes in the place of the one that the page shows."""
    monkeypatch.chdir(outputs.parent)
    monkeypatch.setattr("pipeline.paths.CHECKOUT", None)  # so `outputs` is in the working directory
    namespace: dict[str, object] = {}
    for block in blocks("how-to/notebooks.md", "python"):
        made = namespace.get("run")
        exec(block.replace("4d9eb298", str(made.summary.run_id)[:8] if isinstance(made, Run) else ""), namespace)
    run = namespace["run"]
    assert isinstance(run, Run)
    assert (run.status, run.folder.parent.parent) == ("FINISHED", outputs / "runs")
    assert namespace["exported"] is not None


@pytest.mark.slow
def test_extensions_of_the_page_on_callbacks_run(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = outputs.parent
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    for block in blocks("how-to/callbacks.md", "(?:python|yaml)"):
        path = folder / block.partition("\n")[0].removeprefix("# ")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.partition("\n")[2])
    page = (ROOT / "docs" / "how-to" / "callbacks.md").read_text()
    command = re.search(r"python -m pipeline (.*)", page)
    assert command is not None
    composed = Composer(read_arguments(command[1].split())).one()
    experiment = read(composed.document, composed.choices, composed.config_dirs)
    try:
        assert run_job(Job(experiment, composed.overrides), Console()) == 0
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
            del sys.modules[name]
    [run] = (outputs / "runs" / "mine").iterdir()
    assert (run / "plots" / "hardest.png").is_file()
    assert {"train/weight_norm", "train/confidence", "val/least_probability"} <= set(Summary.read(run).metrics)
