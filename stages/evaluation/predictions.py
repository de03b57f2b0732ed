"""`predictions.parquet`: what a model predicts for each test example, and which test set that is."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stages.evaluation.eval_step import Scores, Sink
from stages.results import Split
from stages.storage.atomic import atomic_write

NAME = "predictions.parquet"


def write_predictions(path: Path, split: Split, class_names: Sequence[str], score: Callable[[Sink], Scores]) -> Scores:
    """Writes the predictions that `score` makes of `split`, whole or not at all; returns what it returns.

    One row an example, in the split's order: `example`, its number in the source (int64; its place in the split where
    the source has none); `file`, where the source has files; `label` and `predicted` (int32); `probabilities`, float32
    [classes]. The class names and the facts of `facts_of` are in the metadata of the file's schema. A chunk of rows is
    written as it is computed, so that memory does not grow with the split.

    Args:
        score: gets the function that takes predictions.
    """
    schema = pa.schema(
        [
            ("example", pa.int64()),
            *([("file", pa.string())] if split.files is not None else []),
            ("label", pa.int32()),
            ("predicted", pa.int32()),
            ("probabilities", pa.list_(pa.float32(), len(class_names))),
        ],
        metadata={"class_names": json.dumps(list(class_names)), **facts_of(split)},
    )
    numbers = _numbers(split)
    results: list[Scores] = []

    def make(partial: Path) -> None:
        with pq.ParquetWriter(partial, schema) as writer:
            written = 0

            def add(probabilities: np.ndarray, predicted: np.ndarray) -> None:
                nonlocal written
                rows = slice(written, written + len(predicted))
                columns = {
                    "example": pa.array(numbers[rows]),
                    "file": pa.array(list(split.files[rows])) if split.files is not None else None,
                    "label": pa.array(split.labels[rows], pa.int32()),
                    "predicted": pa.array(predicted, pa.int32()),
                    "probabilities": pa.FixedSizeListArray.from_arrays(
                        pa.array(np.ascontiguousarray(probabilities).ravel()), len(class_names)
                    ),
                }
                writer.write_table(pa.table([columns[name] for name in schema.names], schema=schema))
                written += len(predicted)

            results.append(score(add))

    atomic_write(path, make)
    return results[0]


def facts_of(split: Split) -> dict[str, str]:
    """Returns what tells a test set from others: digests of its examples and of their pixels.

    test_examples: of numbers (or files) and labels, in order. test_pixels: the images' shape and a digest of all
    pixels, which are others for the same examples at another size; empty where nobody has read them all.
    """
    content = hashlib.blake2b(digest_size=16)
    content.update("\n".join(split.files).encode(errors="surrogateescape") if split.files else _numbers(split).data)
    content.update(np.ascontiguousarray(split.labels, np.int32).data)
    facts = {"test_examples": content.hexdigest(), "test_pixels": ""}
    if split.cached is not None or isinstance(split.images, np.ndarray):
        pixels = hashlib.blake2b(split.described.digests.data, digest_size=16).hexdigest()
        facts["test_pixels"] = f"{'x'.join(map(str, split.images.shape[1:]))} {pixels}"
    return facts


def _numbers(split: Split) -> np.ndarray:
    numbers = split.numbers if split.numbers is not None else np.arange(len(split))
    return np.ascontiguousarray(numbers, np.int64)
