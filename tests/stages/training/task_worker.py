"""`python -m tests.stages.training.task_worker FOLDER CASES`: a worker of the cluster in `TF_CONFIG`.

CASES: as JSON, pairs of a task's set and a policy; what each is trained to is written into `FOLDER/<index>`.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np

import stages.strategy
from stages.settings.strategy import MultiWorkerSettings
from tests.stages.training.test_tasks import trained

if __name__ == "__main__":
    stages.strategy.PACK_BYTES = 64  # several packs, as large networks have
    where = stages.strategy.strategy(MultiWorkerSettings(deterministic=False))
    folder = Path(sys.argv[1]) / str(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
    folder.mkdir()
    for name, policy in json.loads(sys.argv[2]):
        weights, means = trained(name, folder, where, policy)
        np.savez(folder / f"{name}-{policy}.npz", allow_pickle=False, weights=weights, **means)
    assert where.record.on_exit is not None
    where.record.on_exit()  # waits for the other
