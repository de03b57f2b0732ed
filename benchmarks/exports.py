"""`python -m benchmarks.exports`: how far the answers of every format are from the model's, by precision and strategy.

Prints a table in Markdown; with words such as `tf_flowers` or `float64`, of the runs that one of them names. Data:
MNIST and tf_flowers in `../shared/data/tfds` where they are prepared, else digits.
"""

import csv
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.paths import CONF

SETS = CONF.parent.parent / "shared" / "data" / "tfds"

WAYS = (
    (), ("precision=mixed_bfloat16",), ("precision=mixed_float16",), ("precision=bfloat16",), ("precision=float16",),
    ("precision=float64",), ("strategy=mirrored", "strategy.cpu_replicas=2"),
)  # fmt: skip


def cases() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields names and overrides of the runs."""
    if not (SETS / "mnist").is_dir():
        for way in WAYS:
            yield "digits", ("data=digits", "train.epochs=10", *way)
        return
    mnist = ("data=mnist", f"data.dir={SETS}", "model=cnn", "train.epochs=1", "train.jit=off")
    for way in WAYS:
        yield "MNIST", (*mnist, *way)
    if (SETS / "tf_flowers").is_dir():
        sizes = ("data.size=96", "train.epochs=4")
        yield "tf_flowers", ("data=tf_flowers", f"data.dir={SETS}", "model=cnn_photo", *sizes)


def formats(overrides: tuple[str, ...], outputs: Path) -> list[dict[str, str]]:
    """Runs one experiment with every format, and returns the rows of its `formats.csv`."""
    given = (*overrides, "export=all", "export.compared_examples=2000", "tracking=off", "inspect.batch_size=8")
    command = [sys.executable, "-m", "pipeline", *given, f"outputs={outputs}", "resume=never"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(overrides)}: {done.stderr.strip().splitlines()[-1]}")
    newest = max(outputs.glob("runs/*/*/export/formats.csv"), key=lambda path: path.stat().st_mtime)
    with newest.open(newline="") as file:
        return list(csv.DictReader(file))


def main(words: Sequence[str]) -> None:
    """Prints a row for each format of each run, or of those that `words` name by data, precision or strategy."""
    print("| data | precision, strategy | format | largest difference | same class | MiB | ms an example |")
    print("|---|---|---|---|---|---|---|")
    for name, overrides in cases():
        way = [override.partition("=")[2] for override in overrides if override.startswith(("precision=", "strategy="))]
        way = way or ["float32"]
        if words and not {name, *way} & set(words):
            continue
        with tempfile.TemporaryDirectory() as outputs:
            for row in formats(overrides, Path(outputs)):
                size, time = int(row["bytes"]) / 2**20, float(row["milliseconds"])
                difference, agreement = float(row["max_abs_diff"]), float(row["agreement"])
                cells = (name, *way, row["format"], f"{difference:.1e}", f"{agreement:.2%}")
                print(f"| {' | '.join(cells)} | {size:.2f} | {time:.2f} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
