"""The examples of an exported model's input, and of a request to `serve`, which are stored with the model."""

import base64
import io
import math
from typing import Any

import numpy as np

from stages.features.images import ImageFeature
from stages.features.kinds import Feature
from stages.results import Dataset
from stages.settings.date_formats import DateFormat


def input_example(dataset: Dataset) -> Any:
    """Return the first test example for JSON: pixels, or columns by name, in which images are PNGs in base64."""
    if dataset.images is not None:
        return dataset.test.images[:1].astype(np.float32).tolist()
    features = dataset.features
    return {name: _values(features[name], np.asarray(column[:1])) for name, column in dataset.test.features.items()}


def request_example(dataset: Dataset) -> Any:
    """Return the first test example for JSON as `serve` reads it: as `input_example`, but dates as texts, as in tables.

    The model itself, and MLflow's own server, take seconds.
    """
    example = input_example(dataset)
    patterns, zones = (dataset.reading.get(name) or {} for name in ("date_format", "time_zone"))
    for name, feature in dataset.features.items():
        column = feature.column_name(name)
        if column in patterns:
            form = DateFormat(patterns[column], zones.get(column, ""))
            example[name] = [None if math.isnan(value) else form.written(value) for value in example[name]]
    return example


def _values(feature: Feature, values: np.ndarray) -> list[Any]:
    if not isinstance(feature, ImageFeature) or feature.channels not in (1, 3):
        return list(values.tolist())
    from PIL import Image

    low, high = feature.ends
    pixels = np.clip((values.astype(np.float64) - low) * (255 / (high - low)), 0, 255).round().astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels[0, ..., 0] if feature.channels == 1 else pixels[0]).save(file, "PNG")
    return [base64.b64encode(file.getvalue()).decode()]
