"""Addresses of the tasks of a Slurm step, from its variables."""

import os
import re
import socket
import subprocess

from pipeline.cluster.task import WrongTaskError

FIRST_PORT = 10_000
PORTS = 64
RANGES = 340
"""Ports of a step: PORTS of them, from one of RANGES places below those that Linux hands out (from 32768)."""

SCONTROL_SECONDS = 30


def addresses_of_step(port: int | None) -> list[str]:
    """Returns `host:port` of each task of this process's step, by its rank.

    Args:
        port: of the first task, the others' follow; None: made from the ids of job and step.

    Raises:
        WrongTaskError: where the variables are not those of a step, or the tasks are dealt out in another order.
    """
    try:
        rank = int(os.environ["SLURM_PROCID"])
        counts = expand_counts(os.environ["SLURM_STEP_TASKS_PER_NODE"])
        if port is None:
            step = int(os.environ["SLURM_JOB_ID"]) + 31 * int(os.environ["SLURM_STEP_ID"])
            step += 7 * int(os.environ.get("SLURM_RESTART_COUNT", 0))  # on a node that was lost, members may linger
            port = FIRST_PORT + PORTS * (step % RANGES)
        nodes = _scontrol("show", "hostnames", os.environ["SLURM_STEP_NODELIST"]).split()
    except (KeyError, ValueError) as error:
        raise WrongTaskError(f"{error.args[0]} is not set by srun") from error
    names = [name for name, count in zip(nodes, counts, strict=True) for _ in range(count)]
    own = os.environ.get("SLURMD_NODENAME")
    if own is not None and own != names[rank]:
        raise WrongTaskError(f"task {rank} is on {own} and not on {names[rank]}: srun needs --distribution=block")
    hosts = {name: _host(name) for name in set(names)}
    return [f"{hosts[name]}:{port + place}" for place, name in enumerate(names)]


def expand_counts(text: str) -> list[int]:
    """Returns the numbers of `2(x3),1`: 2, 2, 2, 1.

    Raises:
        ValueError: where it is no such list.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise ValueError(f"SLURM_STEP_TASKS_PER_NODE={text}")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _host(node: str) -> str:
    """Returns the name of a node if it is that of a host, else the address that Slurm itself reaches it at."""
    try:
        socket.getaddrinfo(node, None)
    except OSError:
        match = re.search(r"\bNodeAddr=(\S+)", _scontrol("show", "node", node, "--oneliner"))
        return match[1] if match else node
    return node


def _scontrol(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["scontrol", *arguments], capture_output=True, text=True, timeout=SCONTROL_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
        raise WrongTaskError(f"scontrol {' '.join(arguments[:2])} has failed ({''.join(reason)})") from error
    return done.stdout
