"""`python -m benchmarks.exports [FILE]`: how far the answers of every format are from the model's, by precision and
strategy, as two tables; in FILE, such as docs/how-to/export.md, they replace what is between their marks.

Data: MNIST and tf_flowers in `../shared/data/tfds` where they are prepared, else digits. Takes a quarter of an hour on
two cores.
"""

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.page import markdown, put
from benchmarks.processes import DATA, pipeline, summary
from benchmarks.report import machine

SETS = DATA / "tfds"

SLOW = ("mixed_float16", "bfloat16", "float16")
"""Precisions whose convolutions have no fast kernel on CPUs: on the digits."""

WAYS: Mapping[str, Sequence[str]] = {
    "float32": (),
    "mixed_bfloat16": ("precision=mixed_bfloat16",),
    "mixed_float16": ("precision=mixed_float16",),
    "bfloat16": ("precision=bfloat16", "optimizer=sgd"),
    "float16": ("precision=float16", "optimizer=sgd"),
    "float64": ("precision=float64",),
    "mirrored": ("strategy=mirrored", "strategy.cpu_replicas=2"),
    "central_storage": ("strategy=central_storage",),
    "model_parallel": ("strategy=model_parallel",),
    "multi_worker": ("strategy=multi_worker", "strategy.workers=2"),
    "parameter_server": ("strategy=parameter_server", "strategy.workers=2", "strategy.servers=1"),
}

Rows = dict[str, dict[str, float]]
"""The figures of each format of a run."""


def cases() -> Iterator[tuple[str, Sequence[str]]]:
    """Yield what the runs are called, by data and way, and their overrides."""
    part = ("data.train_split='train[:40%]'", "data.test_split='test[:20%]'")
    mnist = ("data=mnist", f"data.dir={SETS}", *part, "model=cnn", "train.epochs=1", "train.jit=off")
    for name, way in WAYS.items():
        is_mnist = (SETS / "mnist").is_dir() and name not in SLOW
        yield f"{'MNIST' if is_mnist else 'digits'}, {name}", (*(mnist if is_mnist else ("train.epochs=20",)), *way)
    if (SETS / "tf_flowers").is_dir():
        sizes = ("data.size=96", "train.epochs=4")
        yield "tf_flowers, float32", ("data=tf_flowers", f"data.dir={SETS}", "model=cnn_photo", *sizes)


def formats(overrides: Sequence[str], outputs: Path) -> Rows:
    """Run one experiment with every format, and return the figures of each.

    Raises:
        RuntimeError: where the run fails, as it does where a format exceeds its limits.
    """
    pipeline(outputs, *overrides, "export=all", "export.compared_examples=2000", "tracking=off", "inspect.batch_size=8")
    rows: Rows = {}
    for name, value in summary(outputs)["metrics"].items():
        if name.startswith("export/") and name.count("/") == 2:
            _, of_format, figure = name.split("/")
            rows.setdefault(of_format, {})[figure] = value
    return rows


def tables(found: Mapping[str, Rows], failed: Mapping[str, str]) -> str:
    """Return as Markdown: differences by run and format, what failed, and size and latency in float32."""
    names = list(next(iter(found.values())))
    differences = [
        [run, *(f"{row['max_abs_diff']:.1e}, {row['agreement']:.2%}" for row in rows.values())]
        for run, rows in found.items()
    ]
    sizes = [
        [run, *(f"{row['size_mib']:.2f}, {row['milliseconds']:.2f}" for row in rows.values())]
        for run, rows in found.items()
        if run.endswith("float32")
    ]
    parts = [
        markdown(["largest difference, same class", *names], differences),
        "\n".join(f"{run}: {error}" for run, error in failed.items()),
        markdown(["MiB, ms/example", *names], sizes),
        machine(),
    ]
    return "\n\n".join(part for part in parts if part)


def main() -> None:
    """Print the tables, or write them into the page that the command line names."""
    found: dict[str, Rows] = {}
    failed: dict[str, str] = {}
    for run, overrides in cases():
        with tempfile.TemporaryDirectory() as outputs:
            try:
                found[run] = formats(overrides, Path(outputs))
            except RuntimeError as error:
                failed[run] = str(error).strip().splitlines()[-1]
        print(run, failed.get(run, "done"), file=sys.stderr, flush=True)
    text = tables(found, failed)
    if sys.argv[1:]:
        put(Path(sys.argv[1]), "formats", text)
    print(text)


if __name__ == "__main__":
    main()
