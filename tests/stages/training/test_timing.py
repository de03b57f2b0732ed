"""The parts of a training's time, by a clock that the test sets."""

from contextlib import suppress
from types import SimpleNamespace

import pytest

from stages.training.session import Timing


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
