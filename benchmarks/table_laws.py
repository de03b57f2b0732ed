"""The default of tables trained in several ways that must agree, and the exports of it.

    python -m benchmarks.table_laws [--page docs/how-it-works/tables.md]

The rows of telco_churn have random weights, and classes are balanced. Each way trains for three epochs with
`deterministic=true`, in float64, so that AdamW does not enlarge the rounding of small gradients. A difference is the
largest one of any predicted probability for a test row. Exports are made from the same training in float32.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.page import markdown, put
from benchmarks.processes import DATA, pipeline, summary
from stages.evaluation.predictions import NAME, read_columns

TRAINING = (
    "train.epochs=3", "train.batch_size=64", "train.calibrate=true", "train.class_weights=balanced",
    "data.weight=weight", "deterministic=true",
)  # fmt: skip

QUICK = ("tracking=off", "pipeline.inspect=null", "evaluate.importance=false", "evaluate.baseline=false")

WAYS = {
    "the same command again": (),
    "two replicas": ("strategy=mirrored", "strategy.cpu_replicas=2"),
    "three replicas": ("strategy=mirrored", "strategy.cpu_replicas=3"),
    "rows read from the disk": ("data.memory_gib=0",),
}


def main() -> None:
    """Print both tables, and put them into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="a document with the marks `table_laws:begin` and `table_laws:end`")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        frame = pd.read_csv(DATA / "tables" / "telco_churn.csv")
        frame["weight"] = np.random.default_rng(1).uniform(0.2, 3, len(frame)).round(3)
        frame.to_csv(folder / "table.csv", index=False)
        wide = ("pipeline.export=null", "precision=float64")
        first = run(folder, *wide)
        rows = [[way, f"{difference(first, run(folder, *wide, *words)):.1g}"] for way, words in WAYS.items()]
        metrics = run(folder, "export=all")["metrics"]
    exports = [
        [part, *(f"{metrics[f'export/{part}/{name}']:.2g}" for name in ("max_abs_diff", "size_mib", "milliseconds"))]
        for part in sorted(name.split("/")[1] for name in metrics if name.endswith("/size_mib"))
    ]
    text = "\n\n".join(
        [
            markdown(("trained as before, but", "largest difference"), rows),
            markdown(("export", "largest difference", "MiB", "milliseconds for a row"), exports),
        ]
    )
    print(text)
    if given.page is not None:
        put(given.page, "table_laws", text)


def run(folder: Path, *words: str) -> dict[str, Any]:
    """Train, and return the summary with the predicted probabilities."""
    outputs = folder / "outputs"
    pipeline(
        outputs, "data=table", f"data.files={folder / 'table.csv'}", "data.target=Churn", *TRAINING, *QUICK, *words
    )
    found = summary(outputs)
    return {**found, "probabilities": read_columns(Path(found["folder"], NAME))["probabilities"]}


def difference(first: dict[str, Any], second: dict[str, Any]) -> float:
    """Return the largest difference of a probability."""
    return float(np.abs(first["probabilities"] - second["probabilities"]).max())


if __name__ == "__main__":
    main()
