"""A task of the user's: by its own metrics, and beside them by those of the project's task that it extends."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from stages.errors import UserError
from stages.evaluate import evaluate
from stages.export import export
from stages.normalize import normalize
from stages.results import Dataset, Trained
from stages.settings.data import NormalizeSettings
from stages.settings.model import MlpSettings
from stages.settings.results import EvaluateSettings, ExportSettings
from stages.settings.train import AutoTaskSettings, RegressionSettings
from stages.tasks.regression import Regression
from stages.tasks.task import Task
from tests.stages.experiments import built_of, one_device, table_of

ROWS = 900


class Counts(Task):
    """Counts, learnt by the likelihood of Poisson, of which the network returns the logarithm of the rate."""

    primary: ClassVar[str] = "deviance"
    metrics: ClassVar[tuple[str, ...]] = ("deviance",)
    answer: ClassVar[str] = "prediction"

    def check(self, where: str, targets: np.ndarray) -> None:
        assert (targets >= 0).all()

    def losses(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        wanted = tf.cast(targets, outputs.dtype)
        return tf.reduce_mean(tf.exp(outputs) - wanted * outputs, axis=-1)

    @property
    def sums(self) -> Mapping[str, tuple[int, ...]]:
        return {"deviance": ()}

    def add(self, targets: tf.Tensor, outputs: tf.Tensor, weights: tf.Tensor) -> dict[str, tf.Tensor]:
        wanted, outputs = (tf.cast(part, weights.dtype) for part in (targets, outputs))
        values = tf.exp(outputs) - wanted + tf.math.xlogy(wanted, wanted) - wanted * outputs
        return {"deviance": 2 * tf.reduce_sum(weights * tf.reduce_mean(values, axis=-1))}

    def scores(self, sums: Mapping[str, Any]) -> dict[str, float]:
        return {"deviance": float(sums["deviance"] / sums["examples"])}

    def answers(self, outputs: tf.Tensor) -> tf.Tensor:
        return tf.exp(tf.cast(outputs, tf.float32))


class Rates(Counts, Regression):
    """The same as an heir of the project's task, with an answer of another name."""

    answer: ClassVar[str] = "rate"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    random = np.random.default_rng(2)
    frame = pd.DataFrame({"speed": random.normal(size=ROWS), "noise": random.normal(size=ROWS)})
    frame["town"] = random.choice(["calm", "wild"], ROWS)
    spread = np.where(frame.town == "wild", random.gamma(0.3, 1 / 0.3, ROWS), 1.0)
    frame["count"] = random.poisson(np.exp(1 + frame.speed**2 / 2) * spread) + 0.0
    folder = tmp_path_factory.mktemp("counts")
    data = table_of(folder, frame, target="count", test_fraction=0.4, task=RegressionSettings())
    return normalize(data, NormalizeSettings())


class Near(Regression):
    """Numbers, compared by how many are near the target."""

    primary: ClassVar[str] = "near"
    metrics: ClassVar[tuple[str, ...]] = ("near",)
    higher: ClassVar[tuple[str, ...]] = metrics

    @property
    def sums(self) -> Mapping[str, tuple[int, ...]]:
        return {"near": ()}

    def add(self, targets: tf.Tensor, outputs: tf.Tensor, weights: tf.Tensor) -> dict[str, tf.Tensor]:
        error = tf.abs(outputs - self.standardized(targets, outputs.dtype))[:, 0]
        return {"near": tf.reduce_sum(tf.cast(error < 0.5, weights.dtype) * weights)}

    def scores(self, sums: Mapping[str, Any]) -> dict[str, float]:
        return {"near": float(sums["near"] / sums["examples"])}


def trained_of(name: str, data: Dataset) -> Trained:
    task = AutoTaskSettings(_target_=f"{__name__}.{name}")
    return Trained(built_of(MlpSettings(hidden=[4]), data, one_device(), task=task), (), 1, 0)


def test_a_task_of_answers_of_its_own_is_measured_by_its_metrics_alone(data: Dataset, tmp_path: Path) -> None:
    trained, where = trained_of("Counts", data), one_device()
    found = evaluate(trained, data, where, EvaluateSettings(), tmp_path)
    assert found.record.metrics.keys() == {"test/loss", "test/deviance"}
    assert not (tmp_path / "test_importance.csv").exists()
    for settings in (EvaluateSettings(slices=["town"]), EvaluateSettings(importance=True)):
        with pytest.raises(UserError, match=r"do not support the outputs of Counts.*evaluate\.slices=\[\]"):
            evaluate(trained, data, where, settings, tmp_path)


def test_a_task_with_a_metric_of_its_own_is_compared_by_that_of_its_kind(data: Dataset, tmp_path: Path) -> None:
    found = evaluate(trained_of("Near", data), data, one_device(), EvaluateSettings(slices=["town"]), tmp_path)
    metrics = found.record.metrics
    assert metrics["test/near"] == found.metrics["near"]
    assert metrics["baseline/rmse"] + metrics["baseline/rmse_difference"] == pytest.approx(metrics["test/rmse"])
    slices = pd.read_csv(tmp_path / "test_slices.csv").set_index("slice")
    assert (slices.index[0], slices.loc["town: wild", "vs the rest"]) == ("town: wild", "worse")
    assert np.average(slices.rmse**2, weights=slices.examples) == pytest.approx(metrics["test/rmse"] ** 2)
    assert pd.read_csv(tmp_path / "test_importance.csv").columns[1] == "rmse increase"


def test_a_task_with_another_answer_than_the_one_that_it_extends_measures_itself(data: Dataset, tmp_path: Path) -> None:
    trained = trained_of("Rates", data)
    found = evaluate(trained, data, one_device(), EvaluateSettings(baseline=False), tmp_path)
    assert found.record.metrics.keys() >= {"test/deviance"}
    assert "test/rmse" not in found.record.metrics
    formats = {"saved_model": {"_target_": "stages.exporters.saved_model.SavedModel"}}
    exported = export(trained, data, ExportSettings(formats=formats, reload="here"), tmp_path)
    assert [*exported.answers] == ["rate"]
    assert exported.max_abs_diff < 1e-5
