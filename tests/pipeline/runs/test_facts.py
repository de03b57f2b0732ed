"""Facts of a run are typed, complete in their file, and kept even if their names are unknown."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.records import known_types
from pipeline.runs.facts import DataFacts, Facts, TaskFacts
from pipeline.runs.summary import Summary
from stages.errors import UserError
from stages.evaluation.test_set import EXAMPLES, PIXELS
from stages.features.schema import KINDS
from stages.reuse import KNOWN_IMAGES, VALIDATED, VALIDATED_LOSS, VALIDATED_PIXELS

REPORTED: dict[str, Any] = {
    "replicas": 2, "devices": ["/cpu:0"], "unit": "rows", "verdicts": ["better"], "confidence": 0.9, EXAMPLES: "a",
    "task": {"name": "Mine", "primary": "mae", "metrics": ["mae"], "higher_is_better": []},
    "data": {"train_examples": 3, "targets": 1, "number_features": 2, "mine": 5}, KNOWN_IMAGES: 7,
    "intervals": {"test/mae": (np.float64(0.5), math.nan)},
}  # fmt: skip


def summary() -> Summary:
    made = Summary(None, "RUNNING", "x", Path("x"), {})
    made.add_facts(REPORTED)
    return made


def test_reported_facts_are_read_back_with_their_types(tmp_path: Path) -> None:
    made = summary()
    assert (made.replicas, made.facts.others) == (2, {"devices": ["/cpu:0"]})
    assert made.facts.task == TaskFacts(primary="mae", metrics=["mae"], higher_is_better=[], others={"name": "Mine"})
    assert made.facts.data == DataFacts(train_examples=3, targets=1, number_features=2, others={"mine": 5})
    assert made.facts.intervals == {"test/mae": [0.5, None]}
    made.write(tmp_path)
    assert Summary.read(tmp_path) == made
    written = json.loads((tmp_path / "summary.json").read_text())["facts"]
    sizes = {"val_examples": 0, "test_examples": 0}
    expected = {name: value for name, value in REPORTED.items() if name != "replicas"}
    expected |= {"data": REPORTED["data"] | sizes, "intervals": {"test/mae": [0.5, None]}}
    assert written == expected


def test_a_fact_of_a_wrong_type_is_an_error_of_the_stage() -> None:
    with pytest.raises(UserError, match=r"Record\.summary\['unit'\] has the wrong type: 5"):
        Summary(None, "RUNNING", "x", Path("x"), {}).add_facts({"unit": 5})


def test_names_of_reported_facts_are_declared() -> None:
    assert known_types(Facts).keys() >= {EXAMPLES, PIXELS, KNOWN_IMAGES, VALIDATED, VALIDATED_LOSS, VALIDATED_PIXELS}


def test_every_kind_of_feature_is_counted() -> None:
    names: dict[str, Any] = {f"{kind}_features": 2 for kind in KINDS}
    assert DataFacts(**names).columns == dict.fromkeys(KINDS, 2)


def test_facts_are_completed_by_those_of_the_run_that_tested_the_job() -> None:
    trained = Facts(seed=1, val_examples="v", others={"a": 1})
    tested = Facts(seed=2, test_examples="t", verdicts=["better"], others={"a": 2, "b": 3})
    expected = Facts(seed=1, val_examples="v", test_examples="t", verdicts=["better"], others={"a": 1, "b": 3})
    assert trained.completed(tested) == expected
