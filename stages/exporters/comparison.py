"""Exported files, reloaded and compared with the model on real examples."""

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from stages.data.columns import Column, evenly_spread
from stages.data.examples import first_inputs
from stages.errors import UserError
from stages.exporters.exporter import Exporter
from stages.exporters.fresh_process import reload_files
from stages.exporters.reload import measure
from stages.networks.complexity import SCORING_BYTES, scoring_batch
from stages.reporter import safe_place
from stages.results import Dataset, Model
from stages.settings.results import ExportSettings
from stages.tasks.task import Task


@dataclass(frozen=True)
class Compared:
    """A file, reloaded, against the model.

    max_abs_diff: of a probability; nan where either has one. agreement: fraction of the examples that get the model's
    class, or another that the model finds as likely, up to the difference that is allowed. bytes: of the file or
    folder. milliseconds: median time of one example.
    """

    name: str
    path: Path
    max_abs_diff: float
    agreement: float
    bytes: int
    milliseconds: float

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics by their full names."""
        names = {"max_abs_diff": self.max_abs_diff, "agreement": self.agreement}
        names |= {"size_mib": self.bytes / 2**20, "milliseconds": self.milliseconds}
        return {f"export/{self.name}/{name}": value for name, value in names.items()}

    def refuse(self, exporter: Exporter, policy: str) -> None:
        """Raise UserError where the file is beyond the limits of its format."""
        limit = exporter.limit(policy)
        setting = f"export.formats.{self.name}"
        if not self.max_abs_diff <= limit:  # nan is no number below it
            allowed = f"{setting}.largest_difference={min(2 * self.max_abs_diff, 1):.1g}"
            raise UserError(
                f"predictions of the reloaded {self.path.name} differ from the model's by up to "
                f"{self.max_abs_diff:.2g} (in probability, or in standard deviations of the target)",
                f"a difference of at most {limit:g}, or a higher limit",
                allowed if self.max_abs_diff <= 1 else "export=saved_model",
            )
        if self.agreement < exporter.least_agreement:
            raise UserError(
                f"the reloaded {self.path.name} predicts the model's class for only {self.agreement:.2%} of the "
                "examples",
                f"at least {exporter.least_agreement:.2%}, a lower limit, or export=saved_model",
                f"{setting}.least_agreement=<lower limit>",
            )


def compare(
    model: Model, dataset: Dataset, files: Mapping[str, tuple[Path, Exporter]], settings: ExportSettings
) -> list[Compared]:
    """Reload files, and compare their answers with those of the model they are of.

    The test examples are evenly spread over the split, which may be in the order of its classes.
    """
    of_one = 4 * math.prod(model.task.head.shape)
    most = min(settings.compared_examples, max(SCORING_BYTES // of_one, 1))  # the predictions are kept in memory
    test = dataset.test.take(evenly_spread(len(dataset.test), most))
    batch = min(scoring_batch(model.network), 64)
    # Compiled, as training and evaluation are: op by op, bfloat16 is rounded in more places.
    predict = tf.function(
        lambda inputs: model.task.head.predictions(model.network(inputs, training=False)), autograph=False
    )
    parts = [test.take(np.arange(begin, min(begin + batch, len(test)))) for begin in range(0, len(test), batch)]
    expected = np.concatenate([predict(first_inputs(part, batch)).numpy() for part in parts])
    with tempfile.TemporaryDirectory() as folder:
        given = {True: _written(test.features, Path(folder, "features.npz"))}
        given[False] = _written(test.inputs, Path(folder, "inputs.npz"))
        orders: dict[str, dict[str, Any]] = {
            name: {
                "batch": batch,
                "features": given[exporter.takes_features],
                "loader": str(exporter.loader),
                "path": str(path),
                "answers": str(Path(folder, f"{name}.npz")),
            }
            for name, (path, exporter) in files.items()
        }
        if settings.reload == "process":
            reload_files([*orders.values()], settings.reload_seconds * len(orders))
        for order in orders.values() if settings.reload == "here" else ():
            measure(**order)
            safe_place()
        rows = []
        for name, (path, exporter) in files.items():
            limit = exporter.limit(model.computes_in)
            rows.append(_compared(model.task, expected, name, path, limit, np.load(orders[name]["answers"])))
        return rows


def _written(columns: Mapping[str, Column], path: Path) -> dict[str, Any]:
    """Write columns to `path`; return where an order finds them: texts in itself, as no file has them unpickled."""
    values = {name: np.asarray(column[:]) for name, column in columns.items()}
    texts = {name: array.tolist() for name, array in values.items() if array.dtype == object}
    arrays = {name: array for name, array in values.items() if name not in texts}
    np.savez(path, *arrays.values(), allow_pickle=False)
    return {"path": str(path), "names": list(arrays), "texts": texts}


def _compared(
    task: Task, expected: np.ndarray, name: str, path: Path, allowed: float, answers: Mapping[str, np.ndarray]
) -> Compared:
    rows = answers["rows"]
    if rows.shape != expected.shape:
        raise UserError(
            f"export: {path.name} returns an output of shape {rows.shape}", f"{expected.shape}", "export=saved_model"
        )
    difference, agreement = task.head.differ(expected, rows, allowed)
    size = sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
    return Compared(name, path, difference, agreement, size, float(answers["milliseconds"]))


def table(rows: Sequence[Compared]) -> list[Sequence[str]]:
    """Return the table, its header first."""
    header = ("format", "largest difference", "same class", "MiB", "ms/example")
    cells = (
        (f"{row.max_abs_diff:.1e}", f"{row.agreement:.2%}", f"{row.bytes / 2**20:.2f}", f"{row.milliseconds:.2f}")
        for row in rows
    )
    return [header, *((row.name, *numbers) for row, numbers in zip(rows, cells, strict=True))]
