"""Supervises the members of a cluster: starts them, watches them, and ends all when one fails."""

import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from typing import Any, Protocol

from pipeline.console import Console
from pipeline.exit_codes import DONE, FAILED, STOPPED, TIMED_OUT
from pipeline.paths import shorter
from pipeline.planning.job import Job, claimed
from pipeline.planning.plan import PlannedStage
from pipeline.run.child import POLL_SECONDS, code_of, enter, exit_code_of, forward_signals
from pipeline.run.engine import OPEN_PORTS, Task
from pipeline.run.executor import work
from pipeline.run_folder.pending import end_lost
from pipeline.system import pulse, signals, streams
from pipeline.system.processes import ChildProcess
from pipeline.system.pulse import Pulse, Watch
from pipeline.system.signal_listener import Interrupted
from stages.errors import UserError

GRACE_SECONDS = 20.0
"""Seconds for the chief to report an error after another member has died; collectives notice after about 10."""

TIMEOUT_GRACE_SECONDS = 20.0
"""Seconds by which a chief may exceed `job_timeout_seconds` before it is signalled from outside."""

RESTARTS = 3
"""Restarts of each worker of a parameter-server cluster, without which the run can continue, too."""

CLOCKS_SECONDS = 1.0
"""Seconds by which the clocks of two processes of one machine cannot differ."""


class Members(Protocol):
    """The place where the members of a cluster run.

    Attributes:
        where: for the line that names them. prepare: called in the process of a member; returns its task for
            TensorFlow, or None where it runs alone.
    """

    where: str
    prepare: Callable[[Task], Task | None]

    def tasks(self) -> list[Task]:
        """Returns the tasks of a new attempt, the chief first."""

    def start(self, task: Task, target: Callable[..., None], arguments: tuple[Any, ...]) -> ChildProcess:
        """Starts the process of a member; see `pipeline.system.processes.Start`."""


def supervise(job: Job, plan: Sequence[PlannedStage], console: Console, members: Members, restarts: int) -> int:
    """Runs `job` in the processes of `members` and returns the chief's exit code.

    A cluster that has lost a member is restarted from its last checkpoint, up to `restarts` times.
    """
    with signals.listening(), signals.uninterrupted(), claimed(job, supervises=True) as job:
        folder = job.folder
        assert folder is not None
        if job.deadline is not None:
            limit = job.experiment.job_timeout_seconds or 0
            signals.time_out(job.deadline + TIMEOUT_GRACE_SECONDS, limit)
        while True:
            cluster = _Cluster(job, plan, console, members)
            code = cluster.run()
            if not cluster.has_lost or not restarts or code in (DONE, TIMED_OUT, *STOPPED):
                break
            restarts -= 1
            console.warn(f"the cluster is started again from its last checkpoint; {restarts} restarts are left")
        with signals.ending(code):
            status = "KILLED" if code in (TIMED_OUT, *STOPPED) else "FAILED"
            end_lost(folder, job.experiment, status, console, shared=True)
    return code


class _Cluster:
    """The members of one attempt. has_lost: whether a member that the run needs has died or hung."""

    def __init__(self, job: Job, plan: Sequence[PlannedStage], console: Console, place: Members) -> None:
        assert job.folder is not None
        self.has_lost = False
        self._job = job
        self._plan = plan
        self._console = console
        self._folder = job.folder
        self._place = place
        self._tasks: list[Task] = []
        self._members: dict[str, ChildProcess] = {}
        self._watches: dict[str, Watch] = {}
        self._hung: dict[str, float] = {}
        self._restarts: defaultdict[str, int] = defaultdict(lambda: RESTARTS)

    def run(self) -> int:
        """Starts the members, waits for the chief and ends the others; returns the chief's exit code."""
        try:
            self._tasks = self._place.tasks()
            self._announce()
            for task in self._tasks:
                signals.check()
                self._start(task)
            return self._watch()
        except Interrupted as interrupted:
            chief = self._tasks[0].name if self._tasks else ""
            if chief in self._members:
                forward_signals(self._members[chief])
            return interrupted.exit_code
        except UserError as error:
            self._console.error(str(error))
            return FAILED
        finally:
            with signals.ending():
                for process in self._members.values():
                    process.kill()
                    process.join()

    def _announce(self) -> None:
        if len(self._tasks) > 1:
            names = ", ".join(task.name for task in self._tasks[1:])
            logs = f"{shorter(self._folder)}/<name>.log"
            self._console.log(f"chief, {names} {self._place.where}; what these print is in {logs}")
            if self._tasks[0].meet is None:  # else the chief says so when they meet
                self._console.warn(OPEN_PORTS)

    def _start(self, task: Task) -> None:
        printed = self._console.said if task.is_chief else []
        clock = time.time() - time.monotonic()
        order = _Order(self._job, self._plan, task, self._place.prepare, printed, self._console.is_quiet, clock)
        process = self._members[task.name] = self._place.start(task, _member, (order,))
        limit = self._job.experiment.hang_seconds
        if limit is not None:
            self._watches[task.name] = Watch(process, limit)

    def _watch(self) -> int:
        """Waits for the chief's end and returns its exit code; reports the ends of other members."""
        chief = self._members[self._tasks[0].name]
        members = list(self._tasks[1:])
        deadline: float | None = None
        while chief.exitcode is None:
            running = {self._members[task.name].sentinel: task for task in members}
            ended = wait([chief.sentinel, *running], timeout=POLL_SECONDS)
            pulse.beat()
            signals.check()
            for task in [running[sentinel] for sentinel in running if sentinel in ended]:
                members.remove(task)
                if self._ends_run(task, members, chief):
                    deadline = deadline or time.monotonic() + GRACE_SECONDS
            if deadline is None:
                self._end_hung([self._tasks[0], *members])
            elif time.monotonic() > deadline:
                return FAILED
        chief.join()
        if chief.exitcode == FAILED:
            self._report_stopped(members)
        self.has_lost |= chief.exitcode < 0
        return exit_code_of(chief)

    def _report_stopped(self, members: Sequence[Task]) -> None:
        """Reports a member that hangs because it was stopped, for which TensorFlow ends the chief before any limit."""
        for task in members:
            process = self._members[task.name]
            if process.exitcode is None and process.is_stopped():
                self._console.error(f"{task.name} was stopped (SIGSTOP), and the chief ended for lack of it")
                self.has_lost = True

    def _end_hung(self, tasks: Sequence[Task]) -> None:
        """Kills the member, if any, without a heartbeat for too long; the others' limits start again.

        Members that wait for a hung one seem hung, too. It is the one that was stopped, else one that is not the chief.
        """
        watches = {task.name: self._watches[task.name] for task in tasks if task.name in self._watches}
        for watch in watches.values():
            watch.note()
        if not any(watch.hangs() for watch in watches.values()):
            return
        chief = self._tasks[0].name
        stopped = [name for name, watch in watches.items() if watch.is_stopped]
        hung = stopped or [name for name, watch in watches.items() if watch.hangs()]
        culprit = max(hung, key=lambda name: (name != chief, watches[name].silence()))
        self._hung[culprit] = watches[culprit].silence()
        self._members[culprit].kill()
        for watch in watches.values():
            watch.restart()
        if culprit == chief:
            self._console.error(f"{culprit} {self._cause(culprit, None)}: the run cannot continue")

    def _cause(self, name: str, code: int | None) -> str:
        if name in self._hung:
            return f"has given no sign of life for {self._hung.pop(name):.0f} s, and was killed"
        if (lost := self._members[name].lost) is not None:
            return f"is lost: {lost}"
        return f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"

    def _ends_run(self, task: Task, members: list[Task], chief: ChildProcess) -> bool:
        """Reports the end of `task`; returns whether it ends the run."""
        self._members[task.name].join()  # a forked process's pipe closes a moment before it ends
        code = self._members[task.name].exitcode
        if code == 0:
            return False
        if code in STOPPED:  # by a signal; all save and end, and a chief that does not train gets it here
            chief.signal(signal.SIGTERM if code == 128 + signal.SIGPIPE else code - 128)
            return True
        how = self._cause(task.name, code)
        if task.serves and task.job == "worker":
            restarts = self._restarts[task.name] > 0
            if restarts:
                self._restarts[task.name] -= 1
                self._start(task)
                members.append(task)
            if any(member.job == "worker" for member in members):
                prefix = "it is started again; meanwhile " if restarts else ""
                self._console.warn(f"{task.name} {how}; {prefix}the other workers take over its steps")
                return False
        self.has_lost |= code is not None and code < 0
        log = shorter(self._folder / f"{task.name}.log")
        self._console.error(f"{task.name} {how}: the run cannot continue ({log})")
        return True


@dataclass(frozen=True)
class _Order:
    """Orders for the process of a member.

    prepare: see Members. printed: lines for the beginning of its log. clock: `time.time() - time.monotonic()` of the
    process that supervises, by whose clock the job's times are.
    """

    job: Job
    plan: Sequence[PlannedStage]
    task: Task
    prepare: Callable[[Task], Task | None]
    printed: Sequence[str]
    is_quiet: bool
    clock: float


def _member(heartbeats: Pulse, order: _Order) -> None:
    """Runs in the process of one member of the cluster."""
    job = order.job
    task = order.task
    assert job.folder is not None
    if not task.is_chief:
        streams.append_to(job.folder / f"{task.name}.log")
    own = order.prepare(task)
    # The chief alone is signalled, as it needs the others to save a checkpoint.
    enter(job, heartbeats, stop=signal.SIGINT if task.is_chief else None)
    with signals.listening(owns_process=True):
        console = Console(order.printed, job.folder / "pipeline.log" if order.is_quiet and task.is_chief else None)
        code = code_of(lambda: work(_by_own_clock(job, order.clock), order.plan, console, own), console)
        console.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # past TensorFlow's destructors, which wait for lost members


def _by_own_clock(job: Job, clock: float) -> Job:
    """Returns `job` with its times by this machine's monotonic clock."""
    ahead = clock - (time.time() - time.monotonic())
    if abs(ahead) < CLOCKS_SECONDS:
        return job
    deadline = None if job.deadline is None else job.deadline + ahead
    return replace(job, started=job.started + ahead, deadline=deadline)
