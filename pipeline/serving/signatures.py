"""Inputs of an exported model: pixels, encoded images, texts, or the columns of a table, which may be images too."""

import json
from typing import Any

from stages.settings.folders import IMAGE_SUFFIXES, TEXT_SUFFIXES
from stages.settings.table_files import NAMES

BYTES = "serve_bytes"
"""The signature of a SavedModel that accepts encoded images."""

DEFAULT = "serving_default"
"""The signature of a SavedModel that accepts its features as they are."""

WINDOWS = "windows"
"""Name of the facts, in `reading` of a SavedModel, from which windows of time series are made."""

QUANTILES = "quantiles"
"""Name of the quantiles that are predicted, among the same facts."""

TEXT = "text"
"""The only argument of a model of texts that are stored in one file each."""


def _arguments(loaded: Any, signature: str) -> dict[str, Any]:
    return dict(loaded.signatures[signature].structured_input_signature[1])


def images_among_columns(loaded: Any) -> set[str]:
    """Return the arguments that are encoded images of a SavedModel that accepts other columns, too."""
    encoded = _arguments(loaded, BYTES) if BYTES in loaded.signatures else {}
    if len(encoded) < 2:
        return set()
    return {name for name, spec in _arguments(loaded, DEFAULT).items() if spec.shape.rank == 4}


def row_signature(loaded: Any) -> str:
    """Return the signature of a SavedModel that accepts the rows of a table, with images encoded."""
    return BYTES if images_among_columns(loaded) else DEFAULT


def row_arguments(loaded: Any) -> dict[str, Any]:
    """Return the specifications of the arguments of `row_signature`, by name."""
    return _arguments(loaded, row_signature(loaded))


def accepts_columns(loaded: Any) -> bool:
    """Return whether a SavedModel accepts columns, with a value, a vector or an encoded image per row."""
    is_default = DEFAULT in loaded.signatures
    return is_default and all(spec.shape.rank <= 2 for spec in row_arguments(loaded).values())


def reading_of_model(loaded: Any) -> dict[str, Any]:
    """Return the facts of a SavedModel about the reading of its training data; empty for older exports."""
    known: dict[str, Any] = json.loads(loaded.reading.numpy()) if hasattr(loaded, "reading") else {}
    return known


def accepts_windows(loaded: Any) -> bool:
    """Return whether a SavedModel accepts windows of time series."""
    return WINDOWS in reading_of_model(loaded)


def accepts_texts(loaded: Any) -> bool:
    """Return whether a SavedModel accepts texts that are stored in one file each, as with `data=text_folder`."""
    known = {"delimiter": None} if not hasattr(loaded, "reading") else json.loads(loaded.reading.numpy())
    return "delimiter" not in known and accepts_columns(loaded) and [*row_arguments(loaded)] == [TEXT]


def suffixes_of(loaded: Any) -> tuple[str, ...]:
    """Return the suffixes of the files in a folder that a SavedModel accepts."""
    is_table = accepts_windows(loaded) or accepts_columns(loaded)
    return TEXT_SUFFIXES if accepts_texts(loaded) else NAMES if is_table else IMAGE_SUFFIXES
