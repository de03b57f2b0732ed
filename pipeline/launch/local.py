"""`cluster=local`: the members are processes of this machine, started, watched, and all ended when one fails."""

import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

from pipeline.command_line.arguments import command_line
from pipeline.console import Console
from pipeline.decide.decision import Decision
from pipeline.execute.child import POLL_SECONDS, enter, forward_signals, leave
from pipeline.execute.claim import claimed
from pipeline.execute.execute import execute
from pipeline.execute.link import Link
from pipeline.execute.task import OPEN_PORTS, Task, tasks_at
from pipeline.exit_codes import DONE, FAILED, STOPPED, TIMED_OUT
from pipeline.launch.engine import Engine
from pipeline.runs.folder import LOG
from pipeline.system import machine, signals, streams
from pipeline.system.processes import LocalProcess
from pipeline.tracking.pending import end_lost

GRACE_SECONDS = 20.0
"""Seconds for the chief to report an error after another member has died; collectives notice after about 10."""


class Local(Engine):
    """A process for each member, on this machine; a job without a cluster runs in this process.

    A cluster that has lost a member is restarted from its last checkpoint, up to `cluster.restarts` times.
    """

    def run(self, decision: Decision, console: Console, link: Link, started: float) -> int:
        if not decision.experiment.members:
            return execute(decision, console, link, started=started)
        run = decision.folder
        with signals.listening(), signals.uninterrupted(), claimed(decision, supervises=True):
            for left in reversed(range(self.settings.restarts + 1)):
                code, lost = _attempt(decision, link, started, console)
                if not starts_again(code, lost, left, console):
                    break
            with signals.ending(code):
                if run.has_begun:
                    end_lost(run, decision.experiment, code, console, shared=True)
        return code


def local_tasks(members: Mapping[str, int]) -> list[Task]:
    """Return the tasks of a cluster on this machine, each with a free port."""
    with ExitStack() as stack:
        count = sum(members.values())
        sockets = [stack.enter_context(socket.create_server((machine.HOST, 0))) for _ in range(count)]
        return tasks_at(members, [f"{machine.HOST}:{opened.getsockname()[1]}" for opened in sockets])


def enter_cluster(task: Task) -> None:
    """Set `TF_CONFIG` and the GPUs of this process: a worker gets its part of the machine's, others none."""
    os.environ["TF_CONFIG"] = task.tf_config
    workers = len(task.cluster.get("worker", []))
    if gpus := machine.visible_gpus():
        of_worker = gpus[task.index * len(gpus) // workers : (task.index + 1) * len(gpus) // workers]
        os.environ[machine.GPUS] = ",".join(of_worker if task.job == "worker" else ()) or "-1"


def starts_again(code: int, lost: str | None, left: int, console: Console) -> bool:
    """Return whether a run starts again that has ended with `code`: a member is lost, and restarts are `left`."""
    if lost is None or not left or code in (DONE, TIMED_OUT, *STOPPED):
        return False
    console.warn(f"restarting the cluster from its last checkpoint ({left - 1} restarts left)")
    return True


@dataclass
class Members:
    """The members of a cluster that runs. The end of the chief, or of one that the run needs, ends it."""

    left: list[Task]  # those that have not ended, the chief last: others' ends say why
    end_of: Callable[[Task], tuple[int, str] | None]  # see `LocalProcess.end`
    stop_chief: Callable[[], object]  # asks it to save and end
    console: Console
    lost: str | None = None  # how one that the run needs has died or hung
    deadline: float = math.inf

    def poll(self) -> int | None:
        """Return the exit code of the run, or None while it runs; to be called every POLL_SECONDS."""
        for task in list(self.left):
            if (ended := self.end_of(task)) is None:
                continue
            self.left.remove(task)
            code, how = ended
            if code not in (DONE, TIMED_OUT, *STOPPED):
                self._note(task, code, how)
            if task.is_chief:
                return code
            if code in STOPPED:  # by a signal; all save and end, and a chief that does not train gets it here
                self.stop_chief()
        return FAILED if time.monotonic() > self.deadline else None

    def _note(self, task: Task, code: int, how: str) -> None:
        end = f"{task.name} {how or f'ended with exit code {code}'}"
        if task.serves and task.job == "worker" and any(other.job == "worker" for other in self.left):
            self.console.warn(f"{end}; the other workers take over its work")
        elif how or not task.is_chief:  # the chief says itself what is wrong
            self.lost = end if how else self.lost
            self.console.error(f"{end}: the run cannot continue")
            self.deadline = min(self.deadline, time.monotonic() + GRACE_SECONDS)


def _attempt(decision: Decision, link: Link, started: float, console: Console) -> tuple[int, str | None]:
    """Run the members, wait for the chief and end the others; return its exit code, and how one was lost."""
    processes: dict[str, LocalProcess] = {}
    try:
        tasks, run = local_tasks(decision.experiment.members), decision.folder
        names = ", ".join(task.name for task in tasks[1:])
        console.log(f"started chief, {names} on this machine; their output is in {run}/<name>.log")
        console.warn(OPEN_PORTS)
        for task in tasks:
            signals.check()
            log = run.path / LOG if console.is_quiet and task.is_chief else None
            given = decision, link, started, task, log, command_line()
            processes[task.name] = LocalProcess(_member, given, decision.experiment.hang_seconds)
        chief = processes[tasks[0].name]
        members = Members(
            tasks[::-1], lambda task: processes[task.name].end(), lambda: chief.signal(signal.SIGTERM), console
        )
        while (code := members.poll()) is None:
            wait([processes[task.name].sentinel for task in members.left], timeout=POLL_SECONDS)
            signals.check()
        return code, members.lost
    except signals.Interrupted as interrupted:
        for chief in list(processes.values())[:1]:
            forward_signals(chief)
        return interrupted.exit_code, None
    finally:
        with signals.ending():
            for process in processes.values():
                process.kill()
                process.join()


def _member(  # all are facts of one process
    decision: Decision, link: Link, started: float, task: Task, log: Path | None, words: Sequence[str]
) -> None:
    """Run in the process of one member of the cluster. log: see Console; words: of the command, as it was typed."""
    sys.argv[:] = words
    if not task.is_chief:
        streams.append_to(decision.folder.path / f"{task.name}.log")
    enter_cluster(task)
    # The chief alone is signalled, as it needs the others to save a checkpoint.
    enter(decision.experiment, stop=signal.SIGINT if task.is_chief else None)
    console = Console(log)
    leave(lambda: execute(decision, console, link, task, is_supervised=True, started=started), console)
