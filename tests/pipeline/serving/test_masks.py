"""Masks of photos: PNGs at the size of each photo, a table of their pixels, and masks in JSON."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline.commands import predict
from pipeline.serving import models
from pipeline.serving.masks import NO_CLASS, as_png, original_size, size_of
from pipeline.serving.server import Watch, _scores, predictor
from pipeline.tracking.params import shape_of
from stages.data.decode import Decoder
from stages.exporters.saved_model import SavedModel
from stages.plots.galleries import class_colors
from tests.pipeline.experiments import write_run
from tests.stages.experiments import after_steps, one_device, settings
from tests.stages.images import encoded, exif
from tests.stages.networks.test_maps import areas, small_unet

NAMES = ("ground", "bar", "pole")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("masks") / "runs" / "day" / "areas")
    model, _ = after_steps(one_device(), areas(), settings(batch_size=16), 30, small_unet)
    (folder / "export").mkdir(exist_ok=True)
    SavedModel().write(model, areas(), folder / "export" / "saved_model")
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three images of the test split: enlarged, turned by its EXIF tag, and of another name's size."""
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    first, second, third = (Image.fromarray(image) for image in np.asarray(areas().test.images[:3]))
    first.resize((40, 36), Image.Resampling.NEAREST).save(folder / "a.png")
    second.rotate(90, expand=True).save(folder / "b.jpg", quality=95, exif=exif(6))
    third.save(folder / "more" / "a.bmp")
    return folder


def test_a_folder_of_photos_becomes_masks_of_their_size(
    run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert predict.main([str(run), str(photos), f"--output={out}"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [Path(line[0]).name for line in lines] == ["a.png", "b.jpg", "a.bmp"]
    assert sorted(path.name for path in out.iterdir()) == ["a.bmp.png", "a.png", "b.png", "pixels.csv"]
    masks = {path.stem: Image.open(path) for path in out.glob("*.png")}
    assert {name: mask.size for name, mask in masks.items()} == {"a": (40, 36), "b": (10, 12), "a.bmp": (10, 12)}
    assert {mask.mode for mask in masks.values()} == {"P"}
    loaded = models.load(run / "export" / "saved_model")
    decoder = Decoder((12, 10, 3), "stretch")
    for name, photo in {"b": "b.jpg", "a.bmp": "more/a.bmp"}.items():
        [pixels] = decoder([(photos / photo).read_bytes()])
        assert isinstance(pixels, np.ndarray)
        expected = models.outputs_of(loaded, {"images": pixels[None].astype(np.float32)})["mask"][0]
        np.testing.assert_array_equal(np.asarray(masks[name]), expected)
    rows = [*csv.DictReader((out / "pixels.csv").open())]
    assert [row["mask"] for row in rows] == ["a.png", "b.png", "a.bmp.png"]
    for row, line in zip(rows, lines, strict=True):
        counts = np.bincount(np.asarray(masks[row["mask"].removesuffix(".png")]).ravel(), minlength=3)
        assert [int(row[name]) for name in NAMES] == counts.tolist()
        shares = dict(zip(line[1::2], map(float, line[2::2]), strict=True))
        assert shares == pytest.approx(
            {name: count / counts.sum() for name, count in zip(NAMES, counts, strict=True) if count},
            abs=1e-4,
        )
    palette = np.array(masks["b"].getpalette()).reshape(-1, 3)
    np.testing.assert_array_equal(palette, class_colors()[: len(palette)])


def test_without_a_folder_only_shares_are_printed(run: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert predict.main([str(run), str(photos / "b.jpg"), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert sum(row["pixels"].values()) == 120
    assert row["pixels"].keys() <= {*NAMES}
    assert predict.main([str(run), str(photos / "b.jpg"), "--output=masks.csv"]) == 2
    message = "--output=masks.csv is not supported for a model of images"
    assert message in capsys.readouterr().err


def test_a_server_returns_masks(run: Path, photos: Path) -> None:
    loaded = models.load(run / "export" / "saved_model")
    pixels = np.asarray(areas().test.images[:2], np.float32)
    expected = models.outputs_of(loaded, {"images": pixels})["mask"]
    watch = Watch(models.drift_of(loaded))
    np.testing.assert_array_equal(predictor(loaded, watch)(pixels), expected)
    answers: Any = _scores(models.encoded_function(loaded), [encoded(Image.fromarray(np.uint8(pixels[0])), "PNG")])
    assert answers == [{"mask": expected[0].tolist()}]
    assert json.dumps(answers)


@pytest.mark.parametrize("resize", ["stretch", "crop", "pad"])
@pytest.mark.parametrize("size", [(60, 90), (90, 60), (7, 40), (48, 48)])
def test_a_mask_lies_on_its_photo_however_that_was_resized(resize: str, size: tuple[int, int]) -> None:
    """A photo of two halves, decoded as in training: its own classes, put back, are the halves."""
    height, width = size
    halves = np.zeros((height, width), np.uint8)
    halves[height // 2 :] += 1
    halves[:, width // 2 :] += 2
    content = encoded(Image.fromarray(halves * 80), "PNG")
    [pixels] = Decoder((48, 48, 1), resize)([content])
    assert isinstance(pixels, np.ndarray)
    mask = np.rint(pixels[..., 0] / 80).astype(np.uint8)
    whole = original_size(mask, size_of(content), resize)
    assert whole.shape == size
    is_seen = whole != NO_CLASS
    assert is_seen.all() if resize != "crop" or height == width else is_seen.any(axis=min(1, int(height > width))).any()
    near = np.abs(np.arange(height) + 0.5 - height / 2)[:, None], np.abs(np.arange(width) + 0.5 - width / 2)[None]
    is_far = (near[0] > max(2, height / 30)) & (near[1] > max(2, width / 30))
    np.testing.assert_array_equal(whole[is_seen & is_far], halves[is_seen & is_far])


def test_a_mask_is_a_png_of_its_classes() -> None:
    mask = np.array([[0, 1], [2, NO_CLASS]], np.uint8)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(as_png(mask)))), mask)


def test_a_signature_has_the_shape_of_the_probabilities() -> None:
    assert shape_of({"probabilities": "float32[12, 10, 3]", "mask": "uint8[12, 10]"}, 3) == [12, 10, 3]
    assert shape_of({"probabilities": "float32[10]", "class_name": "string", "score": "float32"}, 10) == [10]
    assert shape_of(None, 4) == [4]
