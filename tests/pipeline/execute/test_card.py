"""The card of an exported model: the Hub can read it, and it contains only known facts."""

import dataclasses
from pathlib import Path
from typing import Any

import yaml

from pipeline.execute import facts
from pipeline.runs.facts import DataFacts, Facts
from pipeline.runs.summary import Summary
from stages.results import Exported

IMAGES = DataFacts(train_examples=10, val_examples=10, test_examples=10, classes=2, height=8, width=8, channels=1)
TABLE = DataFacts(train_examples=10, val_examples=10, test_examples=10, targets=1, number_features=2)


def summary(data: DataFacts, **metrics: float) -> Summary:
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    facts = Facts(data=data, confidence=0.9, intervals={"test/accuracy": [0.8, 0.95]})
    exported = {"saved_model": "/runs/mine/export/saved_model"}
    own: dict[str, Any] = {"metrics": named, "exported": exported, "facts": facts}
    return Summary("4d9eb298", "FINISHED", "mine_cnn", Path("/runs/mine"), {}, **own)


ENDS = {"": 0.1, "_low": 0.05, "_high": 0.2}
DIFFERENCE = {f"baseline/accuracy_difference{end}": value for end, value in ENDS.items()}
CLASSES = summary(IMAGES, test__accuracy=0.9, test__macro_f1=0.85, test__accuracy_low=0.8, **DIFFERENCE)
IMAGE_MODEL = Exported(Path("saved_model"), (8, 8, 1), ("cat", "dog"), 0.0, license="mit")
NUMBERS = summary(TABLE, test__rmse=12345.678, test__r2=0.5)
TABLE_MODEL = Exported(Path("saved_model"), (), ("price",), 0.0, columns={"sqft": "float64", "rooms": "float64"})


def front(text: str) -> dict[str, Any]:
    return yaml.safe_load(text.split("---\n")[1])


def test_the_hub_reads_task_and_licence_and_metrics_have_their_intervals() -> None:
    read = front(text := facts.model_card(CLASSES, IMAGE_MODEL))
    assert (read["library_name"], read["license"]) == ("keras", "mit")
    assert read["tags"] == ["keras", "tensorflow", "image-classification"]
    assert "| metric | value | 90% CI |" in text
    assert "| test/accuracy | 0.9000 | 0.8000 to 0.9500 |" in text
    assert "| baseline/accuracy\\_difference | 0.1000 | 0.0500 to 0.2000 |" in text
    assert "accuracy_low" not in text


def test_numbers_are_predicted_in_their_units_and_measured_by_rmse() -> None:
    text = facts.model_card(NUMBERS, TABLE_MODEL)
    assert "tabular-regression" in front(text)["tags"]
    assert front(text)["license"] == "unknown"
    assert "a number in the units of the training data: price" in text
    assert "| test/rmse | 12,346 |" in text
    assert "accuracy" not in text


def test_the_card_reports_test_images_that_the_model_was_trained_on() -> None:
    seen = dataclasses.replace(CLASSES, facts=dataclasses.replace(CLASSES.facts, known_test_images=1200))
    assert "too high: the model was trained on 1,200 of the test examples." in facts.model_card(seen, IMAGE_MODEL)
