"""`cluster=local`: the members are processes of this machine."""

from collections.abc import Callable, Sequence
from typing import Any

from pipeline.cluster.task import Task, cluster_settings, local_tasks
from pipeline.console import Console
from pipeline.engines.supervisor import supervise
from pipeline.planning.job import Job
from pipeline.planning.plan import PlannedStage
from pipeline.run.engine import Engine
from pipeline.run.executor import work
from pipeline.system.processes import ChildProcess, LocalProcess
from stages.settings.strategy import StrategySettings


class Local(Engine):
    """A process for each member, on this machine; a job without a cluster runs in this process."""

    def run(self, job: Job, plan: Sequence[PlannedStage], console: Console) -> int:
        strategy = cluster_settings(job.experiment)
        if strategy is None:
            return work(job, plan, console)
        return supervise(job, plan, console, _Here(strategy), self.settings.restarts)


class _Here:
    where = "on this machine"

    def __init__(self, strategy: StrategySettings) -> None:
        self._strategy = strategy
        self.prepare: Callable[[Task], Task | None] = Task.enter

    def tasks(self) -> list[Task]:
        return local_tasks(self._strategy)

    def start(self, task: Task, target: Callable[..., None], arguments: tuple[Any, ...]) -> ChildProcess:
        return LocalProcess(target, arguments)
