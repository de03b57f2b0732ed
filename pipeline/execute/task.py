"""The role of a process in a cluster: chief, worker or parameter server."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

OPEN_PORTS = (
    "the cluster's gRPC servers listen on all network interfaces without a password, see docs/how-to/clusters.md"
)


@dataclass(frozen=True)
class Task:
    """The role of a process in a cluster."""

    job: str
    """`chief`, `worker` or `ps`."""
    index: int
    """The number of the process within its job, from 0."""
    cluster: Mapping[str, list[str]]
    """The addresses of all members, by job."""
    meet: Callable[[Callable[[str], None]], None] | None = None
    """Waits for the other members, and passes a line on the missing ones to its argument.

    None if the process that started all members watches them.
    """

    @property
    def chief(self) -> str:
        """The job of the chief, which records: `chief`, or `worker` in a cluster without that job."""
        return "chief" if "chief" in self.cluster else "worker"

    @property
    def is_chief(self) -> bool:
        return self.job == self.chief and not self.index

    @property
    def serves(self) -> bool:
        """Whether the process only serves the chief of a parameter-server cluster and runs no stages."""
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
        members: The number of members of each job.
        addresses: The addresses of the members, in the same order.
    """
    free = iter(addresses)
    cluster = {job: [next(free) for _ in range(count)] for job, count in members.items()}
    return [Task(job, index, cluster) for job, count in members.items() for index in range(count)]
