"""A cluster of processes: who is who in it, and the one that starts them on this machine and ends them all."""

import json
import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from pipeline import machine
from pipeline.config import Experiment
from stages.errors import UserError
from stages.settings.strategy import MultiWorkerSettings, ParameterServerSettings, StrategySettings

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Task:
    """A process's place in a cluster. job: `chief`, `worker` or `ps`; index: within the job."""

    job: str
    index: int
    cluster: Mapping[str, list[str]]

    @property
    def is_chief(self) -> bool:
        """Whether it records: the chief, or the first worker where there is none."""
        return self.job == "chief" or (self.job == "worker" and not self.index and "chief" not in self.cluster)

    @property
    def serves(self) -> bool:
        """Whether it only does what the chief of a parameter-server cluster sends."""
        return not self.is_chief and "ps" in self.cluster

    @property
    def name(self) -> str:
        return f"{'server' if self.job == 'ps' else self.job}-{self.index}"

    @property
    def tf_config(self) -> str:
        """What TensorFlow reads from the environment's `TF_CONFIG`."""
        return json.dumps({"cluster": self.cluster, "task": {"type": self.job, "index": self.index}})

    def enter(self) -> None:
        """Tells this process its place, and leaves it a share of the machine's GPUs; servers need none."""
        os.environ["TF_CONFIG"] = self.tf_config
        gpus, workers = len(machine.gpus()), len(self.cluster.get("worker", []))
        if gpus:
            share = range(self.index * gpus // workers, (self.index + 1) * gpus // workers)
            mine = share if self.job == "worker" else ()
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, mine)) or "-1"


def cluster_settings(experiment: Experiment) -> StrategySettings | None:
    """Returns the settings of a strategy that needs a cluster, else None."""
    settings = experiment.settings.get("strategy")
    return settings if isinstance(settings, (MultiWorkerSettings, ParameterServerSettings)) else None


def local_tasks(settings: StrategySettings) -> list[Task]:
    """Returns the tasks of a cluster on this machine, the chief first, each with a port that is free now."""
    if isinstance(settings, ParameterServerSettings):
        counts = {"chief": 1, "worker": settings.workers, "ps": settings.servers}
    else:
        assert isinstance(settings, MultiWorkerSettings)
        counts = {"worker": settings.workers}
    ports = iter(_free_ports(sum(counts.values())))
    cluster = {job: [f"{HOST}:{next(ports)}" for _ in range(count)] for job, count in counts.items()}
    return [Task(job, index, cluster) for job, count in counts.items() for index in range(count)]


def given_task(settings: StrategySettings) -> Task:
    """Returns this process's place by the environment's `TF_CONFIG`.

    Raises:
        UserError: where it is not set, or does not describe a cluster for the strategy.
    """
    text = os.environ.get("TF_CONFIG")
    wanted = {"chief", "worker", "ps"} if isinstance(settings, ParameterServerSettings) else {"chief", "worker"}
    form = 'TF_CONFIG=\'{"cluster": {"worker": ["host:port", …]}, "task": {"type": "worker", "index": 0}}\''
    if isinstance(settings, ParameterServerSettings):
        form = form.replace('{"worker"', '{"chief": ["host:port"], "ps": ["host:port", …], "worker"')
    try:
        given: Any = json.loads(text or "null")
        cluster, job, index = given["cluster"], given["task"]["type"], int(given["task"]["index"])
        address = cluster[job][index]
        right = set(cluster) <= wanted and ":" in address and "worker" in cluster
        right = right and (not isinstance(settings, ParameterServerSettings) or {"chief", "ps"} <= set(cluster))
    except (ValueError, TypeError, LookupError):
        right = False
    if not right:
        shown = f"TF_CONFIG={text}" if text else "cluster=tf_config, but TF_CONFIG is not set"
        raise UserError(shown, f"a cluster of {', '.join(sorted(wanted))} and this process's task in it", form)
    return Task(job, index, cluster)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for opened in sockets:
            opened.bind((HOST, 0))
        return [opened.getsockname()[1] for opened in sockets]
