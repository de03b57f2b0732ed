"""`python -m tests.chaos.sweep_faults`: kills all processes of real sweeps at random moments, repeats the command.

A sweep has survived where, after any number of kills, the same command ends with exit code 0, every job FINISHED once
in MLflow, and the metrics of each job to the bit those of a sweep that nobody killed.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.repeated import count_survived, parser, recorded

JOBS = 3
GIVEN = (
    "-m",
    "seed=1,2,3",
    "train.epochs=6",
    "model.network.filters=[8,16]",
    "deterministic=true",
    "train.checkpoint_every_steps=20",
)


def results(outputs: Path) -> dict[str, dict[str, float]]:
    """Returns each job's metrics that are no times; asserts that the store has every job once, and FINISHED."""
    jobs = [run.info.run_id for run in recorded(outputs, JOBS) if "mlflow.parentRunId" in run.data.tags]
    summaries = [json.loads(path.read_text()) for path in outputs.glob("sweeps/*/*/summary.json")]
    assert sorted(summary["run_id"] for summary in summaries) == sorted(jobs)
    return {
        summary["overrides"][0]: {
            name: value
            for name, value in summary["metrics"].items()
            if not name.startswith("memory/")
            and not name.endswith(("seconds", "_per_second", "_wait_fraction", "_mib"))
        }
        for summary in summaries
    }


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser("tests.chaos.sweep_faults", __doc__)
    options.add_argument("--at-once", type=int, default=1, help="jobs that run at the same time")
    given = options.parse_args(arguments)
    command, alone = (*GIVEN, f"sweep.n_jobs={given.at_once}"), (*GIVEN, "sweep.n_jobs=1")
    print(f"sweep of {JOBS} jobs, {given.at_once} at once", flush=True)
    survived, done = count_survived(given, command, results, alone if given.at_once > 1 else None)
    print(f"sweep: survived {survived} of {done} kills", flush=True)
    return 0 if survived == done else 1


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    sys.exit(main())
