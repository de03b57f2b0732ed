"""`python -m benchmarks.scaling [PAGE] [--only PART…]`: what training costs on up to 1,024 replicas.

Parts, each a table between marks of its own in PAGE (docs/scaling.md): `meeting` of a cluster's members, `efficiency`
by the model of `benchmarks/scaling_model.py`, `checkpoints`.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.meeting import meet_all
from benchmarks.page import put
from benchmarks.scaling_model import Link, efficiency, reduction_seconds

LINKS = {
    "10 Gbit/s, 50 µs": Link.gigabits(10, 50),
    "25 Gbit/s, 20 µs": Link.gigabits(25, 20),
    "100 Gbit/s, 5 µs": Link.gigabits(100, 5),
}
REPLICAS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
STEPS_OF_COMPUTE = (0.01, 0.1, 1.0)
"""Seconds that a replica computes in a step."""

MIB = 2**20


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def efficiencies() -> str:
    """Returns the table `efficiency`, for gradients of 14 and 210 MiB."""
    rows = []
    for size in (14, 210):
        for compute in STEPS_OF_COMPUTE:
            for name, link in LINKS.items():
                cells = [f"{efficiency(compute, size * MIB, count, link):.2f}" for count in REPLICAS]
                rows.append([f"{size} MiB, {compute:g} s", name, *cells])
    return table(["gradients, compute", "link", *(f"{count:,}" for count in REPLICAS)], rows)


def meetings() -> str:
    """Returns the table `meeting`."""
    rows = []
    for count in (2, 16, 64, 256, 1024):
        seconds, of_chief = meet_all(count)
        rows.append(
            [f"{count:,}", f"{2 * (count - 1):,}", f"{count * (count - 1):,}", f"{seconds:.1f}", f"{of_chief:.2f}"]
        )
    heads = ["members", "connections, at least", "if all called all", "until all have met, s", "chief's processor, s"]
    return table(heads, rows)


def checkpoints() -> str:
    """Returns the table `checkpoints`: written by the chief alone, and read by it for all."""
    from stages.training.checkpoints import Checkpoint, read, to_bytes, write

    rows = []
    for mib in (16, 64, 256):
        arrays = {str(index): np.ones(MIB // 4, np.float32) for index in range(mib)}
        checkpoint = Checkpoint({"step": 1}, arrays)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "step-1.npz"
            seconds = [_seconds(write, checkpoint, path), _seconds(read, path), _seconds(to_bytes, checkpoint)]
        sent = [reduction_seconds(mib * MIB, count, LINKS["10 Gbit/s, 50 µs"]) for count in (256, 1024)]
        rows.append([f"{mib}", *(f"{second:.2f}" for second in [*seconds, *sent])])
    heads = ["MiB", "written, s", "read, s", "packed, s", "to 256 workers at 10 Gbit/s, s", "to 1,024, s"]
    return table(heads, rows)


def _seconds(function: Callable[..., object], *arguments: object) -> float:
    began = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - began


PARTS: dict[str, Callable[[], str]] = {
    "meeting": meetings,
    "efficiency": efficiencies,
    "checkpoints": checkpoints,
}


def main() -> None:
    """Prints the tables, and puts them into the page."""
    parser = argparse.ArgumentParser("python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("page", nargs="?", type=Path, help="a page that takes the tables between its marks")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    for name in options.only:
        made = PARTS[name]()
        print(f"{name}\n\n{made}\n", flush=True)
        if options.page is not None:
            put(options.page, name, made)


if __name__ == "__main__":
    main()
