"""Importance of columns: what a network uses is told by how much worse it answers without it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest

from stages.evaluate import evaluate
from stages.evaluation.by_column import importance_of, is_quick
from stages.features.texts import TextFeature
from stages.normalize import normalize
from stages.results import Dataset, Model, Trained
from stages.settings.data import NormalizeSettings
from stages.settings.results import EvaluateSettings
from tests.stages.experiments import one_device, real_digits, table_of
from tests.stages.images import Telling

ROWS = 600
NOISE = 0.5


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """The target is twice one number and a step of a category, with noise; two columns say nothing of it."""
    random = np.random.default_rng(1)
    frame = pd.DataFrame({"a b": random.normal(size=ROWS), "idle": random.normal(size=ROWS)})
    frame["color"] = random.choice(["red", "blue"], ROWS)
    frame["shape"] = random.choice(["round", "square"], ROWS)
    frame["target"] = 2 * frame["a b"] + 1.0 * (frame.color == "red") + NOISE * random.normal(size=ROWS)
    return normalize(table_of(tmp_path_factory.mktemp("table"), frame, target="target"), NormalizeSettings())


def fitted(data: Dataset) -> Trained:
    """Return the linear network that fits the training split best, of the columns that the target depends on."""
    columns = np.asarray(data.train.inputs["numbers"])
    used = columns.copy()
    names = [name for name, feature in data.features.items() for _ in getattr(feature, "values", [0])]
    used[:, [name in ("idle", "shape") for name in names]] = 0
    known: Any = data.task.targets
    wanted = (np.asarray(data.train.targets) - known.mean) / known.std
    weights = np.linalg.lstsq(np.column_stack([used, np.ones(len(used))]), wanted, rcond=None)[0]
    dense = keras.layers.Dense(1)
    network = keras.Sequential([keras.Input((columns.shape[1],), name="numbers"), dense])
    dense.set_weights([weights[:-1].astype(np.float32), weights[-1].astype(np.float32)])
    return Trained(Model(network, data.task, "float32"), (), 1, 0)


def test_what_is_not_used_is_worth_nothing_and_what_is_used_what_it_explains(data: Dataset, tmp_path: Path) -> None:
    reporter = Telling()
    result = evaluate(fitted(data), data, one_device(), EvaluateSettings(baseline=False), tmp_path, reporter)
    found = pd.read_csv(tmp_path / "test_importance.csv").set_index("column")
    assert found.columns.tolist() == ["rmse increase", "low", "high"]
    assert found.index.tolist()[:2] == ["a b", "color"]
    assert (found.loc[["idle", "shape"]].abs() < 1e-12).all(axis=None)
    rmse = result.record.metrics["test/rmse"]
    # A permuted column is independent of the target: its part of the variance is lost, and as much is added.
    used = {"a b": 2 * data.test.features["a_b"][:], "color": data.test.features["color"][:] == "red"}
    for name, part in used.items():
        row = found.loc[name]
        assert row["rmse increase"] == pytest.approx(np.sqrt(rmse**2 + 2 * np.var(part)) - rmse, rel=0.15)
        assert 0 < row.low < row["rmse increase"] < row.high
    assert any("a b" in line for line in reporter.lines)
    assert "## column importance: increase of rmse" in (tmp_path / "test_metrics.md").read_text()
    assert importance_of(fitted(data).model, data, 0.95).rows == importance_of(fitted(data).model, data, 0.95).rows


def test_it_is_told_unasked_where_it_takes_seconds(data: Dataset, tmp_path: Path) -> None:
    assert is_quick(data)
    text = TextFeature()
    assert not is_quick(replace(data, features={**data.features, "color": text}))
    given = EvaluateSettings(baseline=False, importance=False)
    evaluate(fitted(data), data, one_device(), given, tmp_path)
    assert not (tmp_path / "test_importance.csv").exists()
    assert not is_quick(real_digits())
