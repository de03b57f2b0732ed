"""The time of a training's steps, and what does not count as such."""

import time

from tests.stages.experiments import one_device
from tests.stages.training.stopped import Stopper, run


def test_the_first_progress_follows_the_first_step_and_what_it_takes_is_not_counted() -> None:
    turns: list[int] = []

    class Waiting(Stopper):
        def progress(self, done: int, total: int, note: str) -> None:
            if not turns:  # as a job of a sweep, which waits for its turn
                time.sleep(1)
            turns.append(done)
            super().progress(done, total, note)

    began = time.perf_counter()
    trained, _ = run(one_device(), None, reporter=Waiting(), epochs=1)
    spent = time.perf_counter() - began
    assert turns[0] == 1  # the first step is taken, and not timed
    assert 0 < 7 * trained.history[-1]["train/step_milliseconds"] / 1000 < spent - 1
