"""The loop that watches runs: it reports each end once, passes on every signal, and leaves nothing running."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.decide.job import Job
from pipeline.launch.handle import Ended, Handle
from pipeline.launch.supervise import supervise
from pipeline.runs.folder import RunFolder
from pipeline.system import signals
from pipeline.system.signals import Interrupted, Request
from stages.errors import UserError
from tests.pipeline.experiments import experiment


class Run(Handle):
    """A run that ends after `looks` calls of `poll`, or after `stops` calls of `stop`; then it uploads."""

    def __init__(self, job: Job, looks: int = 10**6, stops: int = 1, uploads: int = 0) -> None:
        super().__init__(job)
        self.looks, self.stops, self.uploads = looks, stops, uploads
        self.counts: list[int] = []

    def poll(self) -> int | None:
        self.looks -= 1
        if self.looks <= 0:
            self.exit_code = 0
        if self.counts and self.counts[-1] >= self.stops:
            self.exit_code = 9
        return self.exit_code

    def stop(self, request: Request, count: int = 1) -> None:
        self.counts.append(count)

    def has_left(self) -> bool:
        self.uploads -= self.exit_code is not None
        return self.exit_code is not None and self.uploads < 0


@pytest.fixture
def job(outputs: Path) -> Job:
    return Job(experiment(outputs=outputs), RunFolder(outputs / "a"))


@pytest.fixture
def listening() -> Iterator[None]:
    with signals.listening():
        yield


def test_each_end_is_reported_once_and_another_run_may_follow(job: Job) -> None:
    first, second = Run(job, looks=1, uploads=3), Run(job, looks=2)
    handles: list[Handle] = [first]
    ends: list[tuple[Handle, int]] = []

    def more() -> None:
        if first.exit_code == 0 and not second.counts and second not in handles and second.exit_code is None:
            assert first in handles  # it uploads
            handles.append(second)

    supervise(handles, lambda handle, code: ends.append((handle, code)), more)
    assert ends == [(first, 0), (second, 0)]
    assert not handles


def test_a_run_that_has_ended_needs_no_wait_and_keeps_its_exit_code(job: Job, listening: None) -> None:
    signal.raise_signal(signal.SIGTERM)
    handle = Ended(job, 0)
    began = time.monotonic()
    supervise([handle])
    assert time.monotonic() - began < 0.1
    assert handle.exit_code == 0


def test_a_run_that_ends_at_once_lets_the_next_start(job: Job) -> None:
    waiting = [Ended(job, code) for code in (0, 1, 2)]
    handles: list[Handle] = []
    codes: list[int] = []

    def more() -> None:
        if not handles and waiting:
            handles.append(waiting.pop(0))

    began = time.monotonic()
    supervise(handles, lambda handle, code: codes.append(code), more)
    assert codes == [0, 1, 2]
    assert time.monotonic() - began < 0.1


def test_every_signal_is_passed_on_and_all_ends_are_awaited(job: Job, listening: None) -> None:
    patient, quick = Run(job, stops=2), Run(job)
    ends: list[tuple[Handle, int]] = []
    for seconds in (0.1, 0.6):
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(Interrupted) as stopped:
        supervise([patient, quick], lambda handle, code: ends.append((handle, code)))
    assert stopped.value.exit_code == 130
    assert ends == [(quick, 9), (patient, 9)]
    assert (set(quick.counts), set(patient.counts)) == ({1}, {1, 2})


def test_an_error_ends_what_still_runs(job: Job) -> None:
    running = Run(job)

    def more() -> None:
        raise UserError("the search cannot continue", "", "")

    with pytest.raises(UserError):
        supervise([running], more=more)
    assert running.exit_code == 9
