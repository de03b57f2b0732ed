"""The commands and the tables in all documents are up to date with the code."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipeline.command_line.arguments import VERBS, read_arguments, verb_of
from pipeline.command_line.compose import Composer
from pipeline.config.experiment import read
from pipeline.decide.decision import check
from tests import tables
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
LEFT_OUT = re.compile(r"\b(run|resume|fork|uri|against|cluster|_target_)=|--|trian|name=mine|[…|]|\\$")
"""Commands with runs, stores, hosts or code that a test does not have, and commands that continue on the next line."""


def commands() -> list[str]:
    """Return the commands that train, as they are typed after `python -m pipeline`."""
    return [command for command in typed() if not LEFT_OUT.search(command) and verb_of(command.split())[0] == "run"]


def typed() -> list[str]:
    """Return what is typed after `python -m pipeline`."""
    text = "\n".join(page.read_text() for page in PAGES)
    found = re.findall(r"(?:^ *|`)python -m pipeline ([^`#\n]+)", text, flags=re.MULTILINE)
    return sorted({command.strip() for command in found})


@pytest.mark.parametrize("given", commands())
def test_commands_compose(given: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The test creates the data that a page expects from the user. Data sets of TFDS need not exist."""
    monkeypatch.setattr("stages.settings.data.TfdsSettings.check", lambda self, path: None)
    monkeypatch.chdir(tmp_path)
    for folder in re.findall(r"data.dir=<?([\w-]+)", given):
        for name in ("one", "two"):
            (tmp_path / folder / name).mkdir(parents=True)
            for number in range(20):
                (tmp_path / folder / name / f"{number}{'.txt' if 'text' in given else '.png'}").touch()
    for file in re.findall(r"data.files=<?([\w.]+)", given):
        if file.endswith(".npz"):
            series = {"sales": np.arange(2700.0).reshape(3, 900)}
            recordings = {"x": np.zeros((40, 24, 2)), "y": np.arange(40) % 2}
            np.savez(tmp_path / file, **(series if "data=series" in given else recordings))
            continue
        rows = (f"{1340 + row},good,{row % 5},{313000 + row},{row}\n" for row in range(20))
        (tmp_path / file).write_text("".join(["sqft,review,stars,price,target\n", *rows]))
        if "data=series" in given:
            days = pd.date_range("2024-01-01", periods=900).astype(str)
            columns = {"target": range(900), "time": days}
            names = dict(re.findall(r"data\.(target|time)=(\w+)", given))
            pd.DataFrame({names[key]: columns[key] for key in names}).to_csv(tmp_path / file, index=False)
    composer = Composer(read_arguments([*verb_of(shlex.split(re.sub("[<>]", "", given)))[1], "dry_run=true"]))
    if composer.searches:  # its axes have no first value
        assert composer.sweep is not None
        return
    composed = next(composer.jobs()) if composer.is_sweep else composer.one()
    check(read(composed.document, composed.choices))


def test_words_after_other_verbs_are_accepted() -> None:
    whole = [command for command in typed() if not command.endswith("\\")]
    verbs = [(command, *verb_of(shlex.split(re.sub("[<>…]", "", command)))) for command in whole]
    assert {verb for _, verb, _ in verbs} == {*VERBS}
    for command, verb, words in verbs:
        if verb != "run" and words:  # text that only names a verb
            assert import_module(f"pipeline.commands.{verb}").main.parse_args(words), command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_generated_tables_are_up_to_date(page: Path) -> None:
    """If this fails, run `python -m tests.tables`."""
    text = page.read_text()
    assert tables.updated(text) == text


def test_make_has_the_targets_in_the_documents() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make ([a-z-]+)\b", README):
        if target not in ("has", "on"):
            assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
