"""Starts the processes of a cluster on this machine, watches them, and ends them all when one has ended the run."""

import os
import signal
import sys
import time
import traceback
import uuid
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from pipeline import environment
from pipeline.cluster import Task, cluster_settings, local_tasks
from pipeline.console import Console
from pipeline.job import FAILED, Job, end_lost, work
from pipeline.paths import shorter
from pipeline.plan import PlannedStage
from pipeline.processes import become_independent, process_context
from pipeline.signals import Interrupted, as_exceptions, deferred, ignored
from stages.errors import UserError

GRACE_SECONDS = 20.0
"""What the chief gets to tell what happened once another member has died: collectives notice it after about 10 s."""

STOP_SECONDS = 10.0
"""What the chief gets to end its run after a signal."""


def run_cluster(job: Job, plan: Sequence[PlannedStage], console: Console) -> int:
    """Runs `job` in a process for each member of its cluster and returns the chief's exit code."""
    settings = cluster_settings(job.experiment)
    assert settings is not None
    tasks = local_tasks(settings)
    folder = job.folder or _folder(job)
    folder.mkdir(parents=True, exist_ok=True)
    names = ", ".join(task.name for task in tasks[1:])
    console.say(f"chief, {names} on this machine; what these print is in {shorter(folder)}/<name>.log")
    job = replace(job, folder=folder)
    members: dict[str, BaseProcess] = {}
    code = FAILED
    with as_exceptions():
        try:
            context = process_context()
            for task in tasks:
                said = console.said if task.is_chief else []
                process = context.Process(target=_member, args=(job, plan, task, said))  # type: ignore[attr-defined]
                with deferred():  # until its pid is known, it could not be told to end
                    process.start()
                    members[task.name] = process
            code = _watch(tasks, members, folder, console)
        except Interrupted as interrupted:
            code = interrupted.exit_code
            _stop(members[tasks[0].name] if members else None)
        finally:
            with ignored():
                for process in members.values():
                    process.kill()
                    process.join()
        with ignored():
            lost = end_lost(folder, job.experiment, "KILLED" if code in (130, 143) else "FAILED")
            if lost:
                console.error(lost)
            return code


def _watch(tasks: Sequence[Task], members: dict[str, BaseProcess], folder: Path, console: Console) -> int:
    """Waits for the chief's end and returns its exit code; what another member's end means, it says."""
    chief = members[tasks[0].name]
    running = {members[task.name].sentinel: task for task in tasks[1:]}
    deadline: float | None = None
    while chief.exitcode is None:
        left = None if deadline is None else max(deadline - time.monotonic(), 0)
        ended = wait([chief.sentinel, *running], timeout=left)
        if not ended and deadline is not None:
            return FAILED
        for task in [running.pop(sentinel) for sentinel in list(running) if sentinel in ended]:
            code = members[task.name].exitcode
            if code == 0:
                continue
            how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
            others = any(other.job == "worker" for other in running.values())
            if task.serves and task.job == "worker" and others:
                console.warn(f"{task.name} {how}; the other workers take over its steps")
                continue
            console.error(f"{task.name} {how}: the run cannot go on ({shorter(folder / f'{task.name}.log')})")
            deadline = deadline or time.monotonic() + GRACE_SECONDS
    code = chief.exitcode
    return 128 - code if code < 0 else code


def _stop(chief: BaseProcess | None) -> None:
    """Asks the chief to end its run; a second signal, or no end in time, leaves it to be killed."""
    if chief is None or chief.pid is None:
        return
    try:
        os.kill(chief.pid, signal.SIGINT)  # TensorFlow takes SIGTERM for itself in a cluster
        chief.join(STOP_SECONDS)
    except (Interrupted, ProcessLookupError):
        return


def _folder(job: Job) -> Path:
    started, short = time.strftime("%Y%m%d-%H%M%S"), uuid.uuid4().hex[:8]
    return job.experiment.outputs / "runs" / job.experiment.name / f"{started}-{short}"


def _member(job: Job, plan: Sequence[PlannedStage], task: Task, said: Sequence[str]) -> None:
    """What a member's process does."""
    environment.prepare()
    task.enter()
    become_independent(signal.SIGINT if task.is_chief else signal.SIGKILL)
    assert job.folder is not None
    if not task.is_chief:
        log = os.open(job.folder / f"{task.name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
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
