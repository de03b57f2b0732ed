"""Training on time series: the same on any replicas, from memory and from the disk; only the past is used."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from stages.data.examples import first_inputs
from stages.exporters.litert import LiteRT
from stages.exporters.saved_model import Serving
from stages.features.windows import DAYS
from stages.networks.keras_internals import all_layers
from stages.results import Dataset, Model, Strategy
from stages.settings.model import (
    AutoSettings,
    ByStepSettings,
    CausalCnnSettings,
    GruSettings,
    NBeatsSettings,
    TabularSettings,
)
from tests.stages.experiments import (
    after_steps,
    assert_replicas_equal_one_device,
    built_of,
    flat,
    one_device,
    settings,
)
from tests.stages.series import demand, encoded

NETWORKS: dict[str, Any] = {
    "by_step": ByStepSettings(hidden=[16, 16], members=3),
    "causal_cnn": CausalCnnSettings(filters=8), "gru": GruSettings(units=8),
    "nbeats": NBeatsSettings(hidden=[16], blocks=2), "tabular": TabularSettings(hidden=[16], members=3),
    "auto": AutoSettings(columns="tabular"),
}  # fmt: skip
STEPS = 12


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return encoded(tmp_path_factory.mktemp("demand"), demand(), known=["promo"])


def build(data: Dataset, where: Strategy, network: Any) -> Model:
    return built_of(network, data, where)


@pytest.mark.parametrize("name", ["auto", "causal_cnn", "gru"])
def test_replicas_equal_one_device(name: str, data: Dataset) -> None:
    """With dropout; three replicas share no batch evenly. The others have dense layers only, like `auto`."""
    made = functools.partial(build, network=NETWORKS[name])
    assert_replicas_equal_one_device(data, settings(batch_size=50), STEPS, made, 3)


def test_xla_gives_the_same(data: Dataset) -> None:
    made = functools.partial(build, network=NETWORKS["by_step"])
    plain, compiled = (
        after_steps(one_device(), data, settings(batch_size=50), STEPS, made, jit=jit)[0] for jit in (False, True)
    )
    np.testing.assert_allclose(flat(compiled.network), flat(plain.network), atol=2e-6)


def test_the_disk_gives_the_same_as_memory(data: Dataset, tmp_path: Path) -> None:
    disk = encoded(tmp_path, demand(), tmp_path / "cache", known=["promo"], memory_gib=0.0)
    assert not disk.train.is_in_memory
    made = functools.partial(build, network=NETWORKS["causal_cnn"])
    both = [after_steps(one_device(), one, settings(batch_size=50), STEPS, made)[0] for one in (data, disk)]
    np.testing.assert_array_equal(flat(both[0].network), flat(both[1].network))


def test_long_training_learns_about_single_days(tmp_path: Path) -> None:
    """With embeddings of days, serving equals training, and a forecast depends on the day."""
    data = encoded(tmp_path, demand(days=2200, stores=1), stride=9)
    model = build(data, one_device(), NETWORKS["by_step"])
    assert {f"embed_day_of_{name}" for name in DAYS} <= {layer.name for layer in all_layers(model.network)}
    assert_replicas_equal_one_device(
        data, settings(batch_size=50), 4, functools.partial(build, network=NETWORKS["by_step"]), 2
    )
    raw = {name: column[:9] for name, column in data.test.features.items()}
    given = {name: tf.constant(values) for name, values in raw.items()}
    expected = model.task.head.predictions(model.network(first_inputs(data.test, 9), training=False)).numpy()
    np.testing.assert_allclose(
        Serving(model, data).signatures()["serving_default"](**given)["prediction"], expected, atol=1e-4
    )
    later = {**given, "time": given["time"] + 364 * 86_400}  # the same weekday
    moved = Serving(model, data).signatures()["serving_default"](**later)["prediction"]
    assert not np.allclose(moved, expected, atol=1e-3)


@pytest.mark.parametrize("name", ["by_step", "causal_cnn"])
def test_litert_answers_as_the_network(name: str, data: Dataset) -> None:
    """Its converter fails on some products and transpositions with members."""
    model = build(data, one_device(), NETWORKS[name])
    inputs = first_inputs(data.test, 5)
    expected = model.task.head.predictions(model.network(inputs, training=False)).numpy()
    runner = tf.lite.Interpreter(model_content=LiteRT().converted(model, data)).get_signature_runner()
    [found] = runner(**{name: np.asarray(value) for name, value in inputs.items()}).values()
    np.testing.assert_allclose(found, expected, atol=1e-4)


def answers(model: Model, data: Dataset) -> np.ndarray:
    return np.asarray(model.network(first_inputs(data.test, len(data.test)), training=False))


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, ...]:
    """Return the same series, with changes outside of the window, of what is known in advance, and inside of it.

    The test split has two windows, one of each store, behind which all values are changed, and before which, too.
    """
    tmp_path, frame = tmp_path_factory.mktemp("variants"), demand()
    days = sorted({*frame.date})
    last = days[-18:]
    first, future, promo = last[0], frame.date > last[13], frame.promo
    one = [encoded(tmp_path, frame, known=["promo"], stride=200)]
    other = frame.copy()
    other.loc[future, ["sales", "price"]] += [1e3, 7.0]
    is_old = (frame.date < first) & (frame.date > days[-40])  # in the test split
    other.loc[is_old, ["sales", "price"]] *= 3.0
    one.append(encoded(tmp_path, other, known=["promo"], stride=200))
    known = frame.assign(promo=np.where(future, 1 - promo, promo))
    one.append(encoded(tmp_path, known, known=["promo"], stride=200))
    inside = frame.copy()
    inside.loc[frame.date == first, "sales"] += 5.0
    one.append(encoded(tmp_path, inside, known=["promo"], stride=200))
    return tuple(one)


@pytest.mark.parametrize("name", NETWORKS)
def test_only_the_window_and_what_is_known_in_advance_change_a_forecast(
    name: str, variants: tuple[Dataset, ...]
) -> None:
    """To the bit: neither the future of the target and of other columns nor the past before the window matters."""
    model = build(variants[0], one_device(), NETWORKS[name])
    base, unchanged, changed, inside = (answers(model, data) for data in variants)
    assert len(base) == 2
    np.testing.assert_array_equal(unchanged, base)
    assert not np.isclose(changed, base).all()
    assert not np.isclose(inside, base).all()


def test_a_level_moves_scaled_forecasts_by_as_much(data: Dataset) -> None:
    """Twice the past around another mean gives twice the forecast around it."""
    for name in ("by_step", "causal_cnn", "gru", "nbeats"):
        model = build(data, one_device(), NETWORKS[name])
        inputs = {key: np.asarray(value) for key, value in first_inputs(data.test, 9).items()}
        base = np.asarray(model.network(inputs, training=False))
        sales = inputs["history"][:, :, :1]
        center, moved = sales.mean(axis=1, keepdims=True), inputs["history"].copy()
        moved[:, :, :1] = 100 + 2 * (sales - center)
        found = np.asarray(model.network({**inputs, "history": moved}, training=False))
        center = center[:, 0] if found.ndim == 2 else center  # with members
        np.testing.assert_allclose(found, 100 + 2 * (base - center), atol=2e-3, err_msg=name)
