"""`cluster=local`: the members are processes of this machine."""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from pipeline.console import Console
from pipeline.engines.supervisor import Place, supervise
from pipeline.planning.job import Job
from pipeline.planning.plan import PlannedStage
from pipeline.run.engine import Engine, Task, tasks_at
from pipeline.run.executor import work
from pipeline.system import machine
from pipeline.system.ports import HOST
from pipeline.system.processes import LocalProcess


class Local(Engine):
    """A process for each member, on this machine; a job without a cluster runs in this process."""

    def run(self, job: Job, plan: Sequence[PlannedStage], console: Console) -> int:
        members = job.experiment.members
        if not members:
            return work(job, plan, console)
        place = Place("on this machine", partial(local_tasks, members), _start, enter)
        return supervise(job, plan, console, place, self.settings.restarts)


def _start(task: Task, target: Callable[..., None], arguments: tuple[Any, ...]) -> LocalProcess:
    return LocalProcess(target, arguments)


def local_tasks(members: Mapping[str, int]) -> list[Task]:
    """Return the tasks of a cluster on this machine, each with a free port."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(sum(members.values()))]
        for opened in sockets:
            opened.bind((HOST, 0))
        return tasks_at(members, [f"{HOST}:{opened.getsockname()[1]}" for opened in sockets])


def enter(task: Task) -> Task:
    """Set `TF_CONFIG` and the GPUs of this process: a worker gets its part of the machine's, others none."""
    os.environ["TF_CONFIG"] = task.tf_config
    gpus = len(machine.gpus())
    workers = len(task.cluster.get("worker", []))
    if gpus:
        of_worker = range(task.index * gpus // workers, (task.index + 1) * gpus // workers)
        visible = of_worker if task.job == "worker" else ()
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, visible)) or "-1"
    return task
