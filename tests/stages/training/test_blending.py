"""Blending: one share of the seasonal naive forecast, in the weights of the network, fitted on validation."""

from typing import Any

import numpy as np
import pytest

from stages.data.examples import first_inputs
from stages.features.kinds import HISTORY
from stages.networks.keras_internals import all_layers
from stages.networks.series import BLEND
from stages.results import Dataset, Model, Trained
from stages.settings.model import ByStepSettings, CausalCnnSettings, NBeatsSettings
from stages.tasks.forecast import ForecastTargets
from stages.train import train
from tests.stages.experiments import adam, built_of, flat, mirrored, one_device, settings
from tests.stages.series import demand, encoded

NETWORKS: dict[str, Any] = {
    "by_step": ByStepSettings(hidden=[8, 8], members=3),
    "causal_cnn": CausalCnnSettings(filters=8),
    "nbeats": NBeatsSettings(hidden=[8], blocks=2),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Return windows of two targets, whose season is shorter than the horizon."""
    given: dict[str, Any] = {"target": ["sales", "price"], "season": 7, "horizon": 9, "val_fraction": 0.3}
    return encoded(tmp_path_factory.mktemp("demand"), demand(days=420), **given)


def trained(data: Dataset, where: Any = None, **given: Any) -> Trained:
    where = where or one_device()
    model = built_of(NETWORKS["by_step"], data, where)
    few = {"epochs": 2, "optimizer": adam(learning_rate=0.003), "calibrate": True, **given}
    return train(model, data, where, settings(**few))


def layer_of(model: Model) -> Any:
    [layer] = [layer for layer in all_layers(model.network) if layer.name == BLEND]
    return layer


def validation_loss(model: Model, data: Dataset) -> float:
    """Return the absolute error of the forecasts of the validation split, in standard deviations."""
    targets = model.task.targets
    assert isinstance(targets, ForecastTargets)
    found = model.task.head.predictions(model.network(first_inputs(data.val, len(data.val)), training=False))
    return float(np.mean(np.abs(np.asarray(found) - data.val.targets[:]) / np.array(targets.std)))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_whole_share_is_the_seasonal_naive_forecast(name: str, data: Dataset) -> None:
    model = built_of(NETWORKS[name], data, one_device())
    assert isinstance(model.task.targets, ForecastTargets)
    layer_of(model).set_weights([np.array([[0.0], [1.0]])])
    found = model.task.head.predictions(model.network(first_inputs(data.test, 50), training=False))
    naive = model.task.targets.forecasts(np.asarray(data.test.features[HISTORY][:50]))
    np.testing.assert_allclose(found, naive, rtol=1e-4, atol=1e-4)


def test_no_other_share_has_a_lower_validation_loss(data: Dataset) -> None:
    """The recorded losses are those of the model, with the share and without it."""
    found = trained(data)
    metrics, model = found.record.metrics, found.model
    share = metrics["train/naive_share"]
    assert 0.05 < share < 0.95
    assert validation_loss(model, data) == pytest.approx(metrics["val/blended_loss"], rel=1e-4)
    losses = {}
    for other in (0.0, share - 0.05, share, share + 0.05):
        layer_of(model).set_weights([np.array([[1 - other], [other]])])
        losses[other] = validation_loss(model, data)
    assert losses[share] == min(losses.values())
    assert losses[0.0] == pytest.approx(metrics["val/unblended_loss"], rel=1e-4)


def test_replicas_find_the_share_of_one_device(data: Dataset) -> None:
    one, several = (trained(data, where).record.metrics for where in (one_device(), mirrored()))
    assert several["train/naive_share"] == pytest.approx(one["train/naive_share"], abs=0.011)


def test_nothing_changes_with_few_windows_or_without_calibration(data: Dataset) -> None:
    few = data.with_each_split(lambda split: split.take(np.arange(90)))
    plain, untouched = trained(few, calibrate=False), trained(few)
    assert "train/naive_share" not in {**plain.record.metrics, **untouched.record.metrics}
    np.testing.assert_array_equal(flat(plain.model.network), flat(untouched.model.network))
