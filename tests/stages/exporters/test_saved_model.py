"""The signatures of the SavedModel: types, names, encoded images as training decodes them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel as SavedModelFile

from stages.data.decode import Decoder
from stages.export import export
from stages.exporters.saved_model import SavedModel, Serving
from stages.features.images import ImageFeature
from stages.load.synthetic import synthetic
from stages.networks.keras_internals import all_layers
from stages.results import Dataset, Model, Trained
from stages.settings.data import SyntheticSettings
from stages.settings.results import ExportSettings
from stages.tasks.classification import classification
from tests.stages.experiments import one_device, real_digits, small_cnn
from tests.stages.images import encoded, exif

pytestmark = pytest.mark.slow

NAMES = ("null", "один", "$3$", "d")


def photo(height: int, width: int, mode: str = "RGB") -> Image.Image:
    """Return a smooth random image, as a photograph is."""
    small = np.random.default_rng(height * width).integers(0, 256, (6, 7, 4), dtype=np.uint8)
    return Image.fromarray(small, "RGBA").resize((width, height), Image.Resampling.BICUBIC).convert(mode)


@pytest.fixture(scope="module")
def photos() -> Dataset:
    data = SyntheticSettings(examples=60, test_examples=40, height=20, width=24, num_classes=4)
    features = {"images": ImageFeature(20, 24, 3, resize="crop")}
    return replace(synthetic(data), task=classification(NAMES), features=features)


@pytest.fixture(scope="module")
def trained(photos: Dataset) -> Model:
    return small_cnn(photos, one_device())


@pytest.fixture(scope="module")
def loaded(photos: Dataset, trained: Model, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("run")
    return tf.saved_model.load(str(export(Trained(trained, (), 1, 0), photos, ExportSettings(), folder).path))


def test_pixels_of_both_types_give_the_named_outputs(photos: Dataset, trained: Model, loaded: Any) -> None:
    images = np.asarray(photos.test.images[:7])
    expected = trained.task.head.predictions(trained.network(images.astype(np.float32))).numpy()
    float32 = loaded.signatures["serving_default"](images=tf.constant(images, tf.float32))
    uint8 = loaded.signatures["serve_uint8"](images=tf.constant(images))
    for outputs in (float32, uint8):
        assert set(outputs) == {"probabilities", "class_name", "score"}
        np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-6)
        assert [name.decode() for name in outputs["class_name"].numpy()] == [NAMES[row.argmax()] for row in expected]
        np.testing.assert_allclose(outputs["score"], expected.max(axis=1), atol=1e-6)
        assert {name: value.dtype.name for name, value in outputs.items()} == {
            "probabilities": "float32", "class_name": "string", "score": "float32",
        }  # fmt: skip
    for pixels in (images, images.astype(np.float32)):
        np.testing.assert_allclose(loaded(tf.constant(pixels)), expected, atol=1e-6)
    for count in (1, 200):
        assert loaded(tf.zeros((count, 20, 24, 3), tf.uint8)).shape == (count, 4)
    assert tuple(name.decode() for name in loaded.class_names.numpy()) == NAMES


def test_the_file_holds_the_network_once(photos: Dataset, trained: Model, tmp_path: Path) -> None:
    """All functions and signatures call the same one: a large network takes seconds to trace and to load."""
    SavedModel().write(trained, photos, tmp_path / "saved")
    graph = SavedModelFile.FromString((tmp_path / "saved" / "saved_model.pb").read_bytes()).meta_graphs[0].graph_def
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    convolutions = [layer for layer in all_layers(trained.network) if isinstance(layer, keras.layers.Conv2D)]
    assert sum(node.op == "Conv2D" for node in nodes) == len(convolutions) > 0


def test_encoded_images_give_what_their_decoded_pixels_give(loaded: Any) -> None:
    """JPEG and PNG of several sizes in one batch, by the set's own way of resizing."""
    contents = [
        encoded(photo(33, 70), "JPEG"), encoded(photo(33, 71, "L"), "JPEG"), encoded(photo(90, 71, "CMYK"), "JPEG"),
        encoded(photo(90, 71), "JPEG", progressive=True), encoded(photo(20, 24, "RGBA"), "PNG"),
        encoded(photo(21, 24).convert("P"), "PNG"), encoded(photo(21, 24).convert("1"), "PNG"),
        encoded(Image.fromarray((np.arange(600).reshape(20, 30) * 101).astype(np.uint16)), "PNG"),
        *(encoded(photo(50, 31), "JPEG", exif=exif(value)) for value in range(1, 9)),
    ]  # fmt: skip
    pixels = np.stack(Decoder((20, 24, 3), "crop")(contents))  # type: ignore[arg-type]
    outputs = loaded.signatures["serve_bytes"](encoded=tf.constant(contents))
    np.testing.assert_array_equal(outputs["probabilities"], loaded(tf.constant(pixels)))


@pytest.mark.smoke
@pytest.mark.parametrize("content", [
    *(b"", b"no image", encoded(photo(40, 40), "JPEG")[:200], encoded(photo(40, 40), "PNG")[:200]),
    encoded(photo(40, 40), "WEBP"),
], ids=["empty", "text", "half a JPEG", "half a PNG", "WebP"])  # fmt: skip
def test_what_is_no_whole_image_is_an_error(loaded: Any, content: bytes) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError):
        loaded.signatures["serve_bytes"](encoded=tf.constant([content]))


@pytest.mark.parametrize(("dtype", "greatest"), [("float32", 255.0), ("float32", 1.0), ("uint8", 1.0)])
def test_bytes_are_taken_where_they_are_pixels(dtype: str, greatest: float) -> None:
    digits = real_digits(8)
    dataset = replace(
        digits.with_each_split(
            lambda one: replace(one, features={"images": (np.asarray(one.images) > 8).astype(dtype)})
        ),
        features={"images": ImageFeature.of((8, 8, 1), dtype, (0.0, greatest))},
    )
    signatures = Serving(small_cnn(dataset, one_device()), dataset).signatures()
    assert ("serve_uint8" in signatures) == (dtype == "uint8" or greatest == 255)


def test_encoded_images_get_the_range_of_the_data(tmp_path: Path) -> None:
    """Digits have pixels of 0 to 16; an image file of 0 to 255 is scaled to them."""
    dataset, model = real_digits(64), small_cnn(real_digits(64), one_device())
    saved = tf.saved_model.load(str(export(Trained(model, (), 1, 0), dataset, ExportSettings(), tmp_path).path))
    content = encoded(photo(8, 8, "L"), "PNG")
    pixels = np.stack(Decoder((8, 8, 1), "stretch")([content])).astype(np.float32) * 16 / 255  # type: ignore[arg-type]
    outputs = saved.signatures["serve_bytes"](encoded=tf.constant([content]))
    np.testing.assert_allclose(outputs["probabilities"], saved(tf.constant(pixels)), atol=1e-6)
