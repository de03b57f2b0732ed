"""Arrays with a series for each example: detected or declared, trained with networks of windows, exported."""

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from stages.data.examples import first_inputs
from stages.errors import UserError
from stages.evaluation.baseline import baseline_of, trivial_of
from stages.evaluation.predictions import columns_of
from stages.exporters.keras_file import KerasFile
from stages.exporters.saved_model import Serving
from stages.features.windows import WindowFeature
from stages.inspect import statistics
from stages.load.arrays import arrays, dataset_of_result
from stages.normalize import normalize
from stages.results import Dataset
from stages.settings.arrays import ArraysSettings
from stages.settings.data import NormalizeSettings
from stages.settings.model import AutoSettings, CausalCnnSettings, GruSettings, MlpSettings, NBeatsSettings
from stages.tasks.regression import NumberTargets
from tests.stages.experiments import assert_replicas_equal_one_device, built_of, one_device, settings

NETWORKS: dict[str, Any] = {
    "causal_cnn": CausalCnnSettings(filters=8), "gru": GruSettings(units=8), "mlp": MlpSettings(hidden=[8]),
    "auto": AutoSettings(columns="tabular"),
}  # fmt: skip
ROWS, STEPS, CHANNELS = 240, 20, 3


def recordings(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return recordings, float32 [N, T, C], with a bump in one of the channels, and the channel, [N]."""
    random = np.random.default_rng(seed)
    channels, places = random.integers(0, CHANNELS, ROWS), random.integers(3, STEPS - 3, ROWS)
    x = random.normal(0, 0.5, (ROWS, STEPS, CHANNELS)).astype(np.float32)
    for row, (channel, place) in enumerate(zip(channels, places, strict=True)):
        x[row, place - 2 : place + 3, channel] += 2
    return x, channels


def prepared(features: Any, targets: Any, **given: Any) -> Dataset:
    result = (features, targets)
    return normalize(dataset_of_result(result, ArraysSettings(_target_="mine.load", **given)), NormalizeSettings())


@pytest.fixture(scope="module")
def data() -> Dataset:
    return prepared(*recordings())


def test_long_series_are_detected_and_keep_their_values(data: Dataset) -> None:
    x, classes = recordings()
    history = data.features["history"]
    assert isinstance(history, WindowFeature)
    assert (history.shape, history.column) == ((STEPS, CHANNELS), "features")
    assert history.channels == ("features_0", "features_1", "features_2")
    train = x[data.train.numbers]
    for split in data.splits.values():
        np.testing.assert_array_equal(split.features["history"], x[split.numbers])
        np.testing.assert_array_equal(split.target_values, classes[split.numbers])
        scaled = (x[split.numbers].astype(float) - train.mean((0, 1), float)) / train.std((0, 1), float)
        np.testing.assert_allclose(split.inputs["history"][:], scaled, atol=1e-4)
    assert [row[2] for row in statistics(data).rows if row[0] == "train"][:1] == ["features_0"]


@pytest.mark.parametrize(("shape", "dtype", "kinds", "kind"), [
    ((ROWS, 28, 28), np.uint8, {}, "image"), ((ROWS, 40, 4), np.uint8, {}, "image"),
    ((ROWS, 8, 8), np.float32, {"features": "series"}, "window"),
    ((ROWS, 40, 4), np.uint8, {"features": "series"}, "window"),
    ((ROWS, 16), np.float64, {"features": "series"}, "window"), ((ROWS, 16), np.float64, {}, "vector"),
    ((ROWS, 16, 4), np.int64, {}, "window"), ((ROWS, 16, 4, 1), np.float32, {}, "image"),
])  # fmt: skip
def test_only_long_arrays_of_numbers_are_series_unless_declared(
    shape: tuple[int, ...], dtype: Any, kinds: dict[str, str], kind: str
) -> None:
    x = np.random.default_rng(0).integers(0, 9, shape).astype(dtype)
    data = dataset_of_result((x, np.arange(ROWS) % 2), ArraysSettings(_target_="mine.load", features=kinds or None))
    assert [feature.kind for feature in data.features.values()] == [kind]


def test_a_file_equals_a_function(data: Dataset, tmp_path: Path) -> None:
    x, classes = recordings()
    np.savez(tmp_path / "a.npz", x=x, y=classes, name=x)
    file = str(tmp_path / "a.npz")
    for kinds in (None, {"x": "series"}):
        plain = arrays(ArraysSettings(files=file, features=kinds))
        assert plain.fingerprint == dataset_of_result(recordings()).fingerprint == data.fingerprint
    named = arrays(ArraysSettings(files=file, target="y", features=["name"]))
    assert named.features["history"].column == "name"


@pytest.mark.parametrize("name", ["gru", "auto"])
def test_replicas_equal_one_device(name: str, data: Dataset) -> None:
    made = functools.partial(lambda data, where, network: built_of(network, data, where), network=NETWORKS[name])
    assert_replicas_equal_one_device(data, settings(batch_size=50), 8, made, 3)


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_exports_predict_as_the_network(kind: str) -> None:
    """Also with missing values, and next to numbers and categories."""
    x, classes = recordings()
    x[::7, 3, 1] = np.nan
    random = np.random.default_rng(1)
    features = {"x": x, "age": random.normal(size=ROWS), "site": np.array(["a", "b"])[classes % 2]}
    targets = classes if kind == "classes" else np.nansum(x, axis=(1, 2)).astype(np.float64)
    data = prepared(features, targets)
    model = built_of(CausalCnnSettings(filters=8), data, one_device())
    outputs = model.network(first_inputs(data.test, 20), training=False)
    expected = model.task.head.predictions(outputs).numpy()
    assert np.isfinite(expected).all()
    raw = {name: column[:20] for name, column in data.test.features.items()}
    assert {*raw} == {"history", "age", "site"}
    given = {name: tf.constant(values.tolist() if values.dtype == object else values) for name, values in raw.items()}
    served = Serving(model, data).signatures()["serving_default"](**given)
    np.testing.assert_allclose(served[model.task.head.answer], expected, atol=1e-5)
    np.testing.assert_allclose(KerasFile().converted(model, data)(given), expected, atol=1e-5)


def test_baselines_see_all_steps(data: Dataset) -> None:
    columns = columns_of(data.test, data.task, np.zeros((len(data.test), CHANNELS + 1), np.float32))
    trivial, boosted = trivial_of(columns, data, 0.95), baseline_of(columns, data, 0.95, 10)
    assert trivial is not None
    assert boosted is not None
    assert boosted.values["accuracy"] > trivial.values["accuracy"] + 0.1


def test_long_series_become_means_of_parts_for_models_without_steps() -> None:
    feature = WindowFeature((1000, 4), tuple("abcd"))
    values = np.random.default_rng(0).normal(size=(3, 1000, 4))
    plain = feature.plain(values)
    assert plain.shape == (3, feature.plain_columns)
    assert feature.plain_columns <= 404
    np.testing.assert_allclose(plain[:, :4], values[:, : 1000 // 101].mean(axis=1))
    short = WindowFeature((10, 4), tuple("abcd"))
    np.testing.assert_array_equal(short.plain(values[:, :10]), values[:, :10].reshape(3, -1))


def test_numbers_of_series_are_regression() -> None:
    x, _ = recordings()
    assert isinstance(dataset_of_result((x, x.mean(axis=(1, 2)))).task.targets, NumberTargets)


X = recordings()[0]
REFUSED: dict[str, tuple[Any, dict[str, str], str]] = {
    "square": ({"x": X[:, :3]}, {}, r"dtype float32 and shape \(240, 3, 3\).*data.features=\{x: \"series\"\}"),
    "two": ({"a": X, "b": X}, {}, "a and b are both series.*np.concatenate"),
    "flat": ({"x": X[:, 0, 0]}, {"x": "series"}, r"data.features: x has the shape \(240,\)"),
    "infinite": ({"x": np.where(X[5, 3, 1] == X, np.inf, X)}, {}, "x is inf in row 6"),
    "name": ({"x": X, "history": X[:, 0, 0]}, {}, "history is the name of the network's input for x"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_series_is_refused(name: str) -> None:
    features, kinds, message = REFUSED[name]
    given = ArraysSettings(_target_="mine.load", features=kinds or None)
    with pytest.raises(UserError) as raised:
        dataset_of_result((features, np.arange(ROWS) % 2), given)
    assert re.search(message, str(raised.value)), raised.value


def test_nbeats_refuses_series_with_one_target(data: Dataset) -> None:
    with pytest.raises(UserError, match="nbeats predicts next values"):
        built_of(NBeatsSettings(hidden=[16], blocks=2), data, one_device())
