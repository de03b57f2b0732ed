"""Optimizers, scores, export and strategies."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from stages.data.split import Split
from stages.errors import UserError
from stages.evaluate import evaluate
from stages.export import export
from stages.optimization.optimizers import learning_rate
from stages.results import Trained
from stages.seeds import derive
from stages.settings.results import EvaluateSettings, ExportSettings
from stages.settings.strategy import MirroredSettings, OneDeviceSettings
from stages.settings.train import CosineSettings, ScheduleSettings, StepSettings
from stages.strategy import strategy
from stages.tasks.classification import classification
from tests.stages.experiments import one_device, real_digits, small_cnn
from tests.stages.images import Telling

pytestmark = pytest.mark.slow


def rate_at(step: int, given: ScheduleSettings) -> float:
    rate = learning_rate(0.1, given, steps_per_epoch=10, epochs=10)
    return float(rate(step)) if callable(rate) else rate


@pytest.mark.smoke
def test_schedules_count_in_epochs() -> None:
    assert rate_at(55, ScheduleSettings()) == 0.1
    cosine = CosineSettings(final_share=0.1)
    assert rate_at(0, cosine) == pytest.approx(0.1)
    assert rate_at(50, cosine) == pytest.approx(0.1 * (0.9 * 0.5 + 0.1))
    assert rate_at(100, cosine) == pytest.approx(0.01)
    step = StepSettings(decay_epochs=[2, 5], decay_factor=0.5)
    assert [rate_at(at, step) for at in (0, 19, 20, 49, 50)] == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025])
    warm = replace(cosine, warmup_epochs=2)
    assert [rate_at(at, warm) for at in (0, 9, 19)] == pytest.approx([0.005, 0.05, 0.1])
    assert rate_at(60, warm) == pytest.approx(0.1 * (0.9 * 0.5 * (1 + math.cos(math.pi * 0.5)) + 0.1))


def test_strategies_are_what_they_say() -> None:
    two = strategy(MirroredSettings(deterministic=False, cpu_replicas=2))
    assert two.replicas == two.distribution.num_replicas_in_sync == 2
    assert len(set(two.devices)) == 2
    with two.distribution.scope():
        variable = tf.Variable(1.0)
    places = [copy.device for copy in two.distribution.experimental_local_results(variable)]
    assert [place[-1] for place in places] == [device[-1] for device in two.devices]
    named = strategy(MirroredSettings(deterministic=False, devices=["/cpu:1", "cpu:3"]))
    assert [name[-1] for name in named.devices] == ["1", "3"]
    assert strategy(OneDeviceSettings(deterministic=False, device="/cpu:2")).devices[0].endswith("CPU:2")


@pytest.mark.smoke
def test_a_device_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UserError, match=r"/gpu:3 does not exist\. Expected .*cpu:0"):
        strategy(OneDeviceSettings(deterministic=False, device="/gpu:3"))
    with pytest.raises(UserError, match="needs 5 logical CPU devices, but TensorFlow has already started with 4"):
        strategy(MirroredSettings(deterministic=False, cpu_replicas=5))


def test_seeds_are_the_same_everywhere() -> None:
    assert derive(42, "shuffle") == 1_310_903_858
    assert derive(42, "shuffle") != derive(42, "augment") != derive(43, "augment")
    assert 0 <= min(derive(seed, "x") for seed in range(1000)) < 2**31 > max(derive(seed, "x") for seed in range(1000))


def test_an_export_of_a_broken_model_does_not_pass_for_equal(tmp_path: Path) -> None:
    """By answers that are no numbers; by its weights: tests/stages/callbacks."""
    dataset, where = real_digits(), one_device()
    model = small_cnn(dataset, where)
    broken = model.network.get_weights()
    broken[-2][:] = 3e38
    model.network.set_weights(broken)
    with pytest.raises(UserError, match="differ from the model's by up to nan"):
        export(Trained(model, (), 1, 0), dataset, ExportSettings(), tmp_path)


def test_evaluate_writes_its_report(tmp_path: Path) -> None:
    names = ("null", "один", "二", "$3$", "४", "cinq, ou V", "6", "7", "8", "9" * 40)
    dataset, where = replace(real_digits(), task=classification(names)), one_device()
    result = evaluate(Trained(small_cnn(dataset, where), (), 1, 0), dataset, where, EvaluateSettings(), tmp_path)
    with (tmp_path / "test_by_class.csv").open(encoding="utf-8", newline="") as file:
        assert tuple(row["class"] for row in csv.DictReader(file)) == names
    for plot in ("confusion", "reliability", "mistakes"):
        assert (tmp_path / "plots" / f"{plot}.png").stat().st_size > 5000
    with (tmp_path / "test_metrics.csv").open(newline="") as file:
        rows = {row["metric"]: row for row in csv.DictReader(file)}
    metrics, ends = result.record.metrics, result.record.summary["intervals"]
    assert rows.keys() - ends.keys() == {"test/ece", "test/loss", "test/log_loss"}  # of too few examples
    for name in ends:
        assert [float(rows[name]["low"]), float(rows[name]["high"])] == ends[name]
        assert ends[name][0] <= float(rows[name]["value"]) <= ends[name][1]
    assert [metrics["test/accuracy_low"], metrics["test/accuracy_high"]] == ends["test/accuracy"]
    assert "(CI) for other test examples" in (tmp_path / "test_metrics.md").read_text()


def test_evaluate_does_no_more_than_it_is_asked(tmp_path: Path) -> None:
    dataset, where, heard = real_digits(), one_device(), Telling()
    test = dataset.test
    kept = np.flatnonzero(test.targets != 3)
    dataset = replace(dataset, test=Split.of_images(test.images[kept], test.targets[kept]))
    trained = Trained(small_cnn(dataset, where), (), 1, 0)
    settings = EvaluateSettings(mistakes=0, predictions=False)
    record = evaluate(trained, dataset, where, settings, tmp_path, heard).record
    assert not (tmp_path / "plots" / "mistakes.png").exists()
    assert not (tmp_path / "predictions.parquet").exists()
    [line] = heard.lines  # the first metric has an interval, so the console does not list those without one
    assert "no confidence interval for macro_precision" in (tmp_path / "test_metrics.md").read_text()
    assert [" the majority-class baseline " in verdict for verdict in record.summary["verdicts"]] == [True]
    assert line.startswith("the test split has no example of 1 of 10 classes (3)")
    assert not np.isnan(list(record.metrics.values())).any()
    assert not list(evaluate(trained, dataset, where, settings).record.files)


def test_the_loss_has_the_penalties_and_the_log_loss_the_interval() -> None:
    dataset, where = real_digits(), one_device()
    dataset = replace(dataset, test=dataset.train)  # enough examples for an interval
    model = small_cnn(dataset, where)
    head = model.network.core.layers[-1]
    head.kernel.regularizer = keras.regularizers.L2(0.02)
    result = evaluate(Trained(model, (), 1, 0), dataset, where, EvaluateSettings(mistakes=0))
    log_loss = result.record.metrics["test/log_loss"]
    assert result.loss == pytest.approx(log_loss + 0.02 * np.square(np.asarray(head.kernel)).sum(), rel=1e-5)
    assert {"test/log_loss", "test/accuracy"} <= result.record.summary["intervals"].keys()
