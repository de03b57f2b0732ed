"""The role of a process in a cluster: chief, worker or parameter server."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

OPEN_PORTS = (
    "the cluster's gRPC servers listen on all network interfaces without a password, see docs/how-to/clusters.md"
)


@dataclass(frozen=True)
class Task:
    """The role of a process in a cluster.

    job: `chief`, `worker` or `ps`; index: within the job. cluster: the addresses of all members by their job.
    meet: waits for the other members, and tells a function which are missing; None where the one that has started them
        all watches them.
    """

    job: str
    index: int
    cluster: Mapping[str, list[str]]
    meet: Callable[[Callable[[str], None]], None] | None = None

    @property
    def chief(self) -> str:
        """The job of the chief, which records: the first worker where no member is called so."""
        return "chief" if "chief" in self.cluster else "worker"

    @property
    def is_chief(self) -> bool:
        return self.job == self.chief and not self.index

    @property
    def serves(self) -> bool:
        """Whether it serves the chief of a parameter-server cluster, without a program of its own."""
        return not self.is_chief and "ps" in self.cluster

    @property
    def address(self) -> str:
        return self.cluster[self.job][self.index]

    def addresses(self) -> dict[str, str]:
        """Return the address of every member by its name, such as `worker 1`."""
        jobs = self.cluster.items()
        return {f"{job} {index}": address for job, members in jobs for index, address in enumerate(members)}

    @property
    def name(self) -> str:
        return f"{'server' if self.job == 'ps' else self.job}-{self.index}"

    @property
    def tf_config(self) -> str:
        """The value of `TF_CONFIG` for TensorFlow."""
        return json.dumps({"cluster": self.cluster, "task": {"type": self.job, "index": self.index}})


def tasks_at(members: Mapping[str, int], addresses: Sequence[str]) -> list[Task]:
    """Return the tasks of a cluster.

    Args:
        members: how many there are of each job. addresses: theirs, in the same order.
    """
    free = iter(addresses)
    cluster = {job: [next(free) for _ in range(count)] for job, count in members.items()}
    return [Task(job, index, cluster) for job, count in members.items() for index in range(count)]
