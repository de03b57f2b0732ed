"""Names of runs, and their descriptions in Markdown."""

import re
import time
from pathlib import Path

import pytest

from pipeline.paths import new_folder_name
from pipeline.run.facts import LONGEST, code, escaped, label, run_description, run_name, sweep_description, sweep_name
from pipeline.run_folder.summary import StageOutcome, Summary

GROUPS = {"strategy": "mirrored", "precision": "float32", "model": "mlp"}
COLUMN = 17
"""Characters of a name that the runs table of MLflow 3.17 shows at its default width."""


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["strategy=mirrored", "precision=mixed_bfloat16"], "mirrored mixed_bfloat16"),
        (["optimizer.learning_rate=0.01", "train.batch_size=64"], "lr=0.01 batch=64"),
        (["+model.network.mine=[1,2]", "seed=2"], "mine=[1,2] seed=2"),
        (["the only job"], "the only job"),
        ([], ""),
    ],
)
def test_a_label_is_the_options_and_the_last_part_of_a_setting(overrides: list[str], name: str) -> None:
    assert label(overrides, GROUPS) == name


def test_a_run_is_named_by_its_settings_first_and_its_folder_last() -> None:
    folder = Path("outputs/runs/digits_mlp/20261122-062003-398877be")
    given = ["model=mlp", "outputs=/elsewhere", "tracking.note=a try", "resume=never", "seed=3"]
    assert run_name(given, GROUPS, folder) == "mlp seed=3 398877be"
    assert run_name(["tracking=off"], GROUPS, folder) == "defaults 398877be"
    assert len("defaults 398877be") <= COLUMN


def test_jobs_that_differ_in_usual_settings_differ_before_a_table_cuts() -> None:
    pairs = [
        ("optimizer.learning_rate=0.001", "optimizer.learning_rate=0.01"),
        ("train.batch_size=128", "train.batch_size=256"),
        ("strategy=mirrored precision=float32", "strategy=mirrored precision=mixed"),
    ]
    for pair in pairs:
        first, second = (label(one.split(), GROUPS)[:COLUMN] for one in pair)
        assert first != second


def test_a_sweep_is_named_by_the_settings_in_which_its_jobs_differ() -> None:
    labels = [f"strategy={strategy} train.batch_size={size}" for strategy in "ab" for size in (1, 2)]
    assert sweep_name(labels) == "strategy × batch, 4 jobs"
    assert sweep_name(["the only job"]) == "sweep, 1 job"


def test_what_went_wrong_is_said_first_and_shown_as_it_is() -> None:
    failed = Summary("4d9eb298", "FAILED", "digits_cnn", "outputs/runs/a", {})
    failed.stages = {"train": StageOutcome("failed", 1.0)}
    failed.error = "no <b>device</b> */gpu:7*\n`x`"
    first, *_ = run_description(failed, "python -m pipeline", None, "made").split("\n\n")
    assert first == r"**FAILED in train**: no \<b\>device\</b\> \*/gpu:7\* \`x\`"
    assert escaped("a_b|c") == r"a\_b\|c"


@pytest.mark.parametrize("text", ["plain", "with `one`", "``two", "`"])
def test_code_ends_where_it_ends(text: str) -> None:
    shown = code(text)
    fence = shown[: len(shown) - len(shown.lstrip("`"))]
    assert fence not in text
    assert shown.removeprefix(fence).removesuffix(fence).strip() == text.strip()


def test_a_sweep_of_many_jobs_is_cut_at_a_line() -> None:
    rows = [f"| {number} | mirrored | 0.98 |" for number in range(500)]
    text = sweep_description("\n".join(["# Sweep", "", *rows]), "python -m pipeline -m seed=1,2", "**mine**")
    assert len(text) < LONGEST + 50
    assert text.startswith("**mine**\n\n| 0 | mirrored | 0.98 |\n| 1 |")
    cut = "| mirrored | 0.98 |\n\n… the whole is comparison.md\n\nCommand: `python -m pipeline -m seed=1,2`"
    assert text.endswith(cut)


def test_folders_sort_by_their_beginning_whatever_the_local_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Local time goes back when summer ends, and differs between machines."""
    names = []
    for zone in ("EAST-9", "WEST+9"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        names.append(new_folder_name(tmp_path))
    monkeypatch.undo()
    time.tzset()
    assert names[0][:15] <= names[1][:15]
    assert all(re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{8}", name) for name in names)
