"""`python -m tests.chaos.search_faults`: kills all processes of real searches at random moments, repeats the command.

A search has survived where, after any number of kills, the same command ends with exit code 0, the study has the
points, values and pruned trials of a search that nobody killed, to the bit and none twice, the best is the same
experiment, and every trial is FINISHED once in MLflow.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna

from pipeline.search.study import STUDY, open_storage
from pipeline.sweep.index import read_index, sweep_status
from tests.chaos.repeated import count_survived, parser, recorded

TRIALS = 5
GIVEN = (
    "sweep=tpe",
    f"sweep.trials={TRIALS}",
    "sweep.startup_trials=2",
    "sweep.seed=1",
    "optimizer.learning_rate=tag(log,interval(1e-4,1))",
    "train.batch_size=64,96",
    "model=mlp",
    "train.epochs=3",
    "deterministic=true",
    "train.checkpoint_every_steps=10",
    "pipeline.inspect=null",
    "pipeline.export=null",
)


def results(outputs: Path) -> dict[str, Any]:
    """Returns the trials and the best; asserts that the store has every trial once, and FINISHED."""
    searches = {path.name: sweep_status(path) for path in outputs.glob("sweeps/*")}
    assert len(searches) == 1, searches
    [file] = outputs.glob(f"sweeps/*/{STUDY}")
    study = optuna.load_study(study_name="search", storage=open_storage(file))
    trials = [(trial.params, trial.state.name, trial.values, trial.intermediate_values) for trial in study.trials]
    assert len(trials) == TRIALS, trials
    recorded(outputs, TRIALS + 1)  # and the run that tests the best of them
    return {"trials": trials, "best": read_index(file.parent).facts["search"]}


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser("tests.chaos.search_faults", __doc__).parse_args(arguments)
    print(f"search of {TRIALS} trials", flush=True)
    survived, done = count_survived(given, GIVEN, results)
    print(f"search: survived {survived} of {done} kills", flush=True)
    return 0 if survived == done else 1


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    sys.exit(main())
