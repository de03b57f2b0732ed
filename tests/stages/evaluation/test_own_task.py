"""A task of the user's: by its own metrics, and beside them by those of the project's task that it extends."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from stages.errors import UserError
from stages.evaluate import evaluate
from stages.evaluation.predictions import compare_predictions, write_predictions
from stages.export import export
from stages.metrics.keras_metric import KerasMetric
from stages.metrics.metric import Fraction, NonNegativeMean
from stages.normalize import normalize
from stages.results import Dataset, Trained
from stages.settings.data import NormalizeSettings
from stages.settings.model import MlpSettings
from stages.settings.results import EvaluateSettings, ExportSettings
from stages.settings.train import AutoTaskSettings, RegressionSettings
from stages.tasks.parts import Head, Loss, View
from stages.tasks.task import Task
from tests.stages.experiments import built_of, one_device, table_of

ROWS = 900


class Deviance(NonNegativeMean):
    """The deviance of Poisson: how far the likelihood is from that of a perfect model."""

    name = "deviance"

    def values(self, columns: Mapping[str, Any], xp: Any) -> Any:
        wanted, rate = (xp.asarray(columns[name], xp.float64) for name in ("target", "rate"))
        logarithm = xp.log(xp.where(wanted > 0, wanted, rate) / rate)
        return 2 * xp.mean(rate - wanted + wanted * logarithm, axis=-1)


class Poisson(Loss):
    """The likelihood of Poisson; the network returns the logarithm of the rate."""

    def of_each(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.exp(outputs) - tf.cast(targets, outputs.dtype) * outputs, axis=-1)


class Rates(Head):
    """Rates of which the network returns the logarithm, in a column of another name than that of the project."""

    answer: ClassVar[str] = "rate"

    def predictions(self, outputs: tf.Tensor) -> tf.Tensor:
        return tf.exp(tf.cast(outputs, tf.float32))

    def known(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"target": tf.cast(targets, tf.float32), "rate": self.predictions(outputs)}


def counts(task: Task) -> Task:
    """Return a task with a loss, a metric, and predictions of its own."""
    head = Rates(task.targets)
    return replace(task, loss=Poisson(head), metrics=(Deviance(),), head=head, view=View())


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


class IsNear(Fraction):
    """The fraction of the examples whose prediction is near the target."""

    name = "near"

    def values(self, columns: Mapping[str, Any], xp: Any) -> Any:
        return xp.abs(columns["prediction"] - columns["target"])[:, 0] < 1


def near(task: Task) -> Task:
    """Return the task with models compared by how many predictions are near the target."""
    return replace(task, metrics=(IsNear(),))


class Bias(NonNegativeMean):
    """The mean distance of a prediction from the target."""

    name = "distance"

    def values(self, columns: Mapping[str, Any], xp: Any) -> Any:
        return xp.abs(columns["prediction"] - columns["target"])[:, 0]


def biased(task: Task) -> Task:
    """Return the task with models compared by a metric that is better if it is lower."""
    return replace(task, metrics=(Bias(),))


def of_keras(task: Task) -> Task:
    """Return the task with a metric of Keras only."""
    return replace(task, metrics=(KerasMetric(keras.metrics.MeanAbsoluteError()),))


def trained_of(name: str, data: Dataset) -> Trained:
    task = AutoTaskSettings(_target_=f"{__name__}.{name}")
    return Trained(built_of(MlpSettings(hidden=[4]), data, one_device(), task=task), (), 1, 0)


def test_a_task_with_predictions_of_its_own_is_measured_and_cut_by_its_own_metric(
    data: Dataset, tmp_path: Path
) -> None:
    trained = trained_of("counts", data)
    found = evaluate(trained, data, one_device(), EvaluateSettings(slices=["town"]), tmp_path)
    metrics = {name for name in found.record.metrics if not name.startswith("baseline")}
    assert metrics == {"test/loss", "test/deviance"}  # errors of so few examples have no interval
    assert pd.read_csv(tmp_path / "test_slices.csv").columns[2] == "deviance"
    formats = {"saved_model": {"_target_": "stages.exporters.saved_model.SavedModel"}}
    exported = export(trained, data, ExportSettings(formats=formats, reload="here"), tmp_path)
    assert [*exported.answers] == ["rate"]
    assert exported.max_abs_diff < 1e-5


def test_a_task_whose_metrics_have_no_influences_is_measured_by_them_alone(data: Dataset, tmp_path: Path) -> None:
    trained, where = trained_of("of_keras", data), one_device()
    found = evaluate(trained, data, where, EvaluateSettings(), tmp_path)
    assert found.record.metrics.keys() == {"test/loss", "test/mean_absolute_error"}
    assert not (tmp_path / "test_importance.csv").exists()
    for settings in (EvaluateSettings(slices=["town"]), EvaluateSettings(importance=True)):
        with pytest.raises(UserError, match=r"do not support the metrics of of_keras.*evaluate\.slices=\[\]"):
            evaluate(trained, data, where, settings, tmp_path)


def test_one_definition_of_a_metric_is_used_in_tests_intervals_baselines_slices_and_importance(
    data: Dataset, tmp_path: Path
) -> None:
    found = evaluate(trained_of("near", data), data, one_device(), EvaluateSettings(slices=["town"]), tmp_path)
    metrics = found.record.metrics
    assert metrics["test/near"] == pytest.approx(found.metrics["near"])
    assert metrics["test/near_low"] < metrics["test/near"] < metrics["test/near_high"]
    assert metrics["baseline/near"] + metrics["baseline/near_difference"] == pytest.approx(metrics["test/near"])
    slices = pd.read_csv(tmp_path / "test_slices.csv").set_index("slice")
    assert np.average(slices.near, weights=slices.examples) == pytest.approx(metrics["test/near"])
    assert pd.read_csv(tmp_path / "test_importance.csv").columns[1] == "near decrease"


@pytest.mark.parametrize("name", ["near", "biased"])
def test_runs_are_compared_by_a_metric_of_the_users_without_its_code(name: str, data: Dataset, tmp_path: Path) -> None:
    """The file has the influences, so a comparison of runs imports nothing of the user's."""
    task = {"near": near, "biased": biased}[name](data.task)
    targets, random = data.test.target_values, np.random.default_rng(0)
    found = []
    for place, scale in enumerate((1.0, 3.0)):
        rows = (targets + scale * random.normal(size=targets.shape)).astype(np.float32)
        write_predictions(tmp_path / f"{place}.parquet", data.test, task, rows)
        found.append(task.metrics[0].estimate({"target": targets, "prediction": rows}, np.ones(len(rows)))[0])
    difference = compare_predictions(tmp_path / "1.parquet", tmp_path / "0.parquet", 0.95)
    assert difference.difference == pytest.approx(found[1] - found[0])
    assert difference.low < difference.difference < difference.high
    assert (difference.metric, difference.is_better) == (task.primary, False)
    assert "influence" in pq.read_schema(tmp_path / "0.parquet").names
    write_predictions(tmp_path / "2.parquet", data.test, data.task, rows)
    assert "influence" not in pq.read_schema(tmp_path / "2.parquet").names
