"""Starts the processes of a cluster on this machine, watches them, and ends them all when one has ended the run."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

from omegaconf import OmegaConf

from pipeline import environment
from pipeline.begin import new_folder
from pipeline.cluster import Task, cluster_settings, local_tasks
from pipeline.console import Console
from pipeline.end import end_lost
from pipeline.job import DONE, FAILED, STOPPED, Job
from pipeline.paths import shorter
from pipeline.plan import PlannedStage
from pipeline.processes import become_independent, process_context
from pipeline.runs import begun_in
from pipeline.secrets import guard_output, learn
from pipeline.signals import Interrupted, as_exceptions, deferred, ignored
from pipeline.work import work
from stages.errors import UserError

GRACE_SECONDS = 20.0
"""What the chief gets to tell what happened once another member has died: collectives notice it after about 10 s."""

STOP_SECONDS = 9.0
"""What the chief gets to save a checkpoint and end its run after a signal."""

RETURNS = 3
"""How often a worker of a parameter-server cluster that has died comes back; the run goes on without it, too."""


def run_cluster(job: Job, plan: Sequence[PlannedStage], console: Console) -> int:
    """Runs `job` in a process for each member of its cluster and returns the chief's exit code.

    A cluster that has lost a member is started again from its last checkpoint, `cluster.restarts` times at most.
    """
    folder = job.folder or new_folder(job.experiment)
    folder.mkdir(parents=True, exist_ok=True)
    job = replace(job, folder=folder)
    left = job.experiment.cluster.restarts
    while True:
        cluster = _Cluster(job, plan, console)
        code = cluster.run()
        if not cluster.has_lost or not left or code in (DONE, *STOPPED):
            break
        left -= 1
        console.warn(f"the cluster is started again from its last checkpoint; {left} restarts are left")
        job = replace(job, resumed=begun_in(folder))
    with ignored():
        end_lost(folder, job.experiment, "KILLED" if code in STOPPED else "FAILED", console)
    return code


class _Cluster:
    """The members of one attempt. has_lost: whether one of them died that the run cannot do without."""

    def __init__(self, job: Job, plan: Sequence[PlannedStage], console: Console) -> None:
        settings = cluster_settings(job.experiment)
        assert settings is not None
        assert job.folder is not None
        self.has_lost = False
        self._job, self._plan, self._console, self._folder = job, plan, console, job.folder
        self._tasks = local_tasks(settings)
        self._members: dict[str, BaseProcess] = {}
        self._returns = dict.fromkeys((task.name for task in self._tasks), RETURNS)
        self._context = process_context()

    def run(self) -> int:
        """Starts the members, waits for the chief and ends the others; returns the chief's exit code."""
        names = ", ".join(task.name for task in self._tasks[1:])
        self._console.say(f"chief, {names} on this machine; what these print is in {shorter(self._folder)}/<name>.log")
        with as_exceptions():
            try:
                for task in self._tasks:
                    self._start(task)
                return self._watch()
            except Interrupted as interrupted:
                self._stop(interrupted.exit_code - 128)
                return interrupted.exit_code
            finally:
                with ignored():
                    for process in self._members.values():
                        process.kill()
                        process.join()

    def _start(self, task: Task) -> None:
        said = self._console.said if task.is_chief else []
        given = (self._job, self._plan, task, said)
        process = self._context.Process(target=_member, args=given)  # type: ignore[attr-defined]
        with deferred():  # until its pid is known, it could not be told to end
            process.start()
            self._members[task.name] = process

    def _watch(self) -> int:
        """Waits for the chief's end and returns its exit code; what another member's end means, it says."""
        chief = self._members[self._tasks[0].name]
        others = list(self._tasks[1:])
        deadline: float | None = None
        while chief.exitcode is None:
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            running = {self._members[task.name].sentinel: task for task in others}
            ended = wait([chief.sentinel, *running], timeout=left)
            if not ended and deadline is not None:
                return FAILED
            for task in [running[sentinel] for sentinel in running if sentinel in ended]:
                others.remove(task)
                if self._is_missed(task, others, chief):
                    deadline = deadline or time.monotonic() + GRACE_SECONDS
        chief.join()
        code = chief.exitcode
        self.has_lost |= code < 0
        return 128 - code if code < 0 else code

    def _is_missed(self, task: Task, others: list[Task], chief: BaseProcess) -> bool:
        """Says what it means that `task` has ended; returns whether the chief will have to end, too."""
        self._members[task.name].join()  # the pipe of one that was forked closes a moment before it has ended
        code = self._members[task.name].exitcode
        if code == 0:
            return False
        if code in STOPPED:  # it was told to, and all of them save and end; a chief that does not train is told here
            os.kill(chief.pid or 0, code - 128)
            return True
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
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
        self._console.error(f"{task.name} {how}: the run cannot go on ({log})")
        return True

    def _stop(self, number: int) -> None:
        """Asks the chief to end its run; a second signal, or no end in time, leaves it to be killed."""
        chief = self._members.get(self._tasks[0].name)
        if chief is None or chief.pid is None:
            return
        try:
            os.kill(chief.pid, number)
            chief.join(STOP_SECONDS)
        except (Interrupted, ProcessLookupError):
            return


def _member(job: Job, plan: Sequence[PlannedStage], task: Task, said: Sequence[str]) -> None:
    """What a member's process does."""
    learn(OmegaConf.to_container(job.experiment.document, resolve=True))
    guard_output()
    environment.prepare()
    task.enter()
    become_independent(signal.SIGINT if task.is_chief else None)  # the chief needs the others to save what there is
    assert job.folder is not None
    if not task.is_chief:
        log = os.open(job.folder / f"{task.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
    console = Console(said)
    try:
        code = work(job, plan, console, task)
    except UserError as error:
        console.error(str(error))
        code = FAILED
    except BaseException:
        console.error(traceback.format_exc())
        code = FAILED
    console.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # past TensorFlow's destructors, which wait for members that have gone
