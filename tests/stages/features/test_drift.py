"""Drift: rows like those of the training move nothing, and what has moved is named, from enough rows on."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from mlflow.exceptions import MlflowException
from PIL import Image

from pipeline.serving.server import Watch, predictor
from stages.data.decode import Decoder
from stages.data.split import Split
from stages.evaluate import evaluate
from stages.features.categories import CategoryFeature
from stages.features.drift import LEAST, MOVED, Drift, trained_on, with_bins
from stages.features.images import ImageFeature
from stages.features.numbers import NumberFeature
from stages.features.texts import TextFeature
from stages.features.vectors import VectorFeature
from stages.load.digits import digits
from stages.normalize import normalize
from stages.results import Dataset
from stages.settings.data import DigitsSettings, NormalizeSettings
from stages.settings.results import EvaluateSettings
from tests.stages.evaluation.test_importance import fitted
from tests.stages.experiments import kept, one_device, real_digits, table_of
from tests.stages.images import encoded as png

CITIES = [f"city{number}" for number in range(400)]
WORDS = np.array([" ".join(["word"] * count) for count in range(60)], object)


def columns(seed: int, rows: int) -> dict[str, Any]:
    """Return columns of every kind, of the same distribution for each seed."""
    random = np.random.default_rng(seed)
    number = random.lognormal(size=rows)
    number[random.random(rows) < 0.1] = np.nan
    few = random.integers(0, 3, rows)
    pixels = random.integers(0, 256, (rows, 1, 1, 1)) * np.ones((1, 4, 4, 3))
    return {
        "size": number, "zeros": np.where(random.random(rows) < 0.7, 0.0, random.random(rows)),
        "city": np.array(CITIES, object)[(400 * random.random(rows) ** 2).astype(int)], "grade": few.astype(np.int64),
        "review": WORDS[random.poisson(12, rows)], "photo": pixels.astype(np.uint8),
        "signal": random.normal(size=(rows, 5)),
    }  # fmt: skip


FEATURES = {
    "size": NumberFeature(column="size (m)"), "zeros": NumberFeature(),
    "city": CategoryFeature(values=tuple(CITIES)), "grade": CategoryFeature("int64", (0, 1, 2)),
    "review": TextFeature(), "photo": ImageFeature(4, 4, 3), "signal": VectorFeature((5,)),
}  # fmt: skip
KNOWN = trained_on(with_bins(FEATURES, columns(0, 5000)))


def drift_of(given: dict[str, Any]) -> Drift:
    drift = Drift(KNOWN)
    drift.add(given)
    return drift


@pytest.mark.parametrize("rows", [LEAST, 30_000])
def test_rows_like_those_of_the_training_move_nothing(rows: int) -> None:
    assert [drift_of(columns(seed, rows)).moved() for seed in range(1, 6)] == [{}] * 5


CHANGES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "larger": ("size", lambda values: values * 3),
    "outside": ("size", lambda values: np.where(np.arange(len(values)) % 4, values, -1.0)),
    "missing": ("size", lambda values: np.where(np.arange(len(values)) % 2, values, np.nan)),
    "outside where it was missing": ("size", lambda values: np.where(np.isnan(values), 1e9, values)),
    "no zeros": ("zeros", lambda values: values + 0.1),
    "new values": ("city", lambda values: np.where(np.arange(len(values)) % 3, values, "elsewhere")),
    "other shares": ("grade", lambda values: np.minimum(values, 1)),
    "longer": ("review", lambda values: values + " and" * 6),
    "darker": ("photo", lambda values: values // 2),
    "shifted": ("signal", lambda values: values + 0.6),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_has_moved_is_named(change: str) -> None:
    name, function = CHANGES[change]
    given = columns(1, LEAST)
    given[name] = function(given[name])
    shown = "size (m)" if name == "size" else name
    moved = drift_of(given).moved()
    assert list(moved) == [shown]
    assert moved[shown] > MOVED
    [line] = drift_of(given).sentences("these rows")
    assert line.startswith(f"these rows differ from the training data in {shown} {moved[shown]:.2f} (population")


def test_of_a_few_rows_nothing_is_told_and_blocks_add_up() -> None:
    given = {"size": columns(1, LEAST)["size"] * 10}
    assert drift_of({"size": given["size"][:-1]}).sentences("these rows") == []
    parts = Drift(KNOWN)
    for block in np.array_split(given["size"], 7):
        parts.add({"size": block})
    assert parts.moved() == drift_of(given).moved() != {}


def test_the_index_is_the_sum_over_the_bins() -> None:
    features = with_bins({"grade": FEATURES["grade"]}, {"grade": np.repeat([0, 1], [8000, 2000])})
    drift = Drift(trained_on(features))
    drift.add({"grade": np.repeat([0, 1], [3000, 7000])})
    expected = (0.3 - 0.8) * np.log(0.3 / 0.8) + (0.7 - 0.2) * np.log(0.7 / 0.2)
    assert drift.moved()["grade"] == pytest.approx(expected, rel=0.01)


def test_encoded_images_are_counted_by_their_brightness() -> None:
    def encoded(values: np.ndarray) -> list[bytes]:
        return [png(Image.fromarray(np.full((40, 30, 3), value, np.uint8)), "PNG") for value in values]

    random = np.random.default_rng(5)
    like, darker = Drift(KNOWN, Decoder), Drift(KNOWN, Decoder)
    noise = png(Image.fromarray(random.integers(0, 256, (200, 200, 3)).astype(np.uint8)), "PNG")
    parts = noise.split(b"IDAT")  # of a second part that is none Pillow says so by a SyntaxError
    broken = b"IDAT".join(parts[:2]) + b"\1\2\3\4" + parts[2]
    like.add_encoded([b"no image", broken, *encoded(random.integers(0, 256, LEAST))])
    darker.add_encoded(encoded(random.integers(0, 128, LEAST)))
    assert (like.rows, like.moved(), list(darker.moved())) == (LEAST, {}, ["photo"])


@pytest.mark.parametrize(
    ("resize", "shape", "scale"), [("crop", (6, 6, 3), 1), ("pad", (6, 6, 1), 1), ("stretch", (8, 8, 1), 257)]
)
def test_encoded_images_of_the_training_move_nothing(resize: str, shape: tuple[int, int, int], scale: int) -> None:
    """Bright on the left, so that the middle is darker; of 16 bits the upper 8 count."""
    random = np.random.default_rng(6)
    pixels = (np.linspace(250, 5, 40) * random.uniform(0.8, 1, (LEAST, 20, 1))).astype(np.uint8)
    given = [png(Image.fromarray(one * np.uint16(scale) if scale > 1 else one), "PNG") for one in pixels]
    features = {"images": ImageFeature.of(shape, resize=resize)}
    decoded = np.array(Decoder(shape, resize)(given))
    drift = Drift(trained_on(with_bins(features, {"images": decoded})), Decoder)
    drift.add_encoded(given)
    assert (drift.rows, drift.moved()) == (LEAST, {})


def loaded(folder: Path, seed: int, more: float) -> Dataset:
    """Return a table whose first column is `more` than usual."""
    random = np.random.default_rng(seed)
    folder.mkdir()
    frame = pd.DataFrame({"a b": random.normal(size=2000) + more, "a-b": random.normal(size=2000)})
    frame = frame[[*frame][:: -1 if more else 1]]  # columns in another order, by which their arguments are called
    return table_of(folder, frame.assign(target=2 * frame["a b"] + random.normal(size=2000)), target="target")


def test_another_data_set_is_compared_with_what_was_trained_on(tmp_path: Path) -> None:
    data = normalize(loaded(tmp_path / "one", 1, 0.0), NormalizeSettings())
    trained, settings = fitted(data), EvaluateSettings(baseline=False)
    assert "drift" not in evaluate(trained, data, one_device(), settings).record.summary
    other = kept(data, loaded(tmp_path / "two", 2, 2.0), tmp_path / "one")
    result = evaluate(trained, other, one_device(), settings, tmp_path)
    assert list(result.record.summary["drift"]) == ["a b"]
    assert "the test examples differ from the training data in a b" in (tmp_path / "test_metrics.md").read_text()


def test_images_are_compared_with_what_was_trained_on(tmp_path: Path) -> None:
    data = real_digits()
    darker = Split.of_images(np.asarray(data.test.images) // 2, data.test.target_values)
    for test, moved in ((data.test, []), (darker, ["images"])):
        raw = digits(DigitsSettings(split_seed=1))
        assert raw.features["images"].trained_on is None
        other = kept(data, replace(raw, test=test), tmp_path)
        drift = Drift(trained_on(other.features))
        drift.add(other.test.features)
        assert list(drift.moved()) == moved


def test_a_server_tells_what_has_moved_as_rows_double(capsys: pytest.CaptureFixture[str]) -> None:
    class Doubling:
        structured_input_signature = ((), {"size": tf.TensorSpec([None], tf.float64)})

        def __call__(self, size: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"doubled": 2 * size}

    predict = predictor(SimpleNamespace(signatures={"serving_default": Doubling()}), Watch(Drift(KNOWN)))
    frame = pd.DataFrame({"size": columns(1, 50)["size"] * 10, "other": 0})
    for _ in range(20):
        with pytest.raises(MlflowException, match=r"^the table has no column size \(m\)\. Expected the columns"):
            predict(frame[["other"]])
    assert capsys.readouterr().out == ""  # what is refused counts nowhere
    answers = [predict(frame) for _ in range(20)]
    np.testing.assert_array_equal([row["doubled"] for row in answers[-1]], 2 * frame["size"])
    for line, count in zip(capsys.readouterr().out.splitlines(), (200, 400, 800), strict=True):
        assert line.startswith(f"the {count} examples of the requests differ from the training data in size (m) ")


def test_no_rows_count_nothing() -> None:
    """As of a file of predictions without rows."""
    drift = drift_of({name: column[:0] for name, column in columns(1, 5).items()})
    assert (drift.rows, drift.moved()) == (0, {})
