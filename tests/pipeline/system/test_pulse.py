"""Signs of life: what hangs is told from what computes, and from what waits and says so."""

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from pipeline.system.processes import LocalProcess
from pipeline.system.pulse import Pulse, Watch

LIMIT = 1.0
CONTEXT = multiprocessing.get_context("spawn")


def asleep(pulse: Pulse) -> None:
    time.sleep(60)


def busy(pulse: Pulse) -> None:
    while True:
        pass


def alive(pulse: Pulse) -> None:
    while True:
        time.sleep(0.1)
        pulse.beat()


@pytest.fixture
def start() -> Iterator[Callable[..., tuple[LocalProcess, Watch]]]:
    begun: list[LocalProcess] = []

    def run(target: Callable[[Pulse], None]) -> tuple[LocalProcess, Watch]:
        process = LocalProcess(target, (), context=CONTEXT)
        begun.append(process)
        time.sleep(3)  # until it has imported what it needs
        return process, Watch(process, LIMIT)

    yield run
    for process in begun:
        process.kill()


def judged(watch: Watch, seconds: float = 3 * LIMIT) -> bool:
    """Returns whether `watch` takes its process for hung within some time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        watch.note()
        if watch.hangs():
            return True
        time.sleep(0.1)
    return False


Start = Callable[[Callable[[Pulse], None]], tuple[LocalProcess, Watch]]


@pytest.mark.slow
def test_what_neither_computes_nor_reaches_a_safe_place_hangs(start: Start) -> None:
    _, sleeper = start(asleep)
    _, worker = start(busy)
    process, walker = start(alive)
    assert judged(sleeper)
    assert not judged(worker)
    assert not judged(walker)
    process.signal(signal.SIGSTOP)
    assert judged(walker)
