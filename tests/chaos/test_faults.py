"""Some cases of `make faults`: real runs that are killed by SIGKILL and repeated equal uninterrupted runs."""

from pathlib import Path

import pytest

from tests.chaos.faults import CASES, after, after_training, by_itself, trial
from tests.conftest import outputs_in

pytestmark = pytest.mark.slow

KILLS = {
    "one_device": [
        after(1.0),
        by_itself("writing", 9),
        by_itself("epoch_end", 4),
        after_training(1.0, sync_seconds=0.5),
    ],
    "multi_worker": [by_itself("step", 13, worker=1)],
}
"""A moment of each kind; `mirrored` resumes to the bit in `tests/stages/training/test_resume.py`."""


@pytest.mark.parametrize("name", KILLS)
def test_a_killed_run_ends_as_one_that_nobody_killed(
    name: str, outputs: Path, tmp_path: Path, migrated_store: Path
) -> None:
    (tmp_path / "killed").mkdir()
    case = CASES[name]
    assert case.run(outputs) == 0
    hits = trial(case, outputs_in(tmp_path / "killed", migrated_store), KILLS[name], case.results(outputs))
    assert hits >= len(KILLS[name]) - 1  # the last may come when all is done
