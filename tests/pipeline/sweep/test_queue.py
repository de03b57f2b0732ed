"""The queue of a sweep: several jobs at a time, the next one only when a slot is free, no process left running."""

import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.console import Console
from pipeline.decide.decision import Decision, decide
from pipeline.decide.job import Job
from pipeline.execute.link import Link, Turn
from pipeline.launch.forked import JobProcess
from pipeline.launch.slots import Slot
from pipeline.runs.folder import LOG, RunFolder
from pipeline.runs.summary import Summary
from pipeline.sweep.queue import Scheduler, refusal_in
from pipeline.system import signals
from pipeline.system.signals import Interrupted, signal_request
from pipeline.tracking.follower import Follower
from stages.errors import UserError
from tests.pipeline.experiments import QUICK, experiment

pytestmark = pytest.mark.slow

SLEEPS = (*QUICK, f"data._target_={__name__}.sleep", "tracking=off")


def sleep(settings: object) -> None:
    """A data source that waits for a second, with a safe place every tenth of a second, and fails."""
    for _ in range(10):
        signals.pause(0.1)
    raise UserError("slept", "", "")


def nothing(*_: object) -> None:
    pass


def jobs(outputs: Path, count: int, *overrides: str) -> Iterator[Job]:
    for number in range(count):
        given = (f"seed={number}", *SLEEPS, *overrides)
        yield Job(experiment(*given, outputs=outputs), RunFolder(outputs / "jobs" / str(number)))


def one_by_one(given: Iterator[Job]) -> Callable[[], Job | None]:
    return lambda: next(given, None)


def test_the_next_job_is_taken_when_a_slot_is_free_and_one_job_can_be_stopped(outputs: Path) -> None:
    events: list[str] = []
    codes: list[int] = []
    most: list[int] = []

    def taken() -> Iterator[Job]:
        for job in jobs(outputs, 3):
            events.append("taken")
            yield job

    def ended(job: Job, code: int, seconds: float, again: bool) -> None:
        events.append("ended")
        codes.append(code)

    def polled(running: Any) -> None:
        most.append(len(running))
        for process in running:
            if process.folder.path.name == "0":
                process.stop(signal_request(signal.SIGTERM))

    Scheduler(one_by_one(taken()), Console(), Follower(), [Slot()] * 2, on_end=ended, on_poll=polled).run()
    assert sorted(codes) == [1, 1, 143]
    assert max(most) == 2
    assert events[:3] == ["taken", "taken", "ended"]
    for place, event in enumerate(events):  # each is taken after as many have ended
        assert event == "ended" or events[:place].count("taken") - events[:place].count("ended") < 2


@pytest.mark.parametrize("how", ["signal", "error"])
def test_no_process_is_left_however_the_queue_ends(how: str, outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    processes: list[psutil.Process] = []

    def given() -> Iterator[Job]:
        yield from jobs(outputs, 2)
        raise UserError("the search cannot continue", "", "")

    class Noted(JobProcess):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            processes.append(psutil.Process(self.process.pid))

    def ended(job: Job, code: int, seconds: float, again: bool) -> None:
        codes.append(code)

    monkeypatch.setattr("pipeline.launch.forked.JobProcess", Noted)
    places, ends = (2, Interrupted) if how == "signal" else (3, UserError)
    with signals.listening():
        if how == "signal":
            threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(ends):
            Scheduler(one_by_one(given()), Console(), Follower(), [Slot()] * places, ended, nothing).run()
    assert codes == [130 if how == "signal" else 143] * 2
    assert len(processes) == 2
    assert not [process for process in processes if process.is_running()]


@pytest.mark.parametrize(("error", "code"), [(UserError("no fork", "", ""), 2), (KeyError("a damaged file"), 1)])
def test_a_job_that_cannot_start_does_not_keep_the_others_from_it(
    error: Exception, code: int, outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def second_is_refused(job: Job) -> Decision:
        if job.experiment.seed == 1:
            raise error
        return decide(job)

    codes: dict[int, int] = {}

    def ended(job: Job, code: int, seconds: float, again: bool) -> None:
        codes[job.experiment.seed] = code

    monkeypatch.setattr("pipeline.sweep.queue.decide", second_is_refused)
    Scheduler(one_by_one(jobs(outputs, 3)), Console(), Follower(), [Slot()], ended, nothing).run()
    assert codes == {0: 1, 1: code, 2: 1}
    folder = RunFolder(outputs / "jobs" / "1")
    reason = refusal_in(folder) if code == 2 else (folder.path / LOG).read_text()
    assert str(error) in (reason or "")


def notes(decision: Decision, link: Link, variables: object, reloads_afresh: bool, until: str) -> None:
    """Stand for a job that trains in its turn, is evaluated until the next one does `until`, and is sent meanwhile."""
    folder, turn = decision.folder.path, link.turn
    folder.mkdir(parents=True, exist_ok=True)
    number, events = int(folder.name), folder.with_name("events")

    def note(event: str) -> None:
        with events.open("a") as file:
            file.write(f"{event} {number}\n")

    note("begins")
    turn.wait()
    note("trains")
    turn.has_trained()
    if until and number < 2:
        assert signals.until(lambda: f"{until} {number + 1}" in events.read_text(), 30, 0.01)
    time.sleep(0.2)  # a job that must not begin, or train, would do so now
    note("ends")
    turn.has_finished()
    if number < 2:  # the next one begins while this one is still sent to its store
        assert signals.until(lambda: f"begins {number + 1}" in events.read_text(), 30, 0.01)
    (folder / "sent").touch()
    os._exit(0)


@pytest.mark.parametrize("overlaps", [True, False])
def test_a_job_may_begin_while_the_one_before_is_evaluated_and_trains_after_it(
    overlaps: bool, outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.launch.forked._work", functools.partial(notes, until="begins" if overlaps else ""))
    Scheduler(one_by_one(jobs(outputs, 3)), Console(), Follower(), [Slot()], nothing, nothing, overlaps=overlaps).run()
    events = (outputs / "jobs" / "events").read_text().split("\n")
    rest = ["trains 1", "begins 2", "ends 1", "trains 2", "ends 2"]
    assert len([*outputs.glob("jobs/*/sent")]) == 3
    if overlaps:
        assert events[:-1] == ["begins 0", "trains 0", "begins 1", "ends 0", *rest]
    else:
        assert events[:-1] == [f"{event} {number}" for number in range(3) for event in ("begins", "trains", "ends")]


def test_waiting_for_its_turn_does_not_count_for_the_time_limit_of_a_job() -> None:
    ours, theirs = Pipe()
    turn = Turn(theirs, 60)
    with signals.listening():
        deadline = time.monotonic() + 60
        signals.time_out(deadline, 60)
        threading.Timer(0.3, lambda: ours.send(time.monotonic())).start()
        turn.wait()
        assert turn.waited >= 0.3
        assert signals._listener.timer is not None
        assert deadline + 0.3 <= signals._listener.timer[0] <= time.monotonic() + 60
        came = time.monotonic() - 20  # and the job has computed since then
        ours.send(came)
        Turn(theirs, 60).wait()
        assert signals._listener.timer[0] == came + 60
    ours.close()  # the sweep was killed
    turn.has_finished()
    assert not turn._came()


def finishes_and_dies(decision: Decision, link: Link, variables: object, reloads_afresh: bool) -> None:
    """Stand for a job that is killed while it prints its results or waits for their upload."""
    Summary("abcdef12", "FINISHED", "tried", decision.folder.path, {}).write(decision.folder.path)
    os._exit(9)


def test_a_job_that_dies_after_its_run_has_finished_is_done(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not retried, which would be refused, as the run has finished."""
    codes: list[int] = []

    def ended(job: Job, code: int, seconds: float, again: bool) -> None:
        codes.append(code)

    monkeypatch.setattr("pipeline.launch.forked._work", finishes_and_dies)
    Scheduler(one_by_one(jobs(outputs, 1)), Console(), Follower(), [Slot()], ended, nothing, retries=1).run()
    assert codes == [0]
