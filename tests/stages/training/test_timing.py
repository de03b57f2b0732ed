"""The parts of a training's time, by a clock that the test sets."""

import time
from contextlib import suppress
from types import SimpleNamespace

import pytest

from stages.training.session import Timing
from tests.stages.experiments import one_device
from tests.stages.training.stopped import Stopper, run


def test_parts_do_not_overlap_and_add_up_to_the_time_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("stages.training.session.time", SimpleNamespace(perf_counter=lambda: clock.now))
    timing = Timing()
    clock.now += 1  # of no part
    with timing.of("steps"):
        clock.now += 10
        with timing.of("callbacks"):
            clock.now += 2
            with timing.of("checkpoints"):
                clock.now += 4
        with timing.of("callbacks"):
            clock.now += 3
    with suppress(ValueError), timing.of("steps"):
        clock.now += 5
        raise ValueError("stopped")
    timing.move("steps", "input_wait", 6)
    timing.move("callbacks", "input_wait", 50)  # more than there is
    clock.now += 7
    seconds = timing.metrics()
    assert seconds == {
        "train/steps_seconds": 9, "train/input_wait_seconds": 11, "train/callbacks_seconds": 0,
        "train/checkpoints_seconds": 4, "train/other_seconds": 8,
    }  # fmt: skip
    assert sum(seconds.values()) == clock.now - 100


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
    parts = [value for name, value in trained.record.metrics.items() if name.endswith("_seconds")]
    assert 0 < sum(parts) < spent - 1
