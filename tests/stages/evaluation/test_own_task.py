"""A task of the user's alone: slices and importance follow from the sums of its metrics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from stages.evaluate import evaluate
from stages.evaluation import estimates
from stages.evaluation.scored import by_example, sums_of_each
from stages.export import export
from stages.normalize import normalize
from stages.results import Dataset, Trained
from stages.settings.data import NormalizeSettings
from stages.settings.model import MlpSettings
from stages.settings.results import EvaluateSettings, ExportSettings
from stages.settings.train import AutoTaskSettings, RegressionSettings
from stages.tasks.regression import Regression
from stages.tasks.task import Task
from stages.train import train
from tests.stages.experiments import adam, built_of, one_device, settings, table_of

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


def test_slices_and_importance_follow_from_the_protocol(data: Dataset, tmp_path: Path) -> None:
    task = AutoTaskSettings(_target_=f"{__name__}.Counts")
    where = one_device()
    built = built_of(MlpSettings(hidden=[16]), data, where, task=task)
    trained = train(built, data, where, settings(epochs=25, optimizer=adam(learning_rate=0.02)))
    found = evaluate(trained, data, where, EvaluateSettings(slices=["town"], importance=True), tmp_path)
    metrics = found.record.metrics
    assert metrics["test/deviance"] == pytest.approx(found.metrics["deviance"])
    assert not any(name.startswith("baseline/") for name in metrics)
    importance = pd.read_csv(tmp_path / "test_importance.csv")
    assert importance.column[0] == "speed"
    assert importance.low[0] > 0
    slices = pd.read_csv(tmp_path / "test_slices.csv").set_index("slice")
    assert (slices.index[0], slices.loc["town: wild", "than the rest"]) == ("town: wild", "worse")
    whole = np.average(slices.deviance, weights=slices.examples)
    assert whole == pytest.approx(found.metrics["deviance"], rel=1e-5)


def test_a_task_with_another_answer_than_the_one_that_it_extends_measures_itself(data: Dataset, tmp_path: Path) -> None:
    task = AutoTaskSettings(_target_=f"{__name__}.Rates")
    where = one_device()
    trained = Trained(built_of(MlpSettings(hidden=[4]), data, where, task=task), (), 1, 0)
    found = evaluate(trained, data, where, EvaluateSettings(baseline=False), tmp_path)
    assert found.record.metrics.keys() >= {"test/deviance"}
    assert "test/rmse" not in found.record.metrics
    formats = {"saved_model": {"_target_": "stages.exporters.saved_model.SavedModel"}}
    exported = export(trained, data, ExportSettings(formats=formats, reload="here"), tmp_path)
    assert [*exported.answers] == ["rate"]
    assert exported.max_abs_diff < 1e-5


@pytest.mark.parametrize("weighted", [False, True])
def test_values_by_sums_are_those_by_columns(data: Dataset, weighted: bool) -> None:
    """The jackknife leaves examples out, estimates differentiate: they differ by the order of 1/n."""
    test, task = data.test, data.task
    assert isinstance(task, Regression)
    random = np.random.default_rng(3)
    weights = random.uniform(0.5, 2, len(test)) if weighted else None
    split = type(test)(test.features, test.targets, weights=weights)
    answers = (test.targets + random.normal(size=test.targets.shape)).astype(np.float32)
    outputs = task.standardized(tf.constant(answers), tf.float32).numpy()
    sums = sums_of_each(task, split, outputs)
    columns = {"target": test.targets, "prediction": answers} | ({} if weights is None else {"weight": weights})
    expected = estimates.by_example("rmse", columns)
    values = by_example(task, sums)
    summed = {name: part.sum(axis=0) for name, part in sums.items()}
    assert task.all_scores(summed)["rmse"] == pytest.approx(expected.mean(), rel=1e-4)
    np.testing.assert_allclose(values, expected, atol=0.02 * np.ptp(expected))
