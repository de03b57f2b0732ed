"""`python -m benchmarks.sweeps`: one-epoch jobs on the digits, as a sweep and as commands one after another.

The ways take turns, so that a machine which is busy with other work is so for all of them; the figures are medians of
the rounds. All ways have to give the same metrics to the bit.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = ("train.epochs=1", "deterministic=true")
TIMES = ("seconds", "_per_second", "_milliseconds", "_fraction", "_bytes", "_mib")
"""Ends of the names of metrics that no two runs share."""


def command(*arguments: str) -> None:
    """Runs `python -m pipeline` to its end."""
    subprocess.run([sys.executable, "-m", "pipeline", *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def commands(jobs: int, outputs: Path) -> None:
    """Runs the jobs as commands, one after another."""
    for seed in range(jobs):
        command(f"seed={seed}", *SETTINGS, f"outputs={outputs}")


def sweep(n_jobs: int) -> Callable[[int, Path], None]:
    """Returns the way to run the jobs as a sweep, `n_jobs` at a time."""

    def run(jobs: int, outputs: Path) -> None:
        command("sweep=seeds", f"sweep.n={jobs}", f"sweep.n_jobs={n_jobs}", *SETTINGS, f"outputs={outputs}")

    return run


def results(outputs: Path) -> dict[str, dict[str, float]]:
    """Returns the metrics of each run, by its seed."""
    summaries = [json.loads(path.read_text()) for path in outputs.glob("*/*/*/summary.json")]
    return {
        next(text for text in summary["overrides"] if text.startswith("seed=")): {
            name: value for name, value in summary["metrics"].items() if not name.endswith(TIMES)
        }
        for summary in summaries
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.sweeps", description=__doc__)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(arguments)
    ways = {"commands, one after another": commands, "sweep, one at a time": sweep(1), "sweep, two at a time": sweep(2)}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    expected: dict[str, dict[str, float]] | None = None
    for number in range(given.rounds):
        for name, run in ways.items():
            with tempfile.TemporaryDirectory() as folder:
                began = time.monotonic()
                run(given.jobs, Path(folder))
                seconds[name].append(time.monotonic() - began)
                metrics = results(Path(folder))
            assert len(metrics) == given.jobs, f"{len(metrics)} of {given.jobs} jobs have finished"
            expected = expected or metrics
            assert metrics == expected, f"{name}: other metrics"
            print(f"round {number + 1}: {name}: {seconds[name][-1]:.1f} s", file=sys.stderr, flush=True)
    whole = statistics.median(seconds["commands, one after another"])
    print(f"| {given.jobs} jobs of one epoch | seconds | times as fast |\n|---|---|---|")
    for name, measured in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(seconds["commands, one after another"], measured, strict=True))
        print(f"| {name} | {statistics.median(measured):.1f} | {ratio:.2f} |")
    print(f"\nThe metrics of all are the same to the bit. A command took {whole / given.jobs:.1f} s.")


if __name__ == "__main__":
    main()
