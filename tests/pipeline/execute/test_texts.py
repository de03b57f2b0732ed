"""The commands of the page on texts. A run that is killed and resumed has the weights of an uninterrupted one."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from pipeline.command_line.arguments import verb_of
from tests import commands
from tests.conftest import ROOT
from tests.pipeline.experiments import TRAINED, killed_and_resumed, only_folder

pytestmark = pytest.mark.slow

SMALL = ("tracking=off", "train.epochs=6", "optimizer.learning_rate=0.01", "normalize.max_tokens=200")
ROWS = 240


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files of the page, `reviews/` and `reviews.csv`."""
    folder = tmp_path_factory.mktemp("texts")
    random = np.random.default_rng(7)
    stars = random.integers(1, 4, ROWS)
    words = random.choice([f"word{number}" for number in range(60)], (ROWS, 9))
    opinions = np.array(["awful!", "so-so", "Great."])[stars - 1]
    texts = [" ".join([*row[: random.integers(0, 9)], opinion]) for row, opinion in zip(words, opinions, strict=True)]
    frame = pd.DataFrame({"review": texts, "text": texts, "price": random.normal(size=ROWS).round(3), "stars": stars})
    frame.to_csv(folder / "reviews.csv", index=False)
    for row, (text, star) in enumerate(zip(texts, stars, strict=True)):
        path = folder / "reviews" / f"{star} stars" / f"{row}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def typed(verb: str) -> list[list[str]]:
    """Return the words of the page's commands that have a verb, except for the one that needs the extra `hub`."""
    page = (ROOT / "docs" / "how-to" / "texts.md").read_text()
    found = re.findall(r"^python -m pipeline (.*[^\\\n])$", page, re.MULTILINE)
    return [words for words in map(shlex.split, found) if verb_of(words)[0] == verb]


@pytest.mark.parametrize("number", [0, 1])
def test_commands_of_the_page(folder: Path, tmp_path: Path, number: int) -> None:
    """One is a whole run. The other one has two replicas."""
    given = typed("run")[number]
    words = ("pipeline.inspect=null", "evaluate.baseline=false", "strategy=mirrored") if number == 0 else ()
    commands.succeed(*given, *SMALL, *words, f"outputs={tmp_path}", cwd=folder)
    run = only_folder(tmp_path)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["facts"]["data"]["text_features"] == 1
    assert summary["metrics"]["test/accuracy"] > 0.9
    assert summary["metrics"]["export/max_abs_diff"] <= 1e-6
    if number:
        return
    [asked] = typed("predict")
    answered = [str(run) if word == "RUN" else word for word in asked]
    commands.succeed(*answered, cwd=folder)
    predicted = pq.read_table(folder / "predicted.parquet")["class_name"].to_pylist()
    stars = pd.read_csv(folder / "reviews.csv").stars
    assert np.mean([name == f"{star} stars" for name, star in zip(predicted, stars, strict=True)]) > 0.9


def test_killed_and_resumed_equals_uninterrupted(folder: Path, tmp_path: Path) -> None:
    model = ("model=text_cnn", "model.network.filters=8")
    given = (*typed("run")[0], *SMALL, *TRAINED, "train.epochs=2", "train.batch_size=64", *model)
    killed_and_resumed(given, tmp_path, cwd=folder)
