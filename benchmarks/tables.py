"""The default network of tables against the one before, and against gradient boosting, on real tables.

    python -m benchmarks.tables [--data ../shared/data/tables] [--page docs/how-it-works/tables.md] [names …]

The tables are those of a folder, and some of scikit-learn's own. Each has one test split. `before` is a plain network:
two layers, Adam at a constant rate, batches of 64. Differences are between predictions of the same test examples, with
95% confidence intervals. LightGBM is included if it is installed (the extra `boosting`).
"""

import argparse
import importlib.util
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.page import markdown, put
from benchmarks.processes import pipeline, summary

TARGETS = {
    "bank_marketing": "subscribe",
    "california_housing": "median_house_value",
    "diamonds": "price",
    "king_county_houses": "price",
    "penguins": "species",
    "telco_churn": "Churn",
    "titanic": "survived",
}
"""From the tables of the folder to their targets."""

MORE = {"titanic": ["data.features={alive: leave_out}"]}
"""Further settings of a table: `alive` is the target in other words."""

OF_SKLEARN = ("breast_cancer", "diabetes", "wine")

BEFORE = ("model=mlp", "optimizer=adam", "schedule=constant", "train=loop")

QUICK = ("tracking=off", "pipeline.export=null", "pipeline.inspect=null", "evaluate.importance=false")

COLUMNS = (
    "table", "training rows", "metric", "trivial", "before", "scikit-learn", "LightGBM", "default",
    "default − before", "default − scikit-learn", "default − LightGBM", "s before", "s default", "rows/s",
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A table: its file, what is predicted, and further settings."""

    name: str
    words: tuple[str, ...]


def main() -> None:
    """Print the table, and put it into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/tables"))
    parser.add_argument("--page", type=Path, help="a document with the marks `tables:begin` and `tables:end`")
    parser.add_argument("names", nargs="*", help="of tables; none: all")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for table in tables(given.data.resolve(), Path(folder)):
            if not given.names or table.name in given.names:
                rows.append(row_of(table, Path(folder) / "outputs"))
                print(" | ".join(rows[-1]), flush=True)
    text = markdown(COLUMNS, rows)
    print(text)
    if given.page is not None:
        put(given.page, "tables", text)


def tables(data: Path, folder: Path) -> Iterator[Table]:
    """Yield the tables. Those of scikit-learn are written to `folder`."""
    for name, target in TARGETS.items():
        if (path := data / f"{name}.csv").is_file():
            yield Table(name, (f"data.files={path}", f"data.target={target}", *MORE.get(name, ())))
    from sklearn import datasets

    for name in OF_SKLEARN:
        path = folder / f"{name}.csv"
        getattr(datasets, f"load_{name}")(as_frame=True).frame.to_csv(path, index=False)
        kind = "regression" if name == "diabetes" else "classification"
        yield Table(name, (f"data.files={path}", "data.target=target", f"task={kind}"))


def row_of(table: Table, outputs: Path) -> list[str]:
    """Train on a table in both ways, and return its row."""
    before = _run(outputs, table, *BEFORE, "evaluate.baseline=false")
    default = _run(outputs, table, f"evaluate.against={before['folder']}")
    other = None
    if importlib.util.find_spec("lightgbm") is not None:
        again = ("from=evaluate", f"run={default['folder']}", "evaluate.baseline=lightgbm")
        other = _run(outputs, table, *again)
    figures, name = default["metrics"], default["facts"]["task"]["primary"]
    compared = "log_loss" if "baseline/log_loss_difference" in figures else name
    of_lightgbm = other["metrics"] if other else {}
    return [
        table.name,
        f"{default['facts']['data']['train_examples']:,}",
        compared,
        _number(figures.get(f"trivial/{compared}")),
        _number(before["metrics"].get(f"test/{compared}")),
        _number(figures.get(f"baseline/{compared}")),
        _number(of_lightgbm.get(f"baseline/{compared}")),
        _number(figures.get(f"test/{compared}")),
        _difference(figures, "against", name) + (f" {name}" if name != compared else ""),
        _difference(figures, "baseline", compared),
        _difference(of_lightgbm, "baseline", compared),
        f"{before['metrics']['train/seconds']:.0f}",
        f"{figures['train/seconds']:.0f}",
        f"{figures['train/examples_per_second']:,.0f}",
    ]


def _run(outputs: Path, table: Table, *words: str) -> dict[str, Any]:
    pipeline(outputs, "data=table", *table.words, *QUICK, *words)
    found: dict[str, Any] = summary(outputs)
    return found


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _difference(figures: dict[str, Any], prefix: str, metric: str) -> str:
    """Return a difference with the ends of its interval, such as `−0.012 (−0.02 to −0.004)`."""
    parts = [figures.get(f"{prefix}/{metric}_difference{end}") for end in ("", "_low", "_high")]
    if parts[0] is None:
        return "–"
    shown = [f"{part:.3g}".replace("-", "−") for part in parts if part is not None]
    return f"{shown[0]} ({' to '.join(shown[1:])})" if len(shown) > 1 else shown[0]


if __name__ == "__main__":
    main()
