"""`cluster=local`: the members are processes of this machine, started, watched, and all ended when one fails."""

import math
import os
import signal
import socket
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from multiprocessing.connection import wait
from pathlib import Path

from pipeline.console import Console
from pipeline.exit_codes import DONE, FAILED, STOPPED, TIMED_OUT
from pipeline.paths import shorter
from pipeline.planning.job import Job, claimed
from pipeline.planning.plan import PlannedStage
from pipeline.run.child import POLL_SECONDS, enter, forward_signals, leave
from pipeline.run.engine import OPEN_PORTS, Engine, Task, tasks_at
from pipeline.run.executor import work
from pipeline.run_folder.pending import end_lost
from pipeline.system import machine, pulse, signals, streams
from pipeline.system.machine import HOST
from pipeline.system.processes import LocalProcess
from pipeline.system.pulse import Pulse
from pipeline.system.signals import Interrupted
from stages.errors import UserError

GRACE_SECONDS = 20.0
"""Seconds for the chief to report an error after another member has died; collectives notice after about 10."""

RESTARTS = 3
"""Restarts of each worker of a parameter-server cluster, without which the run can continue, too."""


class Local(Engine):
    """A process for each member, on this machine; a job without a cluster runs in this process."""

    def run(self, job: Job, plan: Sequence[PlannedStage], console: Console) -> int:
        if not job.experiment.members:
            return work(job, plan, console)
        return supervise(job, plan, console, self.settings.restarts)


def local_tasks(members: Mapping[str, int]) -> list[Task]:
    """Return the tasks of a cluster on this machine, each with a free port."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(sum(members.values()))]
        for opened in sockets:
            opened.bind((HOST, 0))
        return tasks_at(members, [f"{HOST}:{opened.getsockname()[1]}" for opened in sockets])


def enter_cluster(task: Task) -> None:
    """Set `TF_CONFIG` and the GPUs of this process: a worker gets its part of the machine's, others none."""
    os.environ["TF_CONFIG"] = task.tf_config
    workers = len(task.cluster.get("worker", []))
    if gpus := machine.visible_gpus():
        of_worker = gpus[task.index * len(gpus) // workers : (task.index + 1) * len(gpus) // workers]
        os.environ[machine.GPUS] = ",".join(of_worker if task.job == "worker" else ()) or "-1"


def supervise(job: Job, plan: Sequence[PlannedStage], console: Console, restarts: int) -> int:
    """Run `job` in the processes of a cluster's members and return the chief's exit code.

    A cluster that has lost a member is restarted from its last checkpoint, up to `restarts` times.
    """
    with signals.listening(), signals.uninterrupted(), claimed(job, supervises=True) as job:
        while True:
            cluster = _Cluster(job, plan, console)
            code = cluster.run()
            if not cluster.has_lost or not restarts or code in (DONE, TIMED_OUT, *STOPPED):
                break
            restarts -= 1
            console.warn(f"the cluster is started again from its last checkpoint; {restarts} restarts are left")
        with signals.ending(code):
            end_lost(job.run_folder, job.experiment, code, console, shared=True)
    return code


class _Cluster:
    """The members of one attempt. has_lost: whether a member that the run needs has died or hung."""

    def __init__(self, job: Job, plan: Sequence[PlannedStage], console: Console) -> None:
        self.has_lost = False
        self._job = job
        self._plan = plan
        self._console = console
        self._folder = job.run_folder
        self._members: dict[str, LocalProcess] = {}
        self._restarts: defaultdict[str, int] = defaultdict(lambda: RESTARTS)

    def run(self) -> int:
        """Start the members, wait for the chief and end the others; return the chief's exit code."""
        chief = ""
        try:
            tasks = local_tasks(self._job.experiment.members)
            logs = f"{shorter(self._folder)}/<name>.log"
            names = ", ".join(task.name for task in tasks[1:])
            self._console.log(f"chief, {names} on this machine; what these print is in {logs}")
            self._console.warn(OPEN_PORTS)
            for task in tasks:
                signals.check()
                self._start(task)
                chief = chief or task.name
            return self._wait(tasks)
        except Interrupted as interrupted:
            if chief:
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

    def _start(self, task: Task) -> None:
        log = self._folder / "pipeline.log" if self._console.is_quiet and task.is_chief else None
        arguments = (self._job, self._plan, task, log)
        self._members[task.name] = LocalProcess(_member, arguments, self._job.experiment.hang_seconds)

    def _wait(self, tasks: Sequence[Task]) -> int:
        """Wait for the chief's end and return its exit code; report the ends of other members."""
        chief = self._members[tasks[0].name]
        others = list(tasks[1:])
        deadline = math.inf
        while (code := chief.poll()) is None and time.monotonic() < deadline:
            wait([chief.sentinel, *(self._members[task.name].sentinel for task in others)], timeout=POLL_SECONDS)
            pulse.beat()
            signals.check()
            for task in list(others):
                if (ended := self._members[task.name].poll()) is not None:
                    others.remove(task)
                    if self._ends_run(task, ended, others, chief):
                        deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if code is None or code in (DONE, *STOPPED):
            return FAILED if code is None else code
        self.has_lost |= code > 128
        for task in (tasks[0], *others):  # those that waited for a hung one may have ended before it
            if why := self._members[task.name].why:
                self._console.error(f"{task.name} {why}: the run cannot continue")
                self.has_lost = True
        return code

    def _ends_run(self, task: Task, code: int, others: list[Task], chief: LocalProcess) -> bool:
        """Report the end of `task`, and start it again where it serves; return whether it ends the run."""
        if code == DONE:
            return False
        if code in STOPPED:  # by a signal; all save and end, and a chief that does not train gets it here
            chief.signal(signal.SIGTERM if code == 128 + signal.SIGPIPE else code - 128)
            return True
        how = f"was killed by signal {code - 128}" if code > 128 else f"ended with exit code {code}"
        how = self._members[task.name].why or how
        if task.serves and task.job == "worker":
            restarts = self._restarts[task.name] > 0
            if restarts:
                self._restarts[task.name] -= 1
                self._start(task)
                others.append(task)
            if any(other.job == "worker" for other in others):
                prefix = "it is started again; meanwhile " if restarts else ""
                self._console.warn(f"{task.name} {how}; {prefix}the other workers take over its steps")
                return False
        self.has_lost |= code > 128
        log = shorter(self._folder / f"{task.name}.log")
        self._console.error(f"{task.name} {how}: the run cannot continue ({log})")
        return True


def _member(heartbeats: Pulse, job: Job, plan: Sequence[PlannedStage], task: Task, log: Path | None) -> None:
    """Run in the process of one member of the cluster; `log`: see Console."""
    if not task.is_chief:
        streams.append_to(job.run_folder / f"{task.name}.log")
    enter_cluster(task)
    # The chief alone is signalled, as it needs the others to save a checkpoint.
    enter(job, heartbeats, stop=signal.SIGINT if task.is_chief else None)
    console = Console(log)
    leave(lambda: work(job, plan, console, task), console)
