"""`python -m benchmarks`: measures all, and writes docs/performance.md, its figure and what --quick compares with.

    python -m benchmarks                     everything, about three quarters of an hour on two cores
    python -m benchmarks --only start        the measurements whose name begins so; the others stay as they were
    python -m benchmarks --report            writes the page from what was measured last
    python -m benchmarks --quick             a few rounds of the quick ones; exit code 1 where one is less than half as
                                             good as recorded

Each measurement has a process of its own. Its samples stay in outputs/bench, the ratios in benchmarks/recorded.json.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measuring import Spread
from benchmarks.processes import ROOT
from benchmarks.report import machine, write
from benchmarks.table import MEASUREMENTS, ROWS

RESULTS = ROOT / "outputs" / "bench"
RECORDED = ROOT / "benchmarks" / "recorded.json"
LONGEST_SECONDS = 1800.0


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[""], metavar="NAME", help="beginnings of the measurements' names")
    parser.add_argument("--rounds", type=int, help="in place of each measurement's own")
    parser.add_argument("--report", action="store_true", help="measure nothing, write the page")
    parser.add_argument("--quick", action="store_true", help="measure little, and compare it with what is recorded")
    options = parser.parse_args()
    results = RESULTS / ("quick" if options.quick else "whole")
    names = [name for name in MEASUREMENTS if name.startswith(tuple(options.only)) and not options.report]
    for name in names:
        rounds = MEASUREMENTS[name].quick if options.quick else options.rounds or MEASUREMENTS[name].rounds
        if rounds:
            measure(name, rounds, results / f"{name}.json")
    measured = {path.stem: json.loads(path.read_text()) for path in results.glob("*.json")}
    if options.quick:
        lines = regressions(measured, json.loads(RECORDED.read_text()))
        print("\n".join(lines) or "no ratio is under half of what was recorded")
        return 1 if lines else 0
    RECORDED.write_text(json.dumps({key: spread.median for key, spread in spreads(measured).items()}, indent=1) + "\n")
    write(measured, spreads(measured))
    return 0


def measure(name: str, rounds: int, path: Path) -> None:
    """Makes a measurement in a process of its own and writes its samples, or why there are none, to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.one", name, str(rounds), str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-3000:]}")
    found = {**json.loads(path.read_text()), "machine": machine(), "seconds": time.monotonic() - began}
    path.write_text(json.dumps(found))
    print(f"{name}: {found.get('why_not', 'measured')}, {found['seconds']:.0f} s", flush=True)


def spreads(measured: Mapping[str, Mapping[str, Any]]) -> dict[str, Spread]:
    """Returns what was measured of each row, by the row's key."""
    found = {}
    for row in ROWS:
        samples = measured.get(row.measurement, {}).get("samples", {})
        if row.figure in samples.get(row.ours, {}) and (row.against is None or row.against in samples):
            found[row.key] = Spread.of(row.values(samples))
    return found


def regressions(measured: Mapping[str, Mapping[str, Any]], recorded: Mapping[str, float]) -> list[str]:
    """Returns a line for each row that is less than half as good as recorded."""
    found = spreads(measured)
    lines = []
    for row in ROWS:
        if row.key in found and row.key in recorded and row.has_regressed(found[row.key].median, recorded[row.key]):
            lines.append(f"{row.key}: {found[row.key].median:.2f}, recorded {recorded[row.key]:.2f}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
