"""`python -m benchmarks.worker FILE STEPS CASE…`: a member of the cluster in `TF_CONFIG`; the first writes results."""

import json
import os
import sys
from typing import Any

import numpy as np

from benchmarks.cases import CASES, COMBINED, run
from stages.settings.strategy import MultiWorkerSettings, ParameterServerSettings
from stages.strategy import strategy


def main() -> None:
    """Run the cases under the strategy that the cluster is for: with servers, ParameterServerStrategy."""
    path, steps, *names = sys.argv[1:]
    given = json.loads(os.environ["TF_CONFIG"])
    servers = "ps" in given["cluster"]
    where = strategy(
        ParameterServerSettings(deterministic=False) if servers else MultiWorkerSettings(deterministic=True)
    )
    results: dict[str, Any] = {}
    for name in names:
        weights, means = run({**CASES, **COMBINED}[name], where, int(steps))
        results[f"{name}/weights"] = weights
        for key, value in means.items():
            results[f"{name}/{key}"] = value
    if where.record.on_exit:
        where.record.on_exit()
    if given["task"]["index"] == 0:
        np.savez(path, **results)


if __name__ == "__main__":
    main()
