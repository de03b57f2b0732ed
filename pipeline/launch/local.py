"""`cluster=local`: the members are processes on this machine. They are watched, and all end if one fails."""

import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.command_line.arguments import command_line
from pipeline.console import Console
from pipeline.decide.decision import Decision
from pipeline.execute.child import enter, leave
from pipeline.execute.claim import claimed
from pipeline.execute.execute import execute, followed
from pipeline.execute.link import Link
from pipeline.execute.task import OPEN_PORTS, Task, tasks_at
from pipeline.exit_codes import DONE, FAILED, STOPPED, TIMED_OUT
from pipeline.launch.handle import Handle
from pipeline.launch.launcher import Launcher, run_here
from pipeline.runs.folder import LOG
from pipeline.system import machine, signals, streams
from pipeline.system.processes import LocalProcess
from pipeline.tracking.ending import LOST, end_run
from pipeline.tracking.tracker import STOPPED_SECONDS

GRACE_SECONDS = 20.0
"""Seconds that the chief has to report an error after a member has died. Collectives notice it after about 10."""


class Local(Launcher):
    """Starts a process for each member, on this machine. A job without a cluster runs in this process."""

    def start(
        self, decision: Decision, console: Console, link: Link | None = None, started: float | None = None
    ) -> Handle:
        if not decision.experiment.members:
            return run_here(decision, console, link, started)
        began = time.monotonic() if started is None else started
        return LocalMembers(decision, console, link or Link(), began, self.settings.restarts)


class LocalMembers(Handle):
    """A run whose members are processes of this one.

    A cluster that has lost a member is restarted from its last checkpoint, up to `restarts` times. Only the chief is
    asked to end, as it needs the others to save a checkpoint. They are ended by force when it has ended.
    """

    def __init__(self, decision: Decision, console: Console, link: Link, started: float, restarts: int) -> None:
        super().__init__(decision.job)
        self._decision, self._console, self._began = decision, console, started
        self._link = replace(link, is_followed=True)
        self._restarts = restarts
        self._request: signals.Request | None = None
        with ExitStack() as resources:
            resources.enter_context(claimed(decision, supervises=True))
            self._follower = resources.enter_context(followed(decision, link))
            self._start_members()
            self._resources = resources.pop_all()

    @property
    def events(self) -> Sequence[Any]:
        return [self._processes[task.name].sentinel for task in self._members.left]

    def poll(self) -> int | None:
        self._follower.revive()
        if self.exit_code is None and (code := self._members.poll()) is not None:
            self._end_members()
            if self._request is None and starts_again(code, self._members.lost, self._restarts, self._console):
                self._restarts -= 1
                try:
                    self._start_members()
                except BaseException:
                    self._end(FAILED)
                    raise
            else:
                self._end(code if self._request is None else self._request.exit_code)
        return self.exit_code

    def stop(self, request: signals.Request, count: int = 1) -> None:
        self._request = request
        self._members.wait_for_chief()
        self._chief.stop(request, count)

    def _start_members(self) -> None:
        """Start the processes of all members."""
        tasks, run = local_tasks(self._decision.experiment.members), self.folder
        names = ", ".join(task.name for task in tasks[1:])
        self._console.log(f"started chief, {names} on this machine; their output is in {run}/<name>.log")
        self._console.warn(OPEN_PORTS)
        self._processes: dict[str, LocalProcess] = {}
        try:
            for task in tasks:
                log = run.path / LOG if self._console.is_quiet and task.is_chief else None
                given = self._decision, self._link, self._began, task, log, command_line()
                self._processes[task.name] = LocalProcess(_member, given, self._decision.experiment.hang_seconds)
        except BaseException:
            self._end_members()
            raise
        self._chief = chief = self._processes[tasks[0].name]
        self._members = Members(
            left=tasks[::-1],
            end_of=lambda task: self._processes[task.name].end(),
            stop_chief=lambda: chief.stop(signals.signal_request(signal.SIGTERM)),
            console=self._console,
        )

    def _end_members(self) -> None:
        with signals.ending():
            for process in self._processes.values():
                process.kill()
                process.join()

    def _end(self, code: int) -> None:
        signals.ended(code)
        with signals.ending(), self._resources:
            end_run(self.folder, code, LOST, self._console)
            self._follower.wait(STOPPED_SECONDS)
        self.exit_code = code


def local_tasks(members: Mapping[str, int]) -> list[Task]:
    """Return the tasks of a cluster on this machine, each with a free port."""
    with ExitStack() as stack:
        count = sum(members.values())
        sockets = [stack.enter_context(socket.create_server((machine.HOST, 0))) for _ in range(count)]
        return tasks_at(members, [f"{machine.HOST}:{opened.getsockname()[1]}" for opened in sockets])


def enter_cluster(task: Task) -> None:
    """Set `TF_CONFIG` and the GPUs of this process. A worker gets its share of the GPUs, other members get none."""
    os.environ["TF_CONFIG"] = task.tf_config
    workers = len(task.cluster.get("worker", []))
    if gpus := machine.visible_gpus():
        of_worker = gpus[task.index * len(gpus) // workers : (task.index + 1) * len(gpus) // workers]
        os.environ[machine.GPUS] = ",".join(of_worker if task.job == "worker" else ()) or "-1"


def starts_again(code: int, lost: str | None, left: int, console: Console) -> bool:
    """Return whether to restart a run that ended with `code`: if a member was lost and there are restarts `left`."""
    if lost is None or not left or code in (DONE, TIMED_OUT, *STOPPED):
        return False
    console.warn(f"restarting the cluster from its last checkpoint ({left - 1} restarts left)")
    return True


@dataclass
class Members:
    """The members of a running cluster, which ends when the chief or another member that the run needs has ended.

    They are not handles of `supervise`, because they depend on each other: the run has a single exit code, and when one
    member ends, the others may have to end, too.
    """

    left: list[Task]
    """The members that have not ended. The chief is last, because the end of another member may explain its end."""
    end_of: Callable[[Task], tuple[int, str] | None]
    """Returns the exit code of a member and how it ended; see `LocalProcess.end`."""
    stop_chief: Callable[[], object]
    """Asks the chief to save and end."""
    console: Console
    lost: str | None = None
    """The reason, if a member that the run needs has died or hung."""
    deadline: float = math.inf
    """The time (`time.monotonic()`) at which the run ends even if the chief has not ended."""

    def poll(self) -> int | None:
        """Return the exit code of the run, or None while it runs. Call this every POLL_SECONDS."""
        for task in list(self.left):
            if (ended := self.end_of(task)) is None:
                continue
            self.left.remove(task)
            code, how = ended
            if code not in (DONE, TIMED_OUT, *STOPPED):
                self._note(task, code, how)
            if task.is_chief:
                return code
            if code in STOPPED:  # by a signal, on which all save and end; a chief that does not train must be asked
                self.stop_chief()
        return FAILED if time.monotonic() > self.deadline else None

    def wait_for_chief(self) -> None:
        """Watch only the chief from now on. It was asked to end, and the other members end because it does."""
        self.left = self.left[-1:]

    def _note(self, task: Task, code: int, how: str) -> None:
        end = f"{task.name} {how or f'ended with exit code {code}'}"
        if task.serves and task.job == "worker" and any(other.job == "worker" for other in self.left):
            self.console.warn(f"{end}; the other workers take over its work")
        elif how or not task.is_chief:  # the chief reports its own errors
            self.lost = end if how else self.lost
            self.console.error(f"{end}: the run cannot continue")
            self.deadline = min(self.deadline, time.monotonic() + GRACE_SECONDS)


def _member(  # all are facts of one process
    decision: Decision, link: Link, started: float, task: Task, log: Path | None, words: Sequence[str]
) -> None:
    """Run a member of the cluster: the main function of its process.

    Args:
        decision: What to do.
        link: The connections of a job to its sweep.
        started: When the user began to wait.
        task: The role of the member.
        log: See Console.
        words: The command as it was typed.
    """
    sys.argv[:] = words
    if not task.is_chief:
        streams.append_to(decision.folder.path / f"{task.name}.log")
    enter_cluster(task)
    # Only the chief gets signals, because it needs the others to save a checkpoint.
    enter(decision.experiment, stop=signal.SIGINT if task.is_chief else None)
    console = Console(log)
    leave(lambda: execute(decision, console, link, task, is_supervised=True, started=started), console)
