"""`cluster=hosts`: the members are a list of addresses, and this process is the one whose host it runs on."""

import os
import socket
from collections.abc import Sequence

import psutil

from pipeline.cluster.task import Task, WrongTaskError, check_task, split_address, task_at
from pipeline.run.engine import Joined
from stages.errors import UserError
from stages.settings.strategy import StrategySettings


class Hosts(Joined):
    """Every member is started by the same command, on its own host."""

    def task(self, strategy: StrategySettings) -> Task:
        hosts = list(self.settings.hosts)
        try:
            index = own_index(hosts) if self.settings.index is None else self.settings.index
            if index >= len(hosts):
                raise WrongTaskError(f"cluster.index={index} is not one of 0 to {len(hosts) - 1}")
            task = task_at(index, hosts, strategy)
            check_task(task, strategy)
        except WrongTaskError as error:
            raise UserError(
                f"cluster.hosts={','.join(hosts)}: {error}",
                "the address of every member, the same list in all, and this one's index where a host has several",
                "cluster.hosts=[<host>:<port>,<host>:<port>] cluster.index=0",
            ) from error
        return task


def own_index(addresses: Sequence[str]) -> int:
    """Returns the index of the one address whose host is this machine.

    Raises:
        WrongTaskError: where none is, or several are.
    """
    own = _own_names()
    matching = []
    for index, address in enumerate(addresses):
        try:
            host, _ = split_address(address)
        except ValueError as error:
            raise WrongTaskError(f"the address {address!r} is no host:port, {error}") from error
        if host.lower() in own or own & _resolved(host):
            matching.append(index)
    if len(matching) != 1:
        which = f"{len(matching)} of them are" if matching else "none of them is"
        raise WrongTaskError(f"{which} this machine ({socket.gethostname()}), so cluster.index has to say which")
    return matching[0]


def _own_names() -> set[str]:
    """Returns the names and addresses of this machine, in lower case."""
    addresses = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    names = {socket.gethostname(), os.uname().nodename, socket.gethostname().partition(".")[0], "localhost"}
    return {text.lower().partition("%")[0] for text in addresses | names}


def _resolved(host: str) -> set[str]:
    try:
        return {str(entry[4][0]).lower() for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return set()
