"""`python -m benchmarks.gpu [FOLDER]`: measures speeds and checks laws on the GPU of this machine.

    make gpu-check                                 everything, at most eight minutes; results in outputs/gpu-check
    make gpu-check ARGS="/tmp/check --only laws"   only the laws; results in /tmp/check
    python3 -m benchmarks.gpu --only cnn,resnet20  without make, with the packages of this Python
    python3 -m benchmarks.gpu --tiny               small sizes: about a minute on two CPU cores

FOLDER takes gpu.json and gpu.md. Both are written again after each row, so a check that is cut off keeps its rows.
The exit code is 1 if a law failed.
"""

import argparse
import os
import shlex
import sys
from pathlib import Path

from benchmarks.gpu import laws
from benchmarks.gpu.answering import Budget, Failed
from benchmarks.gpu.machine import look
from benchmarks.gpu.plan import FULL, TINY
from benchmarks.gpu.report import Report
from benchmarks.gpu.speeds import Speeds
from benchmarks.page import put

FOLDER = Path("outputs/gpu-check")


def main() -> int:
    """Return the exit code."""
    given = arguments()
    budget = Budget(given.seconds)
    plan = TINY if given.tiny else FULL

    # Several processes share the GPU: none may take all of its memory.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

    given.folder.mkdir(parents=True, exist_ok=True)
    try:
        machine = look(given.folder, budget)
    except Failed as error:
        print(
            f"error: TensorFlow does not start: {error}. Its messages are in {given.folder}/worker.log", file=sys.stderr
        )
        return 1
    command = shlex.join(["python", "-m", "benchmarks.gpu", *sys.argv[1:]])
    report = Report(given.folder, budget, {**machine.facts, "command": command}, machine.notes)
    print("\n".join(machine.notes), flush=True)

    try:
        laws.check(given.only, machine, plan, report, given.folder, budget)
        speeds = Speeds(machine, plan, budget, report)
        for network in plan.rows:
            speeds.measure(network, weights="weights" in given.only, speed=network.name in given.only)
        for name, reason in plan.left_out.items():
            if name in given.only:
                report.skip(name, "all precisions", reason)
    finally:
        machine.close()

    code = report.finish()
    if given.page is not None:
        put(given.page, "gpu", report.markdown())
    print(f"{budget.used:6.1f} s  results in {given.folder}/gpu.md and gpu.json", flush=True)
    return code


GROUPS = {
    "laws": (*laws.NAMES, "weights"),
    "speeds": tuple(FULL.networks),
}
"""Names of `--only` that stand for several others."""


def names_of(only: str) -> set[str]:
    """Return the laws and networks that `--only` names."""
    names = {part for name in only.split(",") for part in GROUPS.get(name, (name,))}
    every = {name for names in GROUPS.values() for name in names}
    if unknown := sorted(names - every):
        known = ", ".join((*GROUPS, *(name for names in GROUPS.values() for name in names)))
        raise argparse.ArgumentTypeError(f"{','.join(unknown)} is not a part of the check. Expected any of: {known}")
    return names


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument(
        "--only", type=names_of, default="laws,speeds", metavar="NAME[,NAME]",
        help="laws, speeds, or single ones, such as resnet20; default: all",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=480.0, help="time after which nothing more is measured")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the check itself")
    parser.add_argument("--page", type=Path, help="a page that takes the tables between its marks")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
