"""A run that kills itself after it has suspended its follower, which could not send the last metric before.

`python -m tests.pipeline.tracking.killed <outputs> <folder> <is the lock shared> <seconds that the follower continues>`
prints the process id of the follower.
"""

import os
import signal
import sys
from pathlib import Path

from pipeline.config.schemas import TrackingSettings
from pipeline.runs.lock import locked
from pipeline.runs.summary import Summary
from pipeline.tracking import follower as module
from pipeline.tracking.store import Store
from pipeline.tracking.stored_run import RunSpec
from pipeline.tracking.tracker import Tracker


def main(outputs: Path, folder: Path, is_shared: bool, outlives_seconds: float) -> None:
    """Begin the run, record a metric, and kill this process."""
    module.OUTLIVES_SECONDS = outlives_seconds
    settings = TrackingSettings(kind="local")
    with locked(folder, shared=is_shared):
        Summary(None, "RUNNING", "tried", folder, {}).write(folder)
        follower = module.Follower(settings)
        follower.follow(folder, Store(settings, outputs))
        tracker = Tracker(RunSpec(settings, outputs, folder, "tried", "run"), print, follower.ended)
        tracker.begin({})
        tracker.flush(seconds=60)
        assert follower._process is not None
        os.kill(follower._process.pid, signal.SIGSTOP)
        tracker.metrics({"train/loss": 0.5}, 1)
        print(follower._process.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "True", float(sys.argv[4]))
