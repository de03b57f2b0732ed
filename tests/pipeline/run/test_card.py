"""The card of an exported model: what the Hub reads of it, and that it names what is known and nothing else."""

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.run import card
from pipeline.run_folder.summary import Summary
from stages.results import Exported
from stages.reuse import KNOWN_IMAGES

IMAGES = {"classes": 2, "height": 8, "width": 8, "channels": 1}
SIZES = {f"{split}_examples": 10 for split in ("train", "val", "test")}


def summary(data: dict[str, Any], **metrics: float) -> Summary:
    return Summary(
        run_id="4d9eb298",
        status="FINISHED",
        name="mine_cnn",
        folder="/runs/mine",
        choices={},
        metrics={name.replace("__", "/"): value for name, value in metrics.items()},
        exported={"saved_model": "/runs/mine/export/saved_model"},
        facts={"data": data | SIZES, "confidence": 0.9, "intervals": {"test/accuracy": (0.8, 0.95)}},
    )


CLASSES = summary(IMAGES, test__accuracy=0.9, test__macro_f1=0.85, test__accuracy_low=0.8)
IMAGE_MODEL = Exported(Path("saved_model"), (8, 8, 1), ("cat", "dog"), 0.0, license="mit")
NUMBERS = summary({"targets": 1, "number_features": 2}, test__rmse=12345.678, test__r2=0.5)
TABLE_MODEL = Exported(Path("saved_model"), (), ("price",), 0.0, columns={"sqft": "float64", "rooms": "float64"})


def front(text: str) -> dict[str, Any]:
    return yaml.safe_load(text.split("---\n")[1])


def test_the_hub_reads_task_licence_and_metrics() -> None:
    read = front(card.model_card(CLASSES, IMAGE_MODEL))
    assert (read["library_name"], read["pipeline_tag"], read["license"]) == ("keras", "image-classification", "mit")
    [result] = read["model-index"][0]["results"]
    assert {metric["type"]: metric["value"] for metric in result["metrics"]} == {"accuracy": 0.9, "f1": 0.85}
    assert read["metrics"] == ["accuracy", "f1"]


def test_numbers_are_predicted_in_their_units_and_measured_by_rmse() -> None:
    text = card.model_card(NUMBERS, TABLE_MODEL)
    assert front(text)["pipeline_tag"] == "tabular-regression"
    assert front(text)["license"] == "unknown"
    assert "a number in the units of its data: price" in text
    assert "| test/rmse | 12,345.68 |" in text
    assert "accuracy" not in text


def test_intervals_stand_beside_their_metrics_and_sizes_where_they_were_measured() -> None:
    text = card.model_card(CLASSES, IMAGE_MODEL)
    assert "| metric | value | 90 % interval |" in text
    assert "| test/accuracy | 0.9000 | 0.8000 to 0.9500 |" in text
    assert "accuracy_low" not in text
    assert "## Files" not in text
    figures = {"size_mib": 1.5, "milliseconds": 2.25, "max_abs_diff": 0.0}
    measured = CLASSES.metrics | {f"export/saved_model/{name}": value for name, value in figures.items()}
    assert "| saved_model | 1.50 | 2.25 | 0.0e+00 |" in card.model_card(
        dataclasses.replace(CLASSES, metrics=measured), IMAGE_MODEL
    )


def test_the_author_is_the_one_of_git_and_is_never_guessed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(card, "CHECKOUT", tmp_path)
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, "/dev/null")
    assert "- author" not in card.model_card(CLASSES, IMAGE_MODEL)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    subprocess.run(["git", "-C", tmp_path, "config", "user.name", "Ada_L"], check=True)
    assert "- author: Ada\\_L\n" in card.model_card(CLASSES, IMAGE_MODEL)
    subprocess.run(["git", "-C", tmp_path, "-c", "user.email=a@b", "commit", "-qm", "x", "--allow-empty"], check=True)
    assert ", with changes" not in card.model_card(CLASSES, IMAGE_MODEL)
    (tmp_path / "new.py").touch()
    assert "`, with changes\n" in card.model_card(CLASSES, IMAGE_MODEL)


def test_a_model_that_saw_its_test_images_says_so() -> None:
    seen = dataclasses.replace(CLASSES, facts=CLASSES.facts | {KNOWN_IMAGES: 1200})
    assert "Too good: the model was trained on 1,200 of these test images." in card.model_card(seen, IMAGE_MODEL)


def test_slices_stand_there_where_they_were_measured(tmp_path: Path) -> None:
    assert "## Slices" not in card.model_card(CLASSES, IMAGE_MODEL)
    (tmp_path / "test_slices.csv").write_text("slice,examples,accuracy,low\nshop: a|b,40,0.81234,0.5\n")
    text = card.model_card(dataclasses.replace(CLASSES, folder=str(tmp_path)), IMAGE_MODEL)
    assert "| slice | examples | accuracy | low |\n| --- | --- | --- | --- |\n" in text
    assert "| shop: a\\|b | 40 | 0.8123 | 0.5000 |\n" in text
