"""The signatures of the SavedModel: types, names, encoded images as training decodes them."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel as SavedModelFile

from stages.data.decode import ORIENTATION, Decoder
from stages.export import export
from stages.exporters.encoded_images import decode
from stages.exporters.saved_model import SavedModel
from stages.load.synthetic import synthetic
from stages.networks.keras_internals import all_layers
from stages.optimization.losses import probabilities
from stages.results import Dataset, Model, Trained
from stages.settings.data import SyntheticSettings
from stages.settings.results import ExportSettings
from tests.stages.experiments import one_device, real_digits, small_cnn

pytestmark = pytest.mark.slow

NAMES = ("null", "один", "$3$", "d")


def photo(height: int, width: int, mode: str = "RGB") -> Image.Image:
    """Returns a smooth random image, as a photograph is."""
    small = np.random.default_rng(height * width).integers(0, 256, (6, 7, 4), dtype=np.uint8)
    return Image.fromarray(small, "RGBA").resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def with_orientation(image: Image.Image, kind: str, value: int) -> bytes:
    exif = Image.Exif()
    exif[0x010F], exif[ORIENTATION] = "a camera", value
    return encoded(image, kind, exif=exif)


@pytest.fixture(scope="module")
def photos() -> Dataset:
    data = SyntheticSettings(examples=60, test_examples=40, height=20, width=24, num_classes=4)
    return replace(synthetic(data), class_names=NAMES, resize="crop")


@pytest.fixture(scope="module")
def trained(photos: Dataset) -> Model:
    return small_cnn(photos, one_device())


@pytest.fixture(scope="module")
def loaded(photos: Dataset, trained: Model, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("run")
    return tf.saved_model.load(str(export(Trained(trained, (), 1, 0), photos, ExportSettings(), folder).path))


def test_pixels_of_both_types_give_the_named_outputs(photos: Dataset, trained: Model, loaded: Any) -> None:
    images = np.asarray(photos.test.images[:7])
    expected = probabilities(trained.network(images.astype(np.float32)), trained.outputs).numpy()
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
        encoded(photo(33, 70), "JPEG"),
        encoded(photo(20, 24, "RGBA"), "PNG"),
        with_orientation(photo(50, 31), "JPEG", 6),
    ]
    pixels = np.stack([Decoder((20, 24, 3), "crop")(content) for content in contents])
    outputs = loaded.signatures["serve_bytes"](encoded=tf.constant(contents))
    np.testing.assert_array_equal(outputs["probabilities"], loaded(tf.constant(pixels)))


@pytest.mark.smoke
@pytest.mark.parametrize(
    "content",
    [b"", b"no image", encoded(photo(40, 40), "JPEG")[:200], encoded(photo(40, 40), "PNG")[:200]],
    ids=["empty", "text", "half a JPEG", "half a PNG"],
)
def test_what_is_no_whole_image_is_an_error(loaded: Any, content: bytes) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError):
        loaded.signatures["serve_bytes"](encoded=tf.constant([content]))


def test_a_bomb_is_refused_by_its_header(loaded: Any) -> None:
    """A PNG of a kilobyte that says it has a thousand million pixels takes no memory for them."""
    bomb = bytearray(encoded(photo(8, 8), "PNG"))
    bomb[16:24] = (30_000).to_bytes(4) + (40_000).to_bytes(4)
    with pytest.raises(tf.errors.InvalidArgumentError, match="over 80 million pixels"):
        loaded.signatures["serve_bytes"](encoded=tf.constant([bytes(bomb)]))


def test_encoded_images_get_the_range_of_the_data(tmp_path: Path) -> None:
    """Digits have pixels of 0 to 16; an image file of 0 to 255 is scaled to them."""
    dataset, model = real_digits(64), small_cnn(real_digits(64), one_device())
    saved = tf.saved_model.load(str(export(Trained(model, (), 1, 0), dataset, ExportSettings(), tmp_path).path))
    content = encoded(photo(8, 8, "L"), "PNG")
    pixels = Decoder((8, 8, 1), "stretch")(content)[None].astype(np.float32) * 16 / 255
    outputs = saved.signatures["serve_bytes"](encoded=tf.constant([content]))
    np.testing.assert_allclose(outputs["probabilities"], saved(tf.constant(pixels)), atol=1e-6)


Decode = Callable[[bytes], np.ndarray]


def in_graph(shape: tuple[int, int, int], resize: str) -> Decode:
    function = tf.function(
        lambda content: decode(content, shape, resize), [tf.TensorSpec((), tf.string)], autograph=False
    )
    return lambda content: function(content).numpy()


KINDS: dict[str, Callable[[int, int], bytes]] = {
    "JPEG": lambda h, w: encoded(photo(h, w), "JPEG"),
    "JPEG, progressive, 4:4:4": lambda h, w: encoded(photo(h, w), "JPEG", progressive=True, subsampling=0),
    "gray JPEG": lambda h, w: encoded(photo(h, w, "L"), "JPEG"),
    "PNG": lambda h, w: encoded(photo(h, w), "PNG"),
    "gray PNG": lambda h, w: encoded(photo(h, w, "L"), "PNG"),
    "transparent PNG": lambda h, w: encoded(photo(h, w, "RGBA"), "PNG"),
    "gray transparent PNG": lambda h, w: encoded(photo(h, w, "LA"), "PNG"),
    "PNG with a palette": lambda h, w: encoded(photo(h, w).convert("P"), "PNG"),
    "PNG of 16 bits": lambda h, w: encoded(
        Image.fromarray((np.arange(h * w).reshape(h, w) * 37 % 65536).astype(np.uint16)), "PNG"
    ),
    "turned JPEG": lambda h, w: with_orientation(photo(h, w), "JPEG", 8),
    "turned PNG": lambda h, w: with_orientation(photo(h, w), "PNG", 5),
    "BMP": lambda h, w: encoded(photo(h, w), "BMP"),
    "gray BMP": lambda h, w: encoded(photo(h, w, "L"), "BMP"),
    "BMP of 32 bits": lambda h, w: encoded(photo(h, w).convert("RGBA"), "BMP"),
    "BMP with a palette": lambda h, w: encoded(photo(h, w).convert("P"), "BMP"),
    "BMP with a palette of 5": lambda h, w: encoded(photo(h, w).quantize(5), "BMP"),
    "GIF": lambda h, w: encoded(photo(h, w).convert("P"), "GIF"),
    "transparent GIF": lambda h, w: encoded(photo(h, w).quantize(20), "GIF", transparency=3),
    "GIF of transparent frames": lambda h, w: encoded(
        photo(h, w).quantize(9), "GIF", save_all=True, append_images=[photo(h, w, "L")], transparency=1, disposal=2
    ),
}


def with_bytes(content: bytes, place: int, *values: int) -> bytes:
    return content[:place] + bytes(values) + content[place + len(values) :]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (encoded(photo(32, 24).convert("1"), "BMP"), "a BMP of 1 bits"),
        (with_bytes(encoded(photo(32, 24).convert("P"), "BMP"), 28, 4), "a BMP of 4 bits"),
        (with_bytes(encoded(photo(32, 24), "BMP"), 28, 16), "a BMP of 16 bits"),
        (with_bytes(encoded(photo(32, 24).convert("P"), "BMP"), 30, 1), "compression 1 "),
        (with_bytes(encoded(photo(32, 24), "BMP"), 14, 12), "a header of 12 bytes"),
        (with_bytes(encoded(photo(32, 24).convert("P"), "BMP"), 46, 3), "color table of 3"),
        (encoded(photo(32, 24), "BMP")[:20], "a BMP of 0 bits"),
    ],
)
def test_a_bmp_that_tensorflow_would_read_otherwise_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=said):
        in_graph((32, 24, 3), "stretch")(content)


def gif(screen: tuple[int, int], frame: tuple[int, int, int, int]) -> bytes:
    """Returns a GIF of 20×30 pixels that says it has these width and height, and of its frame left, top and both."""
    begin = encoded(photo(30, 20).convert("1").convert("P"), "GIF")
    place = begin.index(b",", 13 + 3 * 2 ** (begin[10] % 8 + 1))
    sides = b"".join(side.to_bytes(2, "little") for side in (*screen, *frame))
    return begin[:6] + sides[:4] + begin[10 : place + 1] + sides[4:] + begin[place + 9 :]


def test_the_graph_reads_what_training_reads_and_nothing_else() -> None:
    """Formats that TensorFlow knows beside these, GIFs whose first frame is a part, and bombs of few bytes."""
    graph, training = in_graph((12, 10, 3), "stretch"), Decoder((12, 10, 3), "stretch")
    photos = [photo(30, 20), photo(20, 30)]
    comment = encoded(photos[0].convert("P"), "GIF", comment=b"c" * 700)
    for content in (comment, encoded(photos[0], "GIF", save_all=True, append_images=photos[1:])):
        np.testing.assert_array_equal(graph(content), training(content))
    np.testing.assert_array_equal(graph(gif((20, 30), (0, 0, 20, 30))), training(gif((20, 30), (0, 0, 20, 30))))
    part = "a GIF whose first frame does not fill it"
    refused = {
        encoded(photos[0], "WEBP"): "no JPEG, PNG, BMP or GIF",
        b"\xff\x0a" + bytes(40): "no JPEG, PNG, BMP or GIF",  # JPEG XL
        gif((20, 30), (5, 5, 10, 10)): part,
        gif((20, 30), (0, 0, 20, 29)): part,
        comment[: comment.index(b"ccc")]: part,
        gif((20_000, 20_000), (0, 0, 20_000, 20_000)): "over 80 million pixels",
    }
    for content, said in refused.items():
        with pytest.raises(tf.errors.InvalidArgumentError, match=said):
            graph(content)


@pytest.mark.parametrize("resize", ["stretch", "crop", "pad"])
@pytest.mark.parametrize("shape", [(32, 24, 3), (28, 28, 1)], ids=["color", "gray"])
def test_the_graph_decodes_to_the_bit_as_training_does(resize: str, shape: tuple[int, int, int]) -> None:
    """Shrunk and enlarged, by more rows than columns (Pillow 13 then resamples rows first) and by fewer."""
    graph, training = in_graph(shape, resize), Decoder(shape, resize)
    for kind, make in KINDS.items():
        for height, width in ((130, 61), (53, 201), (31, 30), (32, 24), (9, 11)):
            content = make(height, width)
            np.testing.assert_array_equal(graph(content), training(content), f"{kind}, {height}×{width}")


def test_orientations_are_those_of_training() -> None:
    graph, training = in_graph((12, 16, 3), "stretch"), Decoder((12, 16, 3), "stretch")
    for value in (*range(10), 70000 % 65536):
        for kind in ("JPEG", "PNG"):
            content = with_orientation(photo(40, 60), kind, value)
            np.testing.assert_array_equal(graph(content), training(content), f"{kind} {value}")
    broken = bytearray(with_orientation(photo(40, 60), "JPEG", 6))
    begin = broken.index(b"Exif\x00\x00") + 6
    for damage in (b"\xff" * 8, b"II*\x00\xff\xff\xff\x7f", b"MM\x00*\x00\x00\xff\xff"):
        broken[begin : begin + 8] = damage
        assert graph(bytes(broken)).shape == (12, 16, 3)
