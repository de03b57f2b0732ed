"""`python -m tests.stages.evaluation.worker FOLDER`: a worker of the cluster in `TF_CONFIG`, in `FOLDER/<index>`."""

import json
import os
import sys
from pathlib import Path

from stages.settings.strategy import MultiWorkerSettings
from stages.strategy import strategy
from tests.stages.evaluation.test_predictions import evaluated

if __name__ == "__main__":
    folder = Path(sys.argv[1]) / str(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
    folder.mkdir()
    evaluated(strategy(MultiWorkerSettings(deterministic=True)), folder)
