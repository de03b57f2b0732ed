"""`python -m tests.meeting FILE`: a worker that gives its number from 1 on, and writes what all agree on."""

import json
import os
import sys
from pathlib import Path

from stages.collectives import mean_over_workers
from stages.settings.strategy import MultiWorkerSettings
from stages.strategy import strategy


def main() -> None:
    where = strategy(MultiWorkerSettings(deterministic=False))
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    Path(f"{sys.argv[1]}.{index}").write_text(str(mean_over_workers(where, index + 1.0)))


if __name__ == "__main__":
    main()
