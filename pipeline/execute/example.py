"""The example of an exported model's input, which is stored with the model."""

import base64
import io
from typing import Any

import numpy as np

from stages.features.images import ImageFeature
from stages.features.kinds import Feature
from stages.results import Dataset


def input_example(dataset: Dataset) -> Any:
    """Return the first test example for JSON: pixels, or columns by name, in which images are PNGs in base64."""
    if dataset.images is not None:
        return dataset.test.images[:1].astype(np.float32).tolist()
    features = dataset.features
    return {name: _values(features[name], np.asarray(column[:1])) for name, column in dataset.test.features.items()}


def _values(feature: Feature, values: np.ndarray) -> list[Any]:
    if not isinstance(feature, ImageFeature) or feature.channels not in (1, 3):
        return list(values.tolist())
    from PIL import Image

    low, high = feature.ends
    pixels = np.clip((values.astype(np.float64) - low) * (255 / (high - low)), 0, 255).round().astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels[0, ..., 0] if feature.channels == 1 else pixels[0]).save(file, "PNG")
    return [base64.b64encode(file.getvalue()).decode()]
