"""Exported models of masks: every format returns the mask and the probabilities of the model."""

import importlib.util
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from stages.export import export
from stages.exporters.comparison import compare
from stages.exporters.saved_model import SavedModel
from stages.results import Dataset, Exported, Trained
from stages.settings import results as kinds
from tests.stages.experiments import after_steps, one_device, settings
from tests.stages.networks.test_maps import areas, small_unet

FORMATS: dict[str, Any] = {
    "saved_model": kinds.SavedModelSettings(), "keras": kinds.KerasSettings(), "litert": kinds.LiteRTSettings(),
}  # fmt: skip
if all(importlib.util.find_spec(package) for package in kinds.OnnxSettings.requires):
    FORMATS["onnx"] = kinds.OnnxSettings()


@pytest.fixture(scope="module")
def model() -> tuple[Dataset, Trained]:
    data = areas()
    built, _ = after_steps(one_device(), data, settings(batch_size=16), 8, small_unet)
    return data, Trained(built, (), 1, 8)


@pytest.fixture(scope="module")
def files(model: tuple[Dataset, Trained], tmp_path_factory: pytest.TempPathFactory) -> Exported:
    data, trained = model
    folder = tmp_path_factory.mktemp("masks")
    return export(trained, data, kinds.ExportSettings(formats=FORMATS, reload="here"), folder)


def test_every_format_returns_the_mask_of_the_model(model: tuple[Dataset, Trained], files: Exported) -> None:
    data, trained = model
    for name in FORMATS:
        assert files.record.metrics[f"export/{name}/agreement"] == 1
        assert files.record.metrics[f"export/{name}/max_abs_diff"] < 1e-4
    assert files.answers == {"probabilities": "float32[12, 10, 3]", "mask": "uint8[12, 10]"}
    pixels = np.asarray(data.test.images[:5])
    expected = tf.nn.softmax(trained.model.network(tf.constant(pixels, tf.float32), training=False)).numpy()
    loaded = tf.saved_model.load(str(files.path))
    png = [tf.io.encode_png(image).numpy() for image in pixels]
    for outputs in (
        loaded.signatures["serving_default"](images=tf.constant(pixels, tf.float32)),
        loaded.signatures["serve_uint8"](images=tf.constant(pixels)),
        loaded.signatures["serve_bytes"](encoded=tf.constant(png)),
    ):
        np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-5)
        assert outputs["mask"].dtype == tf.uint8
        np.testing.assert_array_equal(outputs["mask"], expected.argmax(axis=-1))
    [path] = [path for path in files.others.values() if path.suffix == ".tflite"]
    runner: Any = tf.lite.Interpreter(str(path)).get_signature_runner("serving_default")
    np.testing.assert_array_equal(runner(images=pixels.astype(np.float32))["mask"], expected.argmax(axis=-1))
    [path] = [path for path in files.others.values() if path.suffix == ".keras"]
    answers = keras.models.load_model(path).predict_on_batch(pixels.astype(np.float32))
    np.testing.assert_allclose(answers, expected, atol=1e-5)


def test_as_many_examples_are_compared_as_fit_in_memory(
    model: tuple[Dataset, Trained], files: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, trained = model
    monkeypatch.setattr("stages.exporters.comparison.SCORING_BYTES", 4 * 12 * 10 * 3 * 4)
    seen: list[int] = []
    head = type(trained.model.task.head)

    def differ(self: Any, ours: np.ndarray, theirs: np.ndarray, allowed: float) -> tuple[float, float]:
        seen.append(len(ours))
        return 0.0, 1.0

    monkeypatch.setattr(head, "differ", differ)
    compare(trained.model, data, {"saved_model": (files.path, SavedModel())}, kinds.ExportSettings(reload="here"))
    assert seen == [4]
