"""Members of a cluster that meet on this machine: the chief in one process, the others as coroutines in two more."""

import asyncio
import multiprocessing
import time
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.queues import SimpleQueue
from socket import socket

from pipeline.cluster.rendezvous import Member, listening_socket, meet
from pipeline.cluster.task import Task, split_address

LIMIT_SECONDS = 60.0


def meet_all(count: int, processes: int = 2) -> tuple[float, float]:
    """Returns the seconds until the last of `count` members has met the others, and those of the chief's processor.

    Raises:
        RuntimeError: where one has not within LIMIT_SECONDS.
    """
    with ExitStack() as held:
        sockets = [held.enter_context(socket()) for _ in range(count)]
        for opened in sockets:
            opened.bind(("127.0.0.1", 0))
        cluster = {"worker": [f"127.0.0.1:{opened.getsockname()[1]}" for opened in sockets]}
    tasks = [Task("worker", index, cluster, LIMIT_SECONDS) for index in range(count)]
    context = multiprocessing.get_context("fork")
    ended: SimpleQueue[tuple[bool, float, str]] = context.SimpleQueue()
    groups = [tasks[1 + first :: processes] for first in range(processes)]
    members = [context.Process(target=_members, args=(group, ended), daemon=True) for group in groups if group]
    members.append(context.Process(target=_chief, args=(tasks[0], ended), daemon=True))
    began = time.monotonic()
    for member in members:
        member.start()
    reports = [ended.get() for _ in members]
    seconds = time.monotonic() - began
    for member in members:
        member.join()
    problems = [problem for _, _, problem in reports if problem]
    if problems:
        raise RuntimeError(problems[0])
    return seconds, next(used for is_chief, used, _ in reports if is_chief)


def _chief(task: Task, ended: "SimpleQueue[tuple[bool, float, str]]") -> None:
    began, problem = time.process_time(), ""
    try:
        meet(task, lambda line: None)
    except Exception as error:
        problem = str(error)
    ended.put((True, time.process_time() - began, problem))


def _members(tasks: Sequence[Task], ended: "SimpleQueue[tuple[bool, float, str]]") -> None:
    async def come() -> None:
        listening = [listening_socket(split_address(task.address)[1]) for task in tasks]
        members = [Member(task) for task in tasks]
        async with asyncio.timeout(LIMIT_SECONDS):
            await asyncio.gather(*(member.run(port) for member, port in zip(members, listening, strict=True)))

    problem = ""
    try:
        asyncio.run(come())
    except Exception as error:
        problem = repr(error)
    ended.put((False, 0.0, problem))
