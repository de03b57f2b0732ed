"""`predictions.parquet`: what a model predicts for each test example."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stages.evaluation.eval_step import Scores, Sink
from stages.evaluation.test_set import facts_of, numbers_of
from stages.results import Split
from stages.storage.atomic import atomic_write


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
    numbers = numbers_of(split)
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
