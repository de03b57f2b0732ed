"""Features as JSON: what is written is read, also what earlier code has written, with facts in a dictionary."""

import json
from typing import Any

import numpy as np
import pytest

from stages.features.categories import CategoryBins, CategoryFeature
from stages.features.dates import DateFeature
from stages.features.images import ImageFeature
from stages.features.kinds import Feature, NumberBins
from stages.features.numbers import Moments, NumberFeature
from stages.features.schema import KINDS, feature_of, of_json, to_json
from stages.features.texts import TextFeature, Tokens, Words
from stages.features.vectors import VectorFeature
from stages.features.windows import CalendarFeature, WindowFeature
from stages.settings.data import NormalizeSettings

ONE = Moments(1.5, 2.0, 1.0, True)
BINS = NumberBins([0.0, 1.0], [0.25, 0.5, 0.25, 0.0])
FEATURES: dict[str, Feature] = {
    "size": NumberFeature(moments=ONE, column="size (m)", trained_on=BINS),
    "city": CategoryFeature(values=("a", ""), trained_on=CategoryBins(["a", ""], [1.0, *[0.0] * 11])),
    "grade": CategoryFeature("int64", (3, 1)),
    "review": TextFeature(vocabulary=Words(("good", "bad"), 4)),
    "tokens": TextFeature(vocabulary=Tokens("folder", "abc", 100, 7)),
    "signal": VectorFeature((2,), elements=(ONE, ONE)),
    "photo": ImageFeature(4, 5, 3, "float32", -1.0, 1.0, "crop", is_measured=True, trained_on=BINS),
    "raw": NumberFeature(),
    "history": WindowFeature((3, 2), ("sales", "price"), elements=(ONE, ONE), targets=1),
    "time": CalendarFeature((3,), (86400.0, 604800.0), span=1e8),
    "sold": DateFeature(
        "float64", ONE, date_format="%d.%m.%Y", time_zone="UTC", cycles={"year": NumberFeature(moments=ONE)}
    ),
}

STATISTICS = {"mean": 1.5, "std": 2.0, "median": 1.0, "has_missing": True}
BEFORE: dict[str, Any] = {
    "size": {"kind": "number", "dtype": "float64", "shape": [], "facts": {
        "column": "size (m)", **STATISTICS,
        "trained_on": {"kind": "number", "column": "size (m)", "borders": [0.0, 1.0], "shares": [0.25, 0.5, 0.25, 0.0]},
    }},
    "city": {"kind": "category", "dtype": "string", "shape": [], "facts": {
        "values": ["a", ""],
        "trained_on": {"kind": "category", "column": "city", "values": ["a", ""], "shares": [1.0, *[0.0] * 11]},
    }},
    "grade": {"kind": "category", "dtype": "int64", "shape": [], "facts": {"values": [3, 1]}},
    "review": {"kind": "text", "dtype": "string", "shape": [], "facts": {"words": ["good", "bad"], "length": 4}},
    "tokens": {"kind": "text", "dtype": "string", "shape": [], "facts": {
        "preset": "folder", "digest": "abc", "tokens": 100, "length": 7,
    }},
    "signal": {"kind": "vector", "dtype": "float64", "shape": [2], "facts": {"elements": [STATISTICS, STATISTICS]}},
}  # fmt: skip
"""The first six features as runs of earlier code have stored them."""


def test_what_is_written_is_read() -> None:
    assert of_json(json.loads(json.dumps(to_json(FEATURES)))) == FEATURES


@pytest.mark.parametrize("name", BEFORE)
def test_what_earlier_code_has_written_is_read(name: str) -> None:
    assert feature_of(BEFORE[name]) == FEATURES[name]


COLUMNS = {
    "number": np.arange(9.0), "date": np.arange(9.0) * 86_400, "category": np.array(["a", "b", "b"] * 3, object),
    "vector": np.arange(18.0).reshape(9, 2),
    "text": np.array(["a b", "b", ""] * 3, object), "image": np.zeros((9, 2, 2, 1), np.uint8),
    "window": np.arange(54.0).reshape(9, 3, 2), "calendar": np.arange(27).reshape(9, 3),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_keeps_what_it_has_learned(kind: str) -> None:
    column = COLUMNS[kind]
    dtype = "string" if column.dtype == object else str(column.dtype)
    more = {"range": (0, 255), "resize": "pad", "channels": ["a", "b"]}
    raw = feature_of({"kind": kind, "dtype": dtype, "shape": column.shape[1:], **more})
    learned = raw.learn("x", column, NormalizeSettings()) if raw.is_encodable else raw
    learned = learned.with_bins(column)
    assert learned != raw
    assert feature_of(json.loads(json.dumps(learned.to_json()))) == learned
