"""Plain PNGs that TensorFlow decodes together have the pixels that Pillow gives them; all others are left to Pillow."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from stages.data import plain_png
from stages.data.decode import Decoder
from stages.images import _describe, digest
from stages.load.tfds import TfdsSource
from stages.settings.data import TfdsSettings
from tests.stages.tfds_sets import image, label, make_set

GRAY, RGB = (7, 5, 1), (6, 9, 3)


def pixels(shape: tuple[int, int, int], seed: int) -> np.ndarray:
    """Returns noise, a ramp or one color, uint8: PNG's filters differ by what is in a row."""
    height, width, channels = shape
    random = np.random.default_rng(seed)
    ramp = np.add.outer(np.arange(height) * 9, np.arange(width) * 7)[..., None] + np.arange(channels)
    return np.asarray(
        [random.integers(0, 256, shape), ramp % 256, np.full(shape, seed % 256)][seed % 3], np.uint8
    ).reshape(shape)


def png(made: np.ndarray, mode: str | None = None, **options: object) -> bytes:
    file = io.BytesIO()
    drawn = Image.fromarray(made.squeeze(-1) if made.shape[-1] == 1 else made)
    (drawn.convert(mode) if mode else drawn).save(file, "PNG", **options)
    return file.getvalue()


@pytest.mark.parametrize("shape", [GRAY, RGB])
def test_plain_ones_have_pillows_pixels(shape: tuple[int, int, int]) -> None:
    made = [pixels(shape, seed) for seed in range(12)]
    contents = [png(one, compress_level=seed % 10, optimize=seed % 2 == 0) for seed, one in enumerate(made)]
    decoded = plain_png.decode(contents, shape)
    assert decoded is not None
    decoder = Decoder(shape, "stretch")
    for row, one, content in zip(decoded, made, contents, strict=True):
        assert row.tobytes() == one.tobytes() == decoder(content).tobytes()


def sixteen_bits() -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels(GRAY, 1).squeeze(-1).astype(np.uint16)).save(file, "PNG")
    return file.getvalue()


def others() -> Iterator[bytes]:
    gray, color = pixels(GRAY, 1), pixels(RGB, 1)
    notes = PngImagePlugin.PngInfo()
    notes.add_text("a", "b")
    yield png(gray, pnginfo=notes)
    yield png(color)  # of another size and of other channels
    yield png(pixels((5, 7, 1), 1))
    yield png(gray, "P")
    yield png(gray, "LA")
    yield png(gray, "1")
    yield png(gray, transparency=3)
    yield sixteen_bits()
    yield png(gray) + b"\0"
    yield b""


def test_others_are_left_to_pillow() -> None:
    plain = png(pixels(GRAY, 1))
    assert plain_png.is_plain(plain, GRAY)
    for content in others():
        assert not plain_png.is_plain(content, GRAY)
        assert plain_png.decode([plain, content], GRAY) is None
    assert plain_png.decode([], GRAY) is None


def test_damaged_ones_are_left_to_pillow_or_are_what_it_makes_of_them() -> None:
    plain = png(pixels(GRAY, 1))
    decoder = Decoder(GRAY, "stretch")
    damaged = [plain[:end] for end in range(len(plain))]
    damaged += [
        plain[:place] + bytes([plain[place] ^ 1 << bit]) + plain[place + 1 :]
        for place in range(len(plain))
        for bit in (0, 5)
    ]
    left = 0
    for content in damaged:
        decoded = plain_png.decode([content], GRAY)
        if decoded is None:
            left += 1
        else:
            assert decoded[0].tobytes() == decoder(content).tobytes()
    assert left > len(damaged) / 2


def test_a_source_reads_together_what_it_reads_one_by_one(tmp_path: Path) -> None:
    contents = [png(pixels(GRAY, seed)) for seed in range(6)] + [png(pixels(GRAY, 6), "P"), b"damaged"]
    examples = [{"image": content, "label": seed % 2} for seed, content in enumerate(contents)]
    make_set(tmp_path, {"train": examples}, {"image": image(*GRAY), "label": label()})
    source = TfdsSource(TfdsSettings(name="made", dir=str(tmp_path)))
    source.listing()
    together = source.read_together(np.array([5, 0, 3]))
    assert together is not None
    assert together.tobytes() == b"".join(source.read(number).tobytes() for number in (5, 0, 3))
    assert source.read_together(np.array([0, 6])) is None
    assert source.read_together(np.array([7, 0])) is None


def test_moments_do_not_depend_on_what_is_described_together() -> None:
    for shape in (GRAY, RGB, (300, 301, 3)):
        made = np.stack([pixels(shape, seed) for seed in range(5)])
        for one, (number, moments) in zip(made, _describe(made), strict=True):
            wide = one.reshape(-1, shape[-1]).astype(np.float64)
            assert number == digest(one)
            assert (
                moments.tobytes()
                == np.stack([wide.mean(axis=0), np.einsum("pc,pc->c", wide, wide) / len(wide)]).tobytes()
            )
