"""The time of a training's steps, and what does not count as such."""

import time

from tests.stages.experiments import one_device
from tests.stages.training.stopped import Stopper, run


def test_a_job_of_a_sweep_waits_for_its_turn_behind_its_first_step_and_counts_it_nowhere() -> None:
    turns: list[int] = []

    class Waiting(Stopper):
        def wait_for_turn(self) -> None:
            turns.append(self.done)
            time.sleep(1)

    began = time.perf_counter()
    trained, _ = run(one_device(), None, reporter=Waiting(), epochs=1)
    spent = time.perf_counter() - began
    assert turns == [0]  # no step is told of: the first is taken, not timed
    assert 0 < 7 * trained.history[-1]["train/step_milliseconds"] / 1000 < spent - 1
