"""`python -m benchmarks.large_table [FILE]`: a table larger than the memory it may take, from CSV to trained network.

In FILE, such as docs/how-to/tables.md, the sentence replaces what is between its marks. It trains on a tenth of the
rows, from the whole table, and takes about five minutes.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from benchmarks.page import put
from benchmarks.processes import pipeline, summary
from benchmarks.report import processor

PART = 500_000
"""Rows that are written at a time."""


def write(path: Path, rows: int) -> None:
    """Write `rows` rows of six numbers, two categories and a target that depends on them."""
    random = np.random.default_rng(1)
    with path.open("wb") as file:
        for first in range(0, rows, PART):
            count = min(PART, rows - first)
            numbers = random.normal(size=(6, count)).round(4)
            categories = random.integers([[8], [40]], size=(2, count))
            columns = {f"number_{place}": pa.array(values) for place, values in enumerate(numbers)}
            for place, values in enumerate(categories):
                columns[f"category_{place}"] = pa.array(np.char.add("c", values.astype(str)))
            columns["target"] = pa.array((numbers.sum(axis=0) + categories[0]).round(4))
            csv.write_csv(pa.table(columns), file, csv.WriteOptions(include_header=first == 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", nargs="?", type=Path)
    parser.add_argument("--rows", type=int, default=10_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, outputs = Path(folder, "large.csv"), Path(folder, "outputs")
        write(path, given.rows)
        size = path.stat().st_size / 2**20
        data = ("data=table", f"data.files={path}", "data.target=target", "data.memory_gib=0.5")
        train = ("train.epochs=1", "data.test_fraction=0.9", "pipeline.evaluate=null", "pipeline.export=null")
        cost = pipeline(outputs, *data, *train, "tracking=off")
        found = summary(outputs)
    seconds = {name: found["stages"][name]["seconds"] for name in ("load", "normalize")}
    rate, trained = found["metrics"]["train/examples_per_second"], found["facts"]["data"]["train_examples"]
    text = (
        f"{given.rows:,} rows of six numbers, two categories and a target ({size:,.0f} MiB of CSV) were converted in "
        f"{seconds['load']:.0f} s ({processor()})\nand encoded in {seconds['normalize']:.0f} s; the default network "
        f"then trained on {trained:,} of them, {rate:,.0f} rows a second from the disk.\nThe process took "
        f"{cost['MiB'] / 1024:.1f} GiB at most, mapped pages of these files among them."
    )
    print(text)
    if given.page:
        put(given.page, "large_table", text)


if __name__ == "__main__":
    main()
