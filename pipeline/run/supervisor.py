"""Starts the processes of a cluster on this machine, watches them, and ends them all when one has ended the run."""

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

from pipeline.cluster.task import OPEN_PORTS, Task, cluster_settings, local_tasks
from pipeline.paths import shorter
from pipeline.run.child import POLL_SECONDS, code_of, enter, exit_code_of, pass_on
from pipeline.run.console import Console
from pipeline.run.executor import work
from pipeline.run.job import DONE, FAILED, STOPPED, Job
from pipeline.run.lifecycle import new_folder
from pipeline.run.plan import PlannedStage
from pipeline.run.resume import begun_in
from pipeline.run.settle import end_lost
from pipeline.system import pulse, signals
from pipeline.system.processes import process_context, start
from pipeline.system.pulse import Pulse, Watch, is_stopped
from pipeline.system.signal_listener import Interrupted
from pipeline.system.signals import TIMED_OUT

GRACE_SECONDS = 20.0
"""Seconds that the chief has to report an error once another member has died: collectives notice it after about 10."""

TIMEOUT_GRACE_SECONDS = 20.0
"""Seconds that a chief may exceed `job_timeout_seconds` by before it is signalled from outside."""

RETURNS = 3
"""Restarts of each worker of a parameter-server cluster; the run continues without it, too."""


def run_cluster(job: Job, plan: Sequence[PlannedStage], console: Console) -> int:
    """Runs `job` in a process for each member of its cluster and returns the chief's exit code.

    A cluster that has lost a member is started again from its last checkpoint, `cluster.restarts` times at most.
    """
    with signals.listening(), signals.uninterrupted():
        return _run_cluster(job, plan, console)


def _run_cluster(job: Job, plan: Sequence[PlannedStage], console: Console) -> int:
    folder = job.folder or new_folder(job.experiment)
    folder.mkdir(parents=True, exist_ok=True)
    job = replace(job, folder=folder)
    left = job.experiment.cluster.restarts
    if job.deadline is not None:
        limit = job.experiment.job_timeout_seconds or 0
        signals.time_out(job.deadline + TIMEOUT_GRACE_SECONDS, limit)
    console.warn(OPEN_PORTS)
    while True:
        cluster = _Cluster(job, plan, console)
        code = cluster.run()
        if not cluster.has_lost or not left or code in (DONE, TIMED_OUT, *STOPPED):
            break
        left -= 1
        console.warn(f"the cluster is started again from its last checkpoint; {left} restarts are left")
        job = job.resuming(begun_in(folder))
    with signals.ending(code):
        end_lost(folder, job.experiment, "KILLED" if code in (TIMED_OUT, *STOPPED) else "FAILED", console)
    return code


class _Cluster:
    """The members of one attempt. has_lost: whether one of them died, or hung, that the run cannot do without."""

    def __init__(self, job: Job, plan: Sequence[PlannedStage], console: Console) -> None:
        settings = cluster_settings(job.experiment)
        assert settings is not None
        assert job.folder is not None
        self.has_lost = False
        self._job, self._plan, self._console, self._folder = job, plan, console, job.folder
        self._tasks = local_tasks(settings)
        self._members: dict[str, BaseProcess] = {}
        self._pulses: dict[str, Pulse] = {}
        self._watches: dict[str, Watch] = {}
        self._hung: dict[str, float] = {}
        self._returns = dict.fromkeys((task.name for task in self._tasks), RETURNS)
        self._context = process_context()

    def run(self) -> int:
        """Starts the members, waits for the chief and ends the others; returns the chief's exit code."""
        names = ", ".join(task.name for task in self._tasks[1:])
        self._console.say(f"chief, {names} on this machine; what these print is in {shorter(self._folder)}/<name>.log")
        try:
            for task in self._tasks:
                signals.check()
                self._start(task)
            return self._watch()
        except Interrupted as interrupted:
            chief = self._tasks[0].name
            if chief in self._members:
                pass_on(self._members[chief], self._pulses[chief])
            return interrupted.exit_code
        finally:
            with signals.ending():
                for process in self._members.values():
                    process.kill()
                    process.join()

    def _start(self, task: Task) -> None:
        printed = self._console.said if task.is_chief else []
        shown = self._pulses[task.name] = Pulse(self._context)
        process = start(self._context, _member, (self._job, self._plan, task, printed, shown))
        self._members[task.name] = process
        limit = self._job.experiment.hang_seconds
        if limit is not None and process.pid is not None:
            self._watches[task.name] = Watch(shown, process.pid, limit)

    def _watch(self) -> int:
        """Waits for the chief's end and returns its exit code; what another member's end means, it says."""
        chief = self._members[self._tasks[0].name]
        others = list(self._tasks[1:])
        deadline: float | None = None
        while chief.exitcode is None:
            running = {self._members[task.name].sentinel: task for task in others}
            ended = wait([chief.sentinel, *running], timeout=POLL_SECONDS)
            pulse.beat()
            signals.check()
            for task in [running[sentinel] for sentinel in running if sentinel in ended]:
                others.remove(task)
                if self._is_missed(task, others, chief):
                    deadline = deadline or time.monotonic() + GRACE_SECONDS
            if deadline is None:
                self._end_hung([self._tasks[0], *others])
            elif time.monotonic() > deadline:
                return FAILED
        chief.join()
        if chief.exitcode == FAILED:
            self._find_stopped(others)
        self.has_lost |= chief.exitcode < 0
        return exit_code_of(chief)

    def _find_stopped(self, others: Sequence[Task]) -> None:
        """Notes a member that hangs because it was stopped: TensorFlow ends the chief for it, before any limit here."""
        for task in others:
            process = self._members[task.name]
            if process.exitcode is None and is_stopped(process.pid):
                self._console.error(f"{task.name} was stopped (SIGSTOP), and the chief ended for want of it")
                self.has_lost = True

    def _end_hung(self, tasks: Sequence[Task]) -> None:
        """Kills the member, if any, that has given no sign of life for too long; the others get as long again.

        One that is waited for makes those that wait look hung, too: it is one that was stopped, else no chief.
        """
        watches = {task.name: self._watches[task.name] for task in tasks if task.name in self._watches}
        for watch in watches.values():
            watch.note()
        if not any(watch.hangs() for watch in watches.values()):
            return
        chief = self._tasks[0].name
        stopped = [name for name, watch in watches.items() if watch.is_stopped]
        hung = stopped or [name for name, watch in watches.items() if watch.hangs()]
        guilty = max(hung, key=lambda name: (name != chief, watches[name].silence()))
        self._hung[guilty] = watches[guilty].silence()
        self._members[guilty].kill()
        for watch in watches.values():
            watch.begin_again()
        if guilty == chief:
            self._console.error(f"{guilty} {self._how(guilty, None)}: the run cannot continue")

    def _how(self, name: str, code: int | None) -> str:
        if name in self._hung:
            return f"has given no sign of life for {self._hung.pop(name):.0f} s, and was killed"
        return f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"

    def _is_missed(self, task: Task, others: list[Task], chief: BaseProcess) -> bool:
        """Says what it means that `task` has ended; returns whether the chief will have to end, too."""
        self._members[task.name].join()  # the pipe of one that was forked closes a moment before it has ended
        code = self._members[task.name].exitcode
        if code == 0:
            return False
        if code in STOPPED:  # by a signal; all of them save and end, and a chief that does not train gets it here
            with suppress(ProcessLookupError):
                os.kill(chief.pid or 0, signal.SIGTERM if code == 128 + signal.SIGPIPE else code - 128)
            return True
        how = self._how(task.name, code)
        if task.serves and task.job == "worker":
            again = self._returns[task.name] > 0
            if again:
                self._returns[task.name] -= 1
                self._start(task)
                others.append(task)
            if any(other.job == "worker" for other in others):
                back = "it is started again; meanwhile " if again else ""
                self._console.warn(f"{task.name} {how}; {back}the other workers take over its steps")
                return False
        self.has_lost |= code is not None and code < 0
        log = shorter(self._folder / f"{task.name}.log")
        self._console.error(f"{task.name} {how}: the run cannot continue ({log})")
        return True


def _member(job: Job, plan: Sequence[PlannedStage], task: Task, printed: Sequence[str], own: Pulse) -> None:
    """The process of one member of the cluster."""
    assert job.folder is not None
    if not task.is_chief:
        log = os.open(job.folder / f"{task.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
    task.enter()
    enter(job, own, stop=signal.SIGINT if task.is_chief else None)  # the chief needs the others to save what there is
    with signals.listening(owns_process=True):
        console = Console(printed)
        code = code_of(lambda: work(job, plan, console, task), console)
        console.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # past TensorFlow's destructors, which wait for members that have gone
