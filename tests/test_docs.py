"""The documents are correct: their code runs, their links and paths exist, and the module map is up to date."""

import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from pipeline.api import Run
from pipeline.command_line.arguments import read_arguments
from pipeline.command_line.compose import Composer
from pipeline.config.experiment import read
from pipeline.console import Console
from pipeline.decide.job import Job
from pipeline.launch.run import run_job
from pipeline.runs.summary import Summary
from tests import module_map
from tests.conftest import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a page."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("package", module_map.PAGES)
def test_the_module_map_is_up_to_date(package: str) -> None:
    assert module_map.PAGES[package].read_text() == module_map.updated(package), "Try: python -m tests.module_map"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_are_short_and_their_links_and_paths_exist(page: Path) -> None:
    """Pages of the site may only link to pages of the site. The map has a line for each module."""
    text, is_of_site = page.read_text(), page.is_relative_to(ROOT / "docs")
    longest = {"README.md": 120, "CHANGELOG.md": 10_000, "map-of-stages.md": 300}
    assert len(text.splitlines()) <= longest.get(page.name, 200)
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        place = (page.parent / link).resolve()
        assert "://" in link or place.exists(), link
        assert "://" in link or not is_of_site or place.is_relative_to(ROOT / "docs"), link
    for path in re.findall(r"`((?:pipeline|stages|tests|conf|benchmarks|docs)/[\w/.-]+)`", text):
        assert (ROOT / path).exists() or page.name == "CHANGELOG.md", path


def test_modules_of_commands_exist() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    named = set(re.findall(r"python -m ((?:pipeline|benchmarks|tests)[\w.]*)", text))
    assert {"pipeline", "benchmarks.strategies"} <= named
    for name in named:
        path = ROOT.joinpath(*name.rstrip(".").split("."))
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), name


def linked(page: Path) -> set[Path]:
    """Return the files that a page links to."""
    return {(page.parent / link).resolve() for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())}


def test_the_site_has_every_page_once() -> None:
    """The navigation has every page once, except those for contributors, which it reaches by links."""

    def pages(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        parts = entry.values() if isinstance(entry, dict) else entry
        return [page for part in parts for page in pages(part)]  # type: ignore[attr-defined]

    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert [next(iter(part)) for part in settings["nav"]][-2:] == ["Reference", "How it works"]
    navigation = pages(settings["nav"])
    left_out = {path for pattern in settings["not_in_nav"].split() for path in ROOT.glob(f"docs/{pattern}")}
    assert {ROOT / "docs/how-it-works/tried.md", ROOT / "docs/how-it-works/decisions/README.md"} <= left_out
    shown = {ROOT / "docs" / page for page in navigation}
    assert len(shown) == len(navigation)
    assert not shown & left_out
    assert shown | left_out == set(ROOT.glob("docs/**/*.md"))
    assert left_out - shown <= linked(ROOT / "docs/how-it-works/architecture.md").union(*map(linked, left_out))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as Markdown renderers derive them, and those that it sets itself."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    slugs = {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading.strip().lower())) for heading in headings}
    return slugs | set(re.findall(r'\bid="([^"]+)"', text)) | set(re.findall(r"^::: (\S+)", text, flags=re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_headings_that_exist(page: Path) -> None:
    for link, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        place = (page.parent / link).resolve() if link else page
        assert place.suffix != ".md" or anchor in anchors(place), f"{link}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_column_of_a_table_has_a_header(page: Path) -> None:
    lines = page.read_text().splitlines()
    for header, line in pairwise(lines):
        if re.fullmatch(r"\|(\s*:?-+:?\s*\|)+", line):
            assert all(cell.strip() for cell in header.strip().strip("|").split("|")), header
            assert header.count("|") == line.count("|"), header


@pytest.mark.slow
def test_blocks_of_the_page_on_notebooks_run(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The id of the run on the page is replaced by the id of the run that the first block makes."""
    monkeypatch.chdir(outputs.parent)
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
    experiment = read(composed.document, composed.choices, composed.config_dirs, composed.overrides)
    try:
        assert run_job(Job(experiment), Console()) == 0
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
            del sys.modules[name]
    [run] = (outputs / "runs" / "mine").iterdir()
    assert (run / "plots" / "hardest.png").is_file()
    assert {"train/weight_norm", "train/confidence", "val/least_probability"} <= set(Summary.read(run).metrics)
