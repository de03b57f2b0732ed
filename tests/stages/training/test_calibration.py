"""Calibration: one temperature, in the weights of the last layer, with which the log loss of validation is lowest."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stages.evaluation.eval_step import Scorer
from stages.metrics.classes import LogLoss
from stages.normalize import normalize
from stages.reporter import Reporter
from stages.results import Dataset, Strategy, Trained
from stages.settings.data import NormalizeSettings
from stages.settings.model import MlpSettings, TabularSettings, WideAndDeepSettings
from stages.settings.train import AutoTaskSettings, MultiLabelSettings
from stages.train import train
from stages.training.calibration import calibrated
from tests.stages.experiments import adam, built_of, mirrored, one_device, settings, table_of

ROWS = 900
LABELS = ["is_warm", "is_wet"]


@functools.cache
def dataset(folder: Path, labels: bool = False) -> Dataset:
    """Return rows whose targets are mostly noise, so a network that has learned them by heart is too sure."""
    random = np.random.default_rng(5)
    frame = pd.DataFrame(random.normal(size=(ROWS, 8)), columns=[*"abcdefgh"])
    noise = random.normal(size=(ROWS, 2))
    frame["is_warm"] = (frame.a + 2 * noise[:, 0] > 0).astype(int)
    frame["is_wet"] = (frame.b + 2 * noise[:, 1] > 0).astype(int)
    target, task = (LABELS, MultiLabelSettings()) if labels else ("is_warm", AutoTaskSettings())
    features = {} if labels else {"is_wet": "leave_out"}
    loaded = table_of(folder, frame, target=target, features=features, task=task, val_fraction=0.3)
    return normalize(loaded, NormalizeSettings())


def trained(data: Dataset, where: Strategy, network: Any, **given: Any) -> Trained:
    model = built_of(network, data, where, task=given.pop("task", AutoTaskSettings()))
    fast = {"optimizer": adam(learning_rate=0.01), "epochs": 12, "batch_size": 64, "early_stopping_patience": 0}
    return train(model, data, where, settings(**{**fast, "restore_best": False, "calibrate": True, **given}))


def log_loss(found: Trained, data: Dataset) -> float:
    scores = Scorer(one_device(), found.model).score(data.val, 64, predicts=True)
    task = found.model.task
    assert scores.predictions is not None
    columns = {**task.view.target_columns(data.val), **task.head.columns(scores.predictions)}
    return float(np.mean(LogLoss().values(columns, np)))


@pytest.mark.parametrize("network", [MlpSettings(hidden=[64]), TabularSettings(hidden=[64], members=4, dropout=0.0)])
def test_a_network_that_is_too_sure_becomes_less_so(network: Any, tmp_path: Path) -> None:
    """The recorded log loss after it is that of the model; no other temperature has a lower one."""
    data = dataset(tmp_path)
    found = trained(data, one_device(), network)
    metrics = found.record.metrics
    assert metrics["train/temperature"] > 1.2
    assert metrics["val/calibrated_log_loss"] < metrics["val/log_loss"] - 0.01
    assert metrics["val/calibrated_ece"] < metrics["val/ece"]
    assert log_loss(found, data) == pytest.approx(metrics["val/calibrated_log_loss"], rel=1e-5)
    last = found.model.network.core.layers[-1]
    for factor in (1.05, 1 / 1.05):
        before = last.get_weights()
        last.set_weights([weight * factor for weight in before])
        assert log_loss(found, data) >= metrics["val/calibrated_log_loss"] - 1e-6
        last.set_weights(before)


def test_only_independent_examples_make_a_network_more_sure(tmp_path: Path) -> None:
    """Windows of time series have blocks of time as groups, and a single block may be easy."""
    data = dataset(tmp_path)
    grouped = data.with_each_split(lambda split: replace(split, groups=np.arange(len(split)) // 20))
    plain = trained(data, one_device(), MlpSettings(hidden=[8]), calibrate=False)
    last = plain.model.network.core.layers[-1]
    calibrated(plain, data, one_device(), Reporter())
    best = last.get_weights()
    for examples, factor, expected in [(data, 0.5, 0.5), (grouped, 0.5, 1.0), (grouped, 2.0, 2.0)]:
        last.set_weights([weight * factor for weight in best])
        found = calibrated(plain, examples, one_device(), Reporter())
        assert found.record.metrics["train/temperature"] == pytest.approx(expected, rel=2e-3)
        assert log_loss(found, data) == pytest.approx(found.record.metrics["val/calibrated_log_loss"], rel=1e-5)


def test_a_frozen_last_layer_is_calibrated(tmp_path: Path) -> None:
    data = dataset(tmp_path)
    plain = trained(data, one_device(), MlpSettings(hidden=[64]), calibrate=False)
    plain.model.network.core.layers[-1].trainable = False
    found = calibrated(plain, data, one_device(), Reporter())
    assert log_loss(found, data) == pytest.approx(found.record.metrics["val/calibrated_log_loss"], rel=1e-5)


def test_labels_are_calibrated_too(tmp_path: Path) -> None:
    data = dataset(tmp_path, labels=True)
    found = trained(data, one_device(), MlpSettings(hidden=[64]), task=MultiLabelSettings())
    assert found.record.metrics["val/calibrated_log_loss"] < found.record.metrics["val/log_loss"]
    assert log_loss(found, data) == pytest.approx(found.record.metrics["val/calibrated_log_loss"], rel=1e-5)
    assert "val/ece" not in found.record.metrics


def test_replicas_find_the_temperature_of_one_device(tmp_path: Path) -> None:
    data, network = dataset(tmp_path), TabularSettings(hidden=[16], members=3)
    one, several = (trained(data, where(), network).record.metrics for where in (one_device, mirrored))
    for name in ("train/temperature", "val/log_loss", "val/calibrated_log_loss"):
        assert several[name] == pytest.approx(one[name], rel=2e-3)


@pytest.mark.parametrize("case", ["off", "few", "not linear", "numbers"])
def test_nothing_changes_without_reason(case: str, tmp_path: Path) -> None:
    data = dataset(tmp_path)
    if case == "few":
        data = data.with_each_split(lambda split: split.take(np.arange(90)))
    if case == "numbers":
        frame = pd.DataFrame({"a": np.arange(400.0), "b": np.arange(400) ** 0.5})
        data = normalize(table_of(tmp_path, frame, target="b"), NormalizeSettings())
    network = WideAndDeepSettings(hidden=[8]) if case == "not linear" else MlpSettings(hidden=[8])
    found = trained(data, one_device(), network, calibrate=case != "off")
    assert "train/temperature" not in found.record.metrics
