"""A handful of what `make faults` does: real runs, killed by SIGKILL, end as if nobody had."""

from pathlib import Path

import pytest

from tests.chaos import random_kills
from tests.chaos.command import prepared
from tests.chaos.faults import Fault, Outcome, outcome, run, trial
from tests.chaos.random_kills import Moment

pytestmark = pytest.mark.slow

FAULTS = {
    "one_device": [Fault("writing", 3), Fault("epoch_end", 4)],
    "multi_worker": [Fault("step", 13, worker=1)],
}
"""A member of each kind; `mirrored` resumes to the bit in `tests/stages/training/test_resume.py`."""


@pytest.mark.parametrize("strategy", FAULTS)
def test_a_killed_run_ends_as_one_that_nobody_killed(strategy: str, tmp_path: Path, migrated_store: Path) -> None:
    outputs = prepared(tmp_path, migrated_store)
    expected: Outcome = outcome(strategy, outputs, *run(strategy, outputs))
    assert expected.code == 0
    wrong, found, _ = trial(strategy, FAULTS[strategy], migrated_store, expected)
    assert wrong is None
    assert found.summary.resumed_from_step is not None


def test_a_run_killed_at_any_moment_is_whole_after_the_same_command(tmp_path: Path, migrated_store: Path) -> None:
    """A few of what `python -m tests.chaos.random_kills` does."""
    (tmp_path / "usual").mkdir()
    usually = random_kills.usual(prepared(tmp_path / "usual", migrated_store))
    for index, moment in enumerate((Moment(False, 0.3), Moment(True, 0.8, kill_sync=True))):
        (tmp_path / str(index)).mkdir()
        random_kills.trial(prepared(tmp_path / str(index), migrated_store), moment, usually)
