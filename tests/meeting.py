"""`python -m tests.meeting FILE`: a worker that contributes its number, from 1, and writes the results of all."""

import json
import os
import sys
from pathlib import Path

from pipeline.system.signals import until
from stages.collectives import mean_over_workers
from stages.settings.strategy import MultiWorkerSettings
from stages.strategy import strategy


def main() -> None:
    where = strategy(MultiWorkerSettings(deterministic=False))
    config = json.loads(os.environ["TF_CONFIG"])
    index, members = config["task"]["index"], range(len(config["cluster"]["worker"]))
    Path(f"{sys.argv[1]}.{index}").write_text(str(mean_over_workers(where, index + 1.0)))
    # A worker that ended at once could close a socket from which another worker still reads the last sum.
    until(lambda: all(Path(f"{sys.argv[1]}.{member}").exists() for member in members), 30)


if __name__ == "__main__":
    main()
