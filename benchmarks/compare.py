"""`python -m benchmarks.compare`: seconds that a comparison of 10, 100 and 1,000 runs takes, and how they grow.

Runs of five seeds a setting, each with 10 epochs and the predictions of 360 test examples, as `evaluate` writes them.
The command is timed in a process of its own, from its start to its end: table, page, plots, intervals.
"""

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.made_runs import grid, make_sweep

SIZES = (10, 100, 1000)
SEEDS = 5


def seconds(folder: Path) -> float:
    """Returns the wall time of `python -m pipeline.compare` on a sweep."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "pipeline.compare", str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return time.perf_counter() - began


def main() -> None:
    """Prints the medians, and the exponent of the growth from one size to the next."""
    parser = argparse.ArgumentParser("python -m benchmarks.compare", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as scratch:
        folders = {size: make_sweep(Path(scratch) / str(size), grid(size // SEEDS, SEEDS)) for size in SIZES}
        times: dict[int, list[float]] = {size: [] for size in SIZES}
        for _ in range(rounds):
            for size, folder in folders.items():
                times[size].append(seconds(folder))
    medians = {size: statistics.median(values) for size, values in times.items()}
    before: int | None = None
    for size, median in medians.items():
        growth = ""
        if before is not None:
            growth = f"  exponent {math.log(median / medians[before]) / math.log(size / before):.2f}"
        print(f"{size:5,} runs  {median:6.2f} s{growth}")
        before = size


if __name__ == "__main__":
    main()
