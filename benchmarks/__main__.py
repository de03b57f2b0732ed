"""`python -m benchmarks`: measures all, and writes docs/how-it-works/performance.md and what --quick compares with.

    python -m benchmarks                     everything, about three quarters of an hour on two cores
    python -m benchmarks --only start        the measurements whose name begins so; the others stay as they were
    python -m benchmarks --report            writes the page from what is recorded
    python -m benchmarks --quick             a few rounds of the quick ones; exit code 1 where one is less than half as
                                             good as recorded

Each measurement has a process of its own. Its samples stay in outputs/bench; benchmarks/recorded.json keeps what each
row came to, and the page is made of that.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import recorded
from benchmarks.processes import ROOT
from benchmarks.recorded import Records, records_of
from benchmarks.report import machine, write
from benchmarks.table import MEASUREMENTS, ROWS

RESULTS = ROOT / "outputs" / "bench"
LONGEST_SECONDS = 3600.0


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[""], metavar="NAME", help="beginnings of the measurements' names")
    parser.add_argument("--rounds", type=int, help="in place of each measurement's own")
    parser.add_argument("--report", action="store_true", help="measure nothing, write the page")
    parser.add_argument("--quick", action="store_true", help="measure little, and compare it with what is recorded")
    options = parser.parse_args()
    names = [name for name in MEASUREMENTS if name.startswith(tuple(options.only)) and not options.report]
    measured = {}
    for name in names:
        rounds = MEASUREMENTS[name].quick if options.quick else options.rounds or MEASUREMENTS[name].rounds
        if rounds:
            measured[name] = measure(name, rounds, RESULTS / ("quick" if options.quick else "whole") / f"{name}.json")
    if options.quick:
        lines = regressions(records_of(measured), recorded.read())
        print("\n".join(lines) or "no ratio is under half of what was recorded")
        return 1 if lines else 0
    records = {**recorded.read(), **records_of(measured)}
    recorded.write(records)
    write(records, {name: found["why_not"] for name, found in measured.items() if "why_not" in found})
    return 0


def measure(name: str, rounds: int, path: Path) -> dict[str, Any]:
    """Make a measurement in a process of its own; write to `path` and return its samples, or why there are none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.one", name, str(rounds), str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-3000:]}")
    found = {**json.loads(path.read_text()), "machine": machine(), "seconds": time.monotonic() - began}
    path.write_text(json.dumps(found))
    print(f"{name}: {found.get('why_not', 'measured')}, {found['seconds']:.0f} s", flush=True)
    return found


def regressions(found: Records, before: Records) -> list[str]:
    """Return a line for each row that is less than half as good as recorded."""
    lines = []
    for row in ROWS:
        if row.key in found and row.key in before:
            value, last = found[row.key].spread.median, before[row.key].spread.median
            if row.has_regressed(value, last):
                lines.append(f"{row.key}: {value:.2f}, recorded {last:.2f}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
