"""What training sees is what the page on data says, and what an exported model sees of the same bytes, to the bit.

The expected pixels are made here by Pillow from the documentation alone: decoders and resizing differ from it by one
of 255, JPEGs in CMYK by more, as the conversion to RGB is another.
"""

import io
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from stages.data.convert import InvalidImageError
from stages.data.decode import Decoder
from stages.load.folders import image_folder
from stages.load.tfds import tfds
from stages.results import Dataset
from stages.settings.data import TfdsSettings
from tests.stages.images import encoded, exif, settings
from tests.stages.tfds_sets import IMAGE, LABEL, make_set

pytestmark = pytest.mark.slow

SIZES = ((48, 64), (211, 97), (7, 5), (320, 240), (16, 16), (150, 1000))
"""(height, width): smaller, larger and far larger than what training sees, and equal to it."""


def pixels(height: int, width: int, channels: int, seed: int, dtype: Any = np.uint8) -> np.ndarray:
    """Return smooth colors with noise on them, (height, width) for one channel."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [np.sin(rows / (3 + band) + columns / (5 + seed % 7)) * 80 + 128 for band in range(channels)]
    made = np.clip(np.stack(waves, -1) + random.normal(0, 20, (height, width, channels)), 0, 255)
    scale = 257 if dtype == np.uint16 else 1
    return np.squeeze((made * scale).astype(dtype), -1) if channels == 1 else made.astype(dtype)


def files() -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes) of images of every size, in every format, mode and orientation that is read."""
    for index, (height, width) in enumerate(SIZES):
        color = Image.fromarray(pixels(height, width, 3, index))
        alpha = Image.fromarray(pixels(height, width, 4, index))
        gray = Image.fromarray(pixels(height, width, 1, index))
        deep = Image.fromarray(pixels(height, width, 1, index, np.uint16))
        kinds: dict[str, tuple[Image.Image, dict[str, Any]]] = {
            "color.jpg": (color, {"quality": 85}), "fine.jpg": (color, {"quality": 95, "subsampling": 0}),
            "progressive.jpg": (color, {"progressive": True}), "cmyk.jpg": (color.convert("CMYK"), {}),
            "gray.jpg": (gray, {}), "turned.jpg": (color, {"exif": exif(1 + (index + 2) % 8)}),
            "color.png": (color, {}), "gray.png": (gray, {}), "deep.png": (deep, {}), "alpha.png": (alpha, {}),
            "palette.png": (color.convert("P"), {"transparency": 3}), "two.png": (gray.convert("1"), {}),
            "gray-alpha.png": (alpha.convert("LA"), {}), "palette.bmp": (color.convert("P"), {}),
            "color.bmp": (color, {}), "two.bmp": (gray.convert("1"), {}), "alpha.bmp": (alpha, {}),
            "lossless.webp": (color, {"lossless": True}), "turned.webp": (alpha, {"quality": 80, "exif": exif(6)}),
            "color.gif": (color, {}), "transparent.gif": (color.quantize(20), {"transparency": 3}),
            "moving.gif": (color, {"save_all": True, "append_images": [color.rotate(90)]}),
        }  # fmt: skip
        for name, (made, options) in kinds.items():
            kind = name.partition(".")[2].upper().replace("JPG", "JPEG")
            yield f"{height}x{width}-{name}", encoded(made, kind, **options)
    for orientation in range(1, 9):
        color = Image.fromarray(pixels(90, 130, 3, orientation))
        yield f"orientation-{orientation}.jpg", encoded(color, "JPEG", exif=exif(orientation))


def documented(content: bytes, size: tuple[int, int], channels: int, resize: str) -> np.ndarray:
    """Return what docs/how-it-works/data.md says that training sees; size is (height, width)."""
    with Image.open(io.BytesIO(content)) as opened:
        opened.load()
        upright = ImageOps.exif_transpose(opened)
    if upright.mode.startswith("I"):  # 16 bits: the upper 8
        upright = Image.fromarray((np.asarray(upright).astype(np.uint32) >> 8).astype(np.uint8))
    made = upright.convert("L" if channels == 1 else "RGB")
    wanted = (size[1], size[0])
    if resize == "crop":
        made = ImageOps.fit(made, wanted, Image.Resampling.BILINEAR)
    elif resize == "pad":
        made = ImageOps.pad(made, wanted, Image.Resampling.BILINEAR)
    else:
        made = made.resize(wanted, Image.Resampling.BILINEAR)
    return np.asarray(made).reshape(*size, channels)


def rows(dataset: Dataset) -> np.ndarray:
    """Return every image of a data set, sorted by its bytes: splits are apart from what is tested here."""
    every = np.concatenate([split.images[:] for split in dataset.splits.values()])
    images: list[np.ndarray] = sorted(every, key=lambda image: image.tobytes())
    return np.stack(images)


@pytest.fixture(scope="module")
def contents() -> dict[str, bytes]:
    return dict(files())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, contents: dict[str, bytes]) -> Path:
    root = tmp_path_factory.mktemp("images")
    for index, (name, content) in enumerate(contents.items()):
        (root / f"class {index % 2}").mkdir(exist_ok=True)
        (root / f"class {index % 2}" / name).write_bytes(content)
    return root


@pytest.fixture(scope="module")
def tfds_folder(tmp_path_factory: pytest.TempPathFactory, contents: dict[str, bytes]) -> Path:
    root = tmp_path_factory.mktemp("tfds")
    examples = [{"image": content, "label": index % 2} for index, content in enumerate(contents.values())]
    make_set(root, {"train": examples}, {"image": IMAGE, "label": LABEL}, file_format="array_record")
    return root


def pixels_of(content: bytes, image_shape: tuple[int, int, int], resize: str = "stretch") -> np.ndarray:
    """Return what training sees of one file."""
    [image] = Decoder(image_shape, resize)([content])
    assert isinstance(image, np.ndarray), image
    return image


@pytest.mark.parametrize(
    ("resize", "size", "channels"), [("stretch", (16, 16), 3), ("crop", (31, 50), 3), ("pad", (160, 96), 1)]
)
def test_training_sees_the_documented_pixels(
    resize: str, size: tuple[int, int], channels: int, contents: dict[str, bytes], folder: Path, tmp_path: Path
) -> None:
    shape = (*size, channels)
    together = dict(zip(contents, Decoder(shape, resize)(list(contents.values())), strict=True))
    for name, content in contents.items():
        np.testing.assert_array_equal(together[name], pixels_of(content, shape, resize), err_msg=name)
        expected = documented(content, size, channels, resize).astype(int)
        difference = np.abs(expected - together[name])
        assert difference.max() <= (1 if "cmyk" not in name else 40), name
    images: list[np.ndarray] = sorted(together.values(), key=lambda image: image.tobytes())  # type: ignore[arg-type]
    given = settings(folder, size=list(size), channels=channels, resize=resize)
    np.testing.assert_array_equal(rows(image_folder(given, cache=tmp_path)), np.stack(images))  # prepared


@pytest.mark.smoke
def test_an_image_of_the_right_size_is_not_resampled() -> None:
    for made in (pixels(16, 20, 3, 1), pixels(16, 20, 1, 1)[..., None]):
        content = encoded(Image.fromarray(np.squeeze(made)), "PNG")
        for resize in ("stretch", "crop", "pad"):
            np.testing.assert_array_equal(pixels_of(content, made.shape, resize), made)


@pytest.mark.smoke
@pytest.mark.parametrize("order", ["<", ">"])
def test_an_image_is_turned_by_its_exif_data_alone(order: str) -> None:
    """All values, and data that say nothing of it."""
    content = encoded(Image.fromarray(pixels(40, 60, 3, 1)), "JPEG", quality=95)
    plain = pixels_of(content, (40, 60, 3))

    def tagged(*tags: tuple[int, int, int], begin: bytes = b"Exif\0\0") -> bytes:
        head = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}I", 8)
        entries = b"".join(struct.pack(f"{order}HHIHH", tag, kind, 1, value, 0) for tag, kind, value in tags)
        data = begin + head + struct.pack(f"{order}H", len(tags)) + entries + bytes(4)
        return content[:2] + b"\xff\xe1" + struct.pack(">H", len(data) + 2) + data + content[2:]

    for value in range(10):
        expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(tagged((0x0112, 3, value))))))
        size = expected.shape[:2]
        for file in (tagged((0x0112, 3, value)), tagged((0x010F, 3, 7), (0x0112, 3, value), (0x0213, 3, 1))):
            np.testing.assert_array_equal(pixels_of(file, (*size, 3)), expected, err_msg=str(value))
    without = [tagged(), tagged((0x0132, 3, 6)), tagged((0x0112, 2, 6)), tagged((0x0112, 3, 6), begin=b"Exim\0\0")]
    for file in without:
        np.testing.assert_array_equal(pixels_of(file, (40, 60, 3)), plain)


def test_what_cannot_be_decoded_is_told_apart_from_the_rest_of_its_batch() -> None:
    good = encoded(Image.fromarray(pixels(20, 30, 3, 1)), "JPEG")
    invalid = {
        b"": "the file is empty",
        b"no image": "the file is not one of JPEG, PNG, BMP, GIF, WEBP",
        good[:300]: "runcated",
        encoded(Image.fromarray(pixels(20, 30, 3, 1)), "PNG")[:300]: "",
        encoded(Image.fromarray(pixels(20, 30, 3, 1)), "TIFF"): "the file is not one of",
    }
    results = Decoder((12, 16, 3), "stretch")([good, *invalid, good])
    np.testing.assert_array_equal(results[0], results[-1])
    for result, why in zip(results[1:-1], invalid.values(), strict=True):
        assert isinstance(result, InvalidImageError)
        assert why in str(result)


@pytest.mark.parametrize("source", ["image_folder", "tfds"])
def test_prepared_held_and_streamed_images_are_the_same(
    source: str, contents: dict[str, bytes], folder: Path, tfds_folder: Path, tmp_path: Path
) -> None:
    expected = sorted((pixels_of(one, (24, 20, 3)) for one in contents.values()), key=lambda x: x.tobytes())
    for cache, memory_gib in (("disk", None), ("disk", 0.0), ("off", None)):
        more: dict[str, Any] = {"size": [24, 20], "cache": cache, "memory_gib": memory_gib}
        if source == "tfds":
            dataset = tfds(TfdsSettings(name="made", dir=str(tfds_folder), **more), cache=tmp_path)
        else:
            dataset = image_folder(settings(folder, **more), cache=tmp_path)
        assert isinstance(dataset.train.images, np.ndarray) == (memory_gib is None)
        np.testing.assert_array_equal(rows(dataset), np.stack(expected))


def test_a_cache_of_another_decoder_is_not_used(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image_folder(settings(folder), cache=tmp_path)
    for name in ("stages.data.decode.VERSION", "PIL.__version__"):
        before = len(list(tmp_path.glob("images-*")))
        monkeypatch.setattr(name, "another")
        image_folder(settings(folder), cache=tmp_path)
        assert len(list(tmp_path.glob("images-*"))) == before + 1
