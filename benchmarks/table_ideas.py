"""Ideas for the default of tables, each tried in turn, on the validation split of tables.

    python -m benchmarks.table_ideas [--data ../shared/data/tables] [--page docs/how-it-works/tables.md] [names …]

A test split is cut off first and not used. A value is the change of the RMSE, or of the log loss, of the validation
split in percent with the idea, so a negative one says that it helps. Predictions are for the same examples, over all
seeds, with 95% confidence intervals.
"""

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
from sklearn.preprocessing import QuantileTransformer

from benchmarks.page import markdown, put
from benchmarks.processes import pipeline, summary
from benchmarks.tables import QUICK, Table, tables
from stages.evaluation.paired_tests import MINUS, metric_difference
from stages.evaluation.predictions import NAME, read_columns
from stages.metrics.classes import LogLoss
from stages.metrics.metric import Metric
from stages.metrics.numbers import Rmse
from stages.networks.joined import TableFacts
from stages.networks.tabular import tabular

Columns = Mapping[str, np.ndarray]
"""The columns of a file of predictions."""

Parts = Mapping[str, pd.DataFrame]
"""The rows for training and validation: `train` and `val`."""

MOST = 12_000
"""Rows of a table that are used."""

FEW = 10
"""Whole numbers with at most this many values are classes, or categories."""

SETTINGS = (*QUICK, "evaluate.baseline=false")

IDEAS: Mapping[str, Sequence[str]] = {
    "label smoothing 0.05": ("train.label_smoothing=0.05",),
    "mean of weights, 0.99": ("optimizer.ema_momentum=0.99", "optimizer.ema_use=true"),
    "16 members": ("model=tabular", "model.network.members=16"),
    "parametric activations": ("model=tabular", "model.network._target_=benchmarks.table_ideas.with_slopes"),
    "normal scores of numbers": (),
    "normal scores of the target": (),
}
"""From each idea to its settings. The last two change the table."""

OF_CLASSES, OF_NUMBERS = ("label smoothing 0.05",), ("normal scores of the target",)


def with_slopes(
    input_shape: Any, outputs: int, hidden: list[int], dropout: float | None, members: int, table: TableFacts
) -> keras.Model:
    """Return the network `tabular`, with learned slopes of negative values (arXiv:2407.04491)."""
    plain = tabular(input_shape, outputs, hidden, dropout, members, table)

    def clone(layer: Any) -> Any:
        if type(layer) is not keras.layers.Dense:
            return layer.__class__.from_config(layer.get_config())
        return keras.Sequential([keras.layers.Dense(layer.units), keras.layers.PReLU()])

    network = keras.models.clone_model(plain, clone_function=clone)
    network.get_layer("factors").set_weights(plain.get_layer("factors").get_weights())
    return network


def main() -> None:
    """Print the table, and put it into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/tables"))
    parser.add_argument("--page", type=Path, help="a document with the marks `table_ideas:begin` and `table_ideas:end`")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--ideas", nargs="*", default=[*IDEAS])
    parser.add_argument("names", nargs="*", help="of tables; none: all")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for table in tables(given.data.resolve(), Path(folder)):
            if not given.names or table.name in given.names:
                rows.append(row_of(table, given.ideas, range(given.seeds), Path(folder)))
                print(" | ".join(rows[-1]), flush=True)
    text = markdown(("table", "training rows", "metric", "default", *given.ideas), rows)
    print(text)
    if given.page is not None:
        put(given.page, "table_ideas", text)


def row_of(table: Table, ideas: Sequence[str], seeds: Sequence[int], folder: Path) -> list[str]:
    """Train with the default and with each idea, and return the row of a table."""
    settings = dict(word.split("=", 1) for word in table.words)
    target = settings.pop("data.target")
    rows = pd.read_csv(settings.pop("data.files")).sample(frac=1, random_state=1)[:MOST]
    parts = {"train": rows[: len(rows) * 70 // 100], "val": rows[len(rows) * 70 // 100 : len(rows) * 85 // 100]}
    is_class = settings.get("task") == "classification" or rows[target].nunique() < FEW
    metric: Metric = LogLoss() if is_class else Rmse()
    words = [f"data.target={target}", *(f"{name}={value}" for name, value in settings.items()), *SETTINGS]

    def by_example(parts: Parts, *words: str, of: Callable[[Columns], Columns] = dict) -> np.ndarray:
        paths = {name: folder / f"{table.name}_{name}.csv" for name in ("train", "val", "test")}
        for name, path in paths.items():
            parts["train" if name == "train" else "val"].to_csv(path, index=False)
        files = ", ".join(f"{name}: {path}" for name, path in paths.items())
        values = []
        for seed in seeds:
            with tempfile.TemporaryDirectory(dir=folder) as outputs:
                pipeline(Path(outputs), "data=table", f"data.files={{{files}}}", f"seed={seed}", *words)
                columns = read_columns(Path(summary(Path(outputs))["folder"], NAME))
            values.append(metric.by_example(of(columns)))
        return np.stack(values)

    default = by_example(parts, *words)
    row = [table.name, f"{len(parts['train']):,}", metric.name, f"{default.mean():.4g}"]
    for idea in ideas:
        if (idea in OF_CLASSES and not is_class) or (idea in OF_NUMBERS and is_class):
            row.append("–")
            continue
        if idea == "normal scores of numbers":
            values = by_example(with_scores(parts, target)[0], *words)
        elif idea == "normal scores of the target":
            scored, scores = with_scores(parts, target, of_target=True)
            values = by_example(scored, *words, of=partial(in_own_units, scores))
        else:
            values = by_example(parts, *words, *IDEAS[idea])
        change = metric_difference(default, values, paired=True, metric=metric)
        low, high, value = (100 * part / default.mean() for part in (change.low, change.high, change.difference))
        row.append(f"{value:+.1f} ({low:.1f} to {high:.1f})".replace("-", MINUS))
    return row


def with_scores(parts: Parts, target: str, of_target: bool = False) -> tuple[Parts, QuantileTransformer]:
    """Return the parts with normal scores, learned from the rows for training, and what computes them.

    Args:
        parts: The rows.
        target: The column that is predicted.
        of_target: Whether the target has them, instead of the features that are numbers with more than FEW values.
    """
    train = parts["train"]
    numeric = [name for name in train.select_dtypes("number") if name != target and train[name].nunique() > FEW]
    names = [target] if of_target else numeric
    scores = QuantileTransformer(output_distribution="normal", n_quantiles=min(len(train), 1000), random_state=0)
    scores.fit(train[names])
    changed = {name: rows.copy() for name, rows in parts.items()}
    for rows in changed.values():
        rows[names] = scores.transform(rows[names])
    return changed, scores


def in_own_units(scores: QuantileTransformer, columns: Columns) -> Columns:
    """Return predictions of normal scores as expected values of the target, and the targets.

    The expected value is the mean over errors as those of these predictions (Duan 1983, doi:10.2307/2288126), which
    flatters the idea a little, because they are known only afterwards.
    """
    targets, predictions = (columns[name].reshape(-1, 1) for name in ("target", "prediction"))
    errors = np.quantile(targets - predictions, np.linspace(0.005, 0.995, 100))
    means = np.mean([scores.inverse_transform(predictions + error) for error in errors], axis=0)
    return {"target": scores.inverse_transform(targets), "prediction": means}


if __name__ == "__main__":
    main()
