"""Tables with images, texts, numbers and categories, whose target depends on all of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image
from sklearn.datasets import load_digits

from stages.load.table import table
from stages.normalize import normalize
from stages.reporter import Reporter
from stages.results import Dataset
from stages.settings.data import NormalizeSettings
from stages.settings.table import TableSettings

IMAGE, TWO_IMAGES = {"front": "image"}, {"front": "image", "back": "image"}
WORDS = ("dark", "bright", "old", "new", "large")


def write_table(folder: Path, rows: int = 150, seed: int = 1) -> pd.DataFrame:
    """Write `homes.csv` and the images that it names, real digits, below `photos`; return the table."""
    random = np.random.default_rng(seed)
    digits = load_digits()
    frame = pd.DataFrame({
        "size": random.normal(100, 20, rows).round(2),
        "town": random.choice(["Ulm", "Köln", "Rom"], rows),
    })  # fmt: skip
    frame.loc[::17, "size"] = np.nan
    value = np.zeros(rows)
    for column in ("front", "back"):
        (folder / "photos" / column).mkdir(parents=True, exist_ok=True)
        chosen = random.choice(len(digits.target), rows, replace=False)
        for row, place in enumerate(chosen):
            pixels = np.uint8(digits.images[place] * 15)
            Image.fromarray(pixels).resize((16, 16)).save(folder / "photos" / column / f"{row}.png")
        frame[column] = [f"{column}/{row}.png" for row in range(rows)]
        value += digits.target[chosen] * (1 if column == "front" else 2)
    frame["note"] = [" ".join(random.choice(WORDS, 4)) for _ in range(rows)]
    value += frame["note"].str.count("bright") * 3 + frame["size"].fillna(100) / 10 + (frame["town"] == "Rom") * 5
    frame["price"] = value.round(3)
    frame.to_csv(folder / "homes.csv", index=False)
    return frame


def load(
    folder: Path, kinds: dict[str, str], reporter: Reporter | None = None, cache: Path | None = None, **given: Any
) -> Dataset:
    """Return the data set of `write_table`; the kinds of its other columns are detected."""
    others = dict.fromkeys({"front", "back"} - {*kinds}, "leave_out")
    settings = TableSettings(
        files=str(folder / "homes.csv"),
        **{
            "target": "price", "root": str(folder / "photos"), "features": {**others, **kinds}, "only_images": False,
            "size": 16, **given,
        },
    )  # fmt: skip
    settings.check("data")
    return table(settings, reporter, folder, cache)


def prepared(folder: Path, kinds: dict[str, str], rows: int = 150, **given: Any) -> Dataset:
    """Return the data set of `write_table`, encoded."""
    write_table(folder, rows)
    return normalize(load(folder, kinds, **given), NormalizeSettings())
