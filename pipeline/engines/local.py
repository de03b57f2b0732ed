"""`cluster=local`: starts the members on this machine, watches them, and ends all when one fails."""

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
from pipeline.run.child import POLL_SECONDS, code_of, enter, exit_code_of, forward_signals
from pipeline.run.console import Console
from pipeline.run.engine import Engine
from pipeline.run.executor import work
from pipeline.run.job import DONE, FAILED, STOPPED, Job
from pipeline.run.lifecycle import new_folder
from pipeline.run.plan import PlannedStage
from pipeline.run.resume import unfinished_in
from pipeline.run.settle import end_lost
from pipeline.system import pulse, signals
from pipeline.system.processes import process_context, start
from pipeline.system.pulse import Pulse, Watch, is_stopped
from pipeline.system.signal_listener import Interrupted
from pipeline.system.signals import TIMED_OUT

GRACE_SECONDS = 20.0
"""Seconds for the chief to report an error after another member has died; collectives notice after about 10."""

TIMEOUT_GRACE_SECONDS = 20.0
"""Seconds by which a chief may exceed `job_timeout_seconds` before it is signalled from outside."""

RESTARTS = 3
"""Restarts of each worker of a parameter-server cluster, without which the run can continue, too."""


class Local(Engine):
    """A process for each member, on this machine; a job without a cluster runs in this process.

    A cluster that has lost a member is restarted from its last checkpoint, up to `cluster.restarts` times.
    """

    def run(self, job: Job, plan: Sequence[PlannedStage], console: Console) -> int:
        if cluster_settings(job.experiment) is None:
            return work(job, plan, console)
        with signals.listening(), signals.uninterrupted():
            return _run_cluster(job, plan, console, self.settings.restarts)


def _run_cluster(job: Job, plan: Sequence[PlannedStage], console: Console, restarts: int) -> int:
    folder = job.folder or new_folder(job.experiment)
    folder.mkdir(parents=True, exist_ok=True)
    job = replace(job, folder=folder)
    if job.deadline is not None:
        limit = job.experiment.job_timeout_seconds or 0
        signals.time_out(job.deadline + TIMEOUT_GRACE_SECONDS, limit)
    console.warn(OPEN_PORTS)
    while True:
        cluster = _Cluster(job, plan, console)
        code = cluster.run()
        if not cluster.has_lost or not restarts or code in (DONE, TIMED_OUT, *STOPPED):
            break
        restarts -= 1
        console.warn(f"the cluster is started again from its last checkpoint; {restarts} restarts are left")
        job = job.resuming(unfinished_in(folder))
    with signals.ending(code):
        end_lost(folder, job.experiment, "KILLED" if code in (TIMED_OUT, *STOPPED) else "FAILED", console)
    return code


class _Cluster:
    """The members of one attempt. has_lost: whether a member that the run needs has died or hung."""

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
        self._restarts = dict.fromkeys((task.name for task in self._tasks), RESTARTS)
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
                forward_signals(self._members[chief], self._pulses[chief])
            return interrupted.exit_code
        finally:
            with signals.ending():
                for process in self._members.values():
                    process.kill()
                    process.join()

    def _start(self, task: Task) -> None:
        printed = self._console.said if task.is_chief else []
        shown = self._pulses[task.name] = Pulse(self._context)
        process = start(self._context, _member, (self._job, self._plan, task, printed, shown, self._console.is_quiet))
        self._members[task.name] = process
        limit = self._job.experiment.hang_seconds
        if limit is not None and process.pid is not None:
            self._watches[task.name] = Watch(shown, process.pid, limit)

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
            if process.exitcode is None and is_stopped(process.pid):
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
        return f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"

    def _ends_run(self, task: Task, members: list[Task], chief: BaseProcess) -> bool:
        """Reports the end of `task`; returns whether it ends the run."""
        self._members[task.name].join()  # a forked process's pipe closes a moment before it ends
        code = self._members[task.name].exitcode
        if code == 0:
            return False
        if code in STOPPED:  # by a signal; all save and end, and a chief that does not train gets it here
            with suppress(ProcessLookupError):
                os.kill(chief.pid or 0, signal.SIGTERM if code == 128 + signal.SIGPIPE else code - 128)
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


def _member(
    job: Job, plan: Sequence[PlannedStage], task: Task, printed: Sequence[str], heartbeats: Pulse, is_quiet: bool
) -> None:
    """Runs in the process of one member of the cluster."""
    assert job.folder is not None
    if not task.is_chief:
        log = os.open(job.folder / f"{task.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
    task.enter()
    # The chief alone is signalled, as it needs the others to save a checkpoint.
    enter(job, heartbeats, stop=signal.SIGINT if task.is_chief else None)
    with signals.listening(owns_process=True):
        console = Console(printed, job.folder / "pipeline.log" if is_quiet and task.is_chief else None)
        code = code_of(lambda: work(job, plan, console, task), console)
        console.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # past TensorFlow's destructors, which wait for lost members
