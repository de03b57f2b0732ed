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
from stages.metrics.metric import Fraction, MeanMetric, Metric
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


class Deviance(MeanMetric):
    """The deviance of Poisson: how far the likelihood is from that of a perfect model."""

    name = "deviance"
    higher_is_better = False

    def values(self, columns: Mapping[str, Any], xp: Any) -> Any:
        wanted, rate = (xp.asarray(columns[name], xp.float64) for name in ("target", "prediction"))
        logarithm = xp.log(xp.where(wanted > 0, wanted, rate) / rate)
        return 2 * xp.mean(rate - wanted + wanted * logarithm, axis=-1)


class Counts(Task):
    """Counts, learnt by the likelihood of Poisson, of which the network returns the logarithm of the rate."""

    primary: ClassVar[str] = "deviance"
    answer: ClassVar[str] = "prediction"

    def check(self, where: str, targets: np.ndarray) -> None:
        assert (targets >= 0).all()

    def losses(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        wanted = tf.cast(targets, outputs.dtype)
        return tf.reduce_mean(tf.exp(outputs) - wanted * outputs, axis=-1)

    @property
    def standard_metrics(self) -> tuple[Metric, ...]:
        return (Deviance(),)

    def known(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"target": self.soften(targets), "prediction": self.answers(outputs)}

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


class IsNear(Fraction):
    """The fraction of the examples whose prediction is near the target."""

    name = "near"

    def values(self, columns: Mapping[str, Any], xp: Any) -> Any:
        return xp.abs(columns["prediction"] - columns["target"])[:, 0] < 1


class Near(Regression):
    """Numbers, compared by how many are near the target."""

    primary: ClassVar[str] = "near"

    @property
    def standard_metrics(self) -> tuple[Metric, ...]:
        return (IsNear(),)


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


def test_one_definition_of_a_metric_is_used_in_tests_intervals_baselines_slices_and_importance(
    data: Dataset, tmp_path: Path
) -> None:
    found = evaluate(trained_of("Near", data), data, one_device(), EvaluateSettings(slices=["town"]), tmp_path)
    metrics = found.record.metrics
    assert metrics["test/near"] == pytest.approx(found.metrics["near"])
    assert metrics["test/near_low"] < metrics["test/near"] < metrics["test/near_high"]
    assert metrics["baseline/near"] + metrics["baseline/near_difference"] == pytest.approx(metrics["test/near"])
    slices = pd.read_csv(tmp_path / "test_slices.csv").set_index("slice")
    assert np.average(slices.near, weights=slices.examples) == pytest.approx(metrics["test/near"])
    assert pd.read_csv(tmp_path / "test_importance.csv").columns[1] == "near decrease"


def test_a_task_with_another_answer_than_the_one_that_it_extends_measures_itself(data: Dataset, tmp_path: Path) -> None:
    trained = trained_of("Rates", data)
    found = evaluate(trained, data, one_device(), EvaluateSettings(baseline=False), tmp_path)
    assert found.record.metrics.keys() >= {"test/deviance"}
    assert "test/rmse" not in found.record.metrics
    formats = {"saved_model": {"_target_": "stages.exporters.saved_model.SavedModel"}}
    exported = export(trained, data, ExportSettings(formats=formats, reload="here"), tmp_path)
    assert [*exported.answers] == ["rate"]
    assert exported.max_abs_diff < 1e-5
