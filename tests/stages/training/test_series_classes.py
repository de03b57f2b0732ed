"""Classes of time series: windows, what they may know, baselines, training and the latest windows."""

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from stages.data.examples import first_inputs
from stages.data.latest import WindowReading, latest_windows
from stages.data.tables import read_files
from stages.errors import UserError
from stages.evaluation.baseline import baseline_of, trivial_of
from stages.evaluation.predictions import columns_of
from stages.exporters.litert import LiteRT
from stages.features.windows import WindowFeature
from stages.load.series import series
from stages.normalize import normalize
from stages.reporter import Reporter
from stages.results import Dataset, Model
from stages.settings.data import NormalizeSettings
from stages.settings.model import (
    AutoSettings,
    ByStepSettings,
    CausalCnnSettings,
    GruSettings,
    NBeatsSettings,
    TabularSettings,
)
from stages.settings.series import SeriesSettings
from stages.settings.table import Header
from stages.settings.train import ClassificationSettings
from tests.stages.experiments import (
    after_steps,
    assert_replicas_equal_one_device,
    built_of,
    flat,
    one_device,
    settings,
)

STEPS = 300
NETWORKS: dict[str, Any] = {
    "by_step": ByStepSettings(hidden=[16, 16], members=3), "causal_cnn": CausalCnnSettings(filters=8),
    "gru": GruSettings(units=8), "tabular": TabularSettings(hidden=[16], members=3),
}  # fmt: skip


def machines(seed: int = 0) -> pd.DataFrame:
    """Return two machines whose state changes rarely, and depends on a sensor: a row for each hour, in order."""
    random = np.random.default_rng(seed)
    parts = []
    for name in ("m0", "m1"):
        heat = np.convolve(random.normal(size=STEPS + 20), np.ones(20) / 4.5, "valid")[:STEPS]
        state = np.array(["cold", "good", "hot"])[np.digitize(heat + random.normal(0, 0.1, STEPS), [-0.5, 0.5])]
        time = pd.date_range("2024-01-01", periods=STEPS, freq="h").astype(str)
        parts.append(pd.DataFrame({"time": time, "machine": name, "heat": heat.round(4), "state": state}))
    return pd.concat(parts, ignore_index=True)


def loaded(folder: Path, frame: pd.DataFrame, cache: Path | None = None, **given: Any) -> Dataset:
    path = folder / "machines.csv"
    frame.to_csv(path, index=False)
    words = {"target": "state", "time": "time", "group": "machine", "window": 6, "horizon": 2, **given}
    return series(SeriesSettings(files=str(path), **words), Reporter(), None, cache)


def encoded(folder: Path, frame: pd.DataFrame, cache: Path | None = None, **given: Any) -> Dataset:
    return normalize(loaded(folder, frame, cache, **given), NormalizeSettings(), cache=cache)


@pytest.mark.parametrize("horizon", [0, 1, 3])
def test_the_target_is_the_class_some_steps_after_the_window(horizon: int, tmp_path: Path) -> None:
    """The past of the class is known up to the end of the window; of its last step, no class is."""
    frame = machines()
    data = loaded(tmp_path, frame, horizon=horizon)
    assert data.task.kind == "classification"
    assert data.task.names == ("cold", "good", "hot")
    history = data.features["history"]
    assert isinstance(history, WindowFeature)
    past = ("state=cold", "state=good", "state=hot") if horizon else ()
    assert history.channels == (*past, "heat")
    assert history.targets == 0
    seen = set()
    for split in data.splits.values():
        values = split.features["history"][:]
        assert split.numbers is not None
        for place, number in enumerate(split.numbers):
            last = number - horizon
            rows = frame.iloc[last - 5 : last + 1]
            np.testing.assert_array_equal(values[place, :, -1], rows.heat)
            for channel, name in enumerate(past):
                np.testing.assert_array_equal(values[place, :, channel], rows.state == name.partition("=")[2])
            assert data.task.names[split.target_values[place]] == frame.state[number]
            seen.add(number)
    assert len(seen) == 2 * (STEPS - 3 * (6 + horizon - 1))
    blocks = [np.unique(np.asarray(split.groups)) for split in data.splits.values()]
    assert len(np.unique(np.concatenate(blocks))) == sum(map(len, blocks))


def test_classes_of_truth_values_and_of_numbers(tmp_path: Path) -> None:
    frame = machines()
    assert loaded(tmp_path, frame.assign(state=frame.state == "hot")).task.names == ("False", "True")
    numbers = frame.assign(state=frame.state.map({"cold": 10, "good": 2, "hot": 3}))
    assert loaded(tmp_path, numbers).task.kind == "forecast"
    data = loaded(tmp_path, numbers, task=ClassificationSettings())
    assert data.task.names == ("2", "3", "10")


def answers(model: Model, data: Dataset) -> np.ndarray:
    """Return the outputs for the last window of each machine."""
    assert data.test.numbers is not None
    outputs = np.asarray(model.network(first_inputs(data.test, len(data.test)), training=False))
    return outputs[np.isin(data.test.numbers, [STEPS - 1, 2 * STEPS - 1])]


@pytest.mark.parametrize(("name", "horizon"), [("causal_cnn", 0), *((name, 2) for name in NETWORKS)])
def test_no_later_row_changes_a_prediction(name: str, horizon: int, tmp_path: Path) -> None:
    """To the bit: neither the class that is predicted, nor rows after the window, nor rows before it."""
    frame, given = machines(), dict[str, Any](horizon=horizon)
    data = encoded(tmp_path, frame, **given)
    model = built_of(NETWORKS[name], data, one_device())
    other = frame.copy()
    step = np.tile(np.arange(STEPS), 2)
    is_later = step >= STEPS - horizon if horizon else step == STEPS - 1
    other.loc[is_later, "state"] = frame.state[is_later].map({"cold": "hot", "good": "cold", "hot": "good"})
    other.loc[step >= STEPS - horizon, "heat"] += 5.0
    is_before = (step < STEPS - 6 - horizon) & (step > STEPS - 20)
    other.loc[is_before, "heat"] -= 3.0
    changed = encoded(tmp_path, other, **given)
    assert (changed.test.target_values != data.test.target_values).sum() >= 2
    base = answers(model, data)
    assert len(base) == 2
    np.testing.assert_array_equal(answers(model, changed), base)
    inside = frame.copy()
    inside.loc[step == STEPS - horizon - 1, "heat"] += 5.0
    assert not np.isclose(answers(model, encoded(tmp_path, inside, **given)), base).all()


def test_xla_gives_the_same(tmp_path: Path) -> None:
    data = encoded(tmp_path, machines())
    made = functools.partial(lambda data, where, network: built_of(network, data, where), network=NETWORKS["by_step"])
    plain, compiled = (
        after_steps(one_device(), data, settings(batch_size=50), 4, made, jit=jit)[0] for jit in (False, True)
    )
    np.testing.assert_allclose(flat(compiled.network), flat(plain.network), atol=2e-6)


@pytest.mark.parametrize("name", ["by_step", "gru"])
def test_replicas_equal_one_device(name: str, tmp_path: Path) -> None:
    """The other networks are compared on forecasts, in test_series.py."""
    made = functools.partial(lambda data, where, network: built_of(network, data, where), network=NETWORKS[name])
    assert_replicas_equal_one_device(encoded(tmp_path, machines()), settings(batch_size=50), 8, made, 3)


def test_the_disk_gives_the_same_as_memory(tmp_path: Path) -> None:
    data = encoded(tmp_path, machines())
    disk = encoded(tmp_path, machines(), tmp_path / "cache", memory_gib=0.0)
    assert not disk.train.is_in_memory
    assert disk.fingerprint == data.fingerprint
    for name, split in data.splits.items():
        np.testing.assert_array_equal(disk.splits[name].inputs["history"][:], split.inputs["history"][:])
        np.testing.assert_array_equal(disk.splits[name].target_values, split.target_values)


def test_baselines_are_the_class_that_follows_and_boosting(tmp_path: Path) -> None:
    data = encoded(tmp_path, machines())
    train, test = (
        (split.features["history"][:][:, -1, :3].argmax(axis=1), split.target_values)
        for split in (data.train, data.test)
    )
    counts = np.zeros((3, 3))
    np.add.at(counts, train, 1)
    expected = (counts.argmax(axis=1)[test[0]] == test[1]).mean()
    perfect = np.column_stack([np.eye(3)[test[1]], test[1]]).astype(np.float32)
    columns = columns_of(data.test, data.task, perfect)
    trivial = trivial_of(columns, data, 0.95)
    assert trivial is not None
    assert trivial.values["accuracy"] == pytest.approx(expected)
    shares = counts / counts.sum(axis=1, keepdims=True)
    assert trivial.values["log_loss"] == pytest.approx(-np.log(shares[test]).mean(), rel=1e-4)
    boosted = baseline_of(columns, data, 0.95, 10)
    assert boosted is not None
    assert boosted.values["accuracy"] > np.bincount(test[1]).max() / len(test[1])
    now = encoded(tmp_path, machines(), horizon=0)
    columns = columns_of(now.test, now.task, np.zeros((len(now.test), 4), np.float32))
    majority = trivial_of(columns, now, 0.95)
    assert majority is not None
    assert "majority" in majority.model


@pytest.mark.parametrize("horizon", [0, 2])
def test_the_latest_windows_are_those_of_training(horizon: int, tmp_path: Path) -> None:
    frame = machines()
    data = loaded(tmp_path, frame, horizon=horizon)
    reading = WindowReading.of_json(data.reading["windows"])
    step = np.tile(np.arange(STEPS), 2)
    rows = frame[step < STEPS - horizon]
    if not horizon:
        rows = rows.drop(columns="state")
    rows[rows.columns[::-1]].to_csv(tmp_path / "latest.csv", index=False)
    settings = SeriesSettings(files=str(tmp_path / "latest.csv"), target="heat", time="time").table
    found = latest_windows(read_files(Header.of([tmp_path / "latest.csv"], None, "utf8"), settings), reading)
    last = [int(place) for place in np.flatnonzero(np.isin(np.asarray(data.test.numbers), [STEPS - 1, 2 * STEPS - 1]))]
    for name, values in found.arguments.items():
        np.testing.assert_array_equal(values, data.test.features[name][last[0] : last[1] + 1 : last[1] - last[0]])
    assert found.times == [["2024-01-13 11:00:00"]] * 2


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no next value": ({"target": "heat", "horizon": 0}, r"horizon=0 does not predict.*Try: data.horizon=1"),
    "two targets": (
        {"target": ["state", "heat"], "task": ClassificationSettings()}, "needs one target.*data.target=state",
    ),
    "no past": ({"horizon": 0, "features": ["machine"]}, "no columns of numbers"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_classified_is_refused(name: str, tmp_path: Path) -> None:
    given, message = REFUSED[name]
    machines().to_csv(tmp_path / "machines.csv", index=False)
    words = {"target": "state", "time": "time", "group": "machine", "window": 6, "horizon": 2, **given}

    def checked() -> None:
        settings = SeriesSettings(files=str(tmp_path / "machines.csv"), **words)
        settings.check("data")
        series(settings)

    with pytest.raises(UserError) as raised:
        checked()
    assert re.search(message, str(raised.value)), raised.value


def test_the_default_network_follows_from_what_is_known(tmp_path: Path) -> None:
    for horizon, name in ((2, "by_step"), (0, "causal_cnn")):
        data = encoded(tmp_path, machines(), horizon=horizon)
        assert built_of(AutoSettings(), data, one_device()).network.core.name == name


def test_litert_answers_as_the_default_network(tmp_path: Path) -> None:
    data = encoded(tmp_path, machines())
    model = built_of(NETWORKS["by_step"], data, one_device())
    inputs = first_inputs(data.test, 5)
    expected = model.task.head.predictions(model.network(inputs, training=False)).numpy()
    runner = tf.lite.Interpreter(model_content=LiteRT().converted(model, data)).get_signature_runner()
    [found] = runner(**{name: np.asarray(value) for name, value in inputs.items()}).values()
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_nbeats_does_not_predict_classes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nbeats predicts next values"):
        built_of(NBeatsSettings(hidden=[16], blocks=2), encoded(tmp_path, machines()), one_device())


def test_a_class_without_a_training_window_is_refused(tmp_path: Path) -> None:
    frame = machines()
    frame.loc[STEPS - 1, "state"] = "broken"
    with pytest.raises(UserError, match="the class broken of the test split has no training window"):
        loaded(tmp_path, frame)
