"""The front door is true: its commands compose, its options exist, its links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest

from pipeline.paths import CONF
from pipeline.planning.earlier import prepare
from tests import tables
from tests.conftest import ROOT
from tests.pipeline.experiments import experiment

README = (ROOT / "README.md").read_text()
COMMANDS = sorted(set(re.findall(r"python -m pipeline ((?!trian|from=)(?:[a-z_.]+=\S+ ?)+)", README)))
"""Without those that need a run: tests/pipeline/planning/test_reuse.py has them."""


@pytest.mark.parametrize("given", COMMANDS)
def test_its_commands_compose(given: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With folders where the page says that the user has one; sets of TFDS are not looked for."""
    monkeypatch.setattr("stages.settings.data.TfdsSettings.check", lambda self, path: None)
    monkeypatch.chdir(tmp_path)
    for folder in re.findall(r"data.dir=<([a-z-]+)>", given):
        for name in ("one", "two"):
            (tmp_path / folder / name).mkdir(parents=True)
            for number in range(20):
                (tmp_path / folder / name / f"{number}{'.txt' if 'text' in given else '.png'}").touch()
    (tmp_path / "houses.csv").write_text("sqft,price\n1340,313000\n")
    words = [word.rstrip("`") for word in shlex.split(given.replace("<", "").replace(">", "").replace("`", ""))]
    prepare(experiment(*words, "dry_run=true"))


def test_its_table_has_every_option_of_every_group() -> None:
    for path in CONF.glob("*/*.yaml"):
        if path.parent.name != "pipeline":
            rows = [line for line in README.splitlines() if line.startswith("|") and f"`{path.parent.name}`" in line]
            assert rows, path.parent.name
            assert f"`{path.stem}`" in rows[0]


@pytest.mark.parametrize("page", [ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")], ids=lambda page: page.name)
def test_generated_tables_are_up_to_date(page: Path) -> None:
    """Else: python -m tests.tables."""
    text = page.read_text()
    assert tables.updated(text) == text


def test_its_commands_of_make_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make ([a-z]+)\b", README):
        if target not in ("has", "on"):
            assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_its_links_lead_somewhere_and_it_is_short() -> None:
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / link.partition("#")[0]).is_file()
    assert len(README.splitlines()) < 200
