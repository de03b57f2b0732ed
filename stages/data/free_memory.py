"""Main memory that is free for this process, and that data may take of it."""

import math
from contextlib import suppress
from pathlib import Path

import psutil

HELD_SHARE = 1 / 3
"""Share of the free memory that data may take where the settings name no limit."""

_CGROUPS = Path("/sys/fs/cgroup")


def memory_for_data(gib: float | None) -> float:
    """Return how many bytes data may take, by `data.memory_gib`."""
    return gib * 2**30 if gib is not None else HELD_SHARE * available_memory()


def available_memory() -> int:
    """Return how many bytes of main memory this process can still take.

    The smallest of the machine's available memory and the remainders of the process's control groups (Linux, version 2;
    cached files count as free, as the kernel drops them). No swap.
    Source: docs.kernel.org/admin-guide/cgroup-v2.html#memory.
    """
    remainders = [float(psutil.virtual_memory().available)]
    with suppress(OSError, ValueError):  # not Linux, or version 1
        [name] = [line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")]
        group = _CGROUPS / name.lstrip("/")  # a container sees its own group as the root
        remainders += [_remainder(folder) for folder in (_CGROUPS, group, *group.parents)]
    return max(int(min(remainders)), 0)


def _remainder(folder: Path) -> float:
    """Return the bytes that a control group has left, infinity where it sets no limit."""
    try:
        limit, used = int((folder / "memory.max").read_text()), int((folder / "memory.current").read_text())
        facts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such file; `max`, which is no limit
        return math.inf
    return limit - used + int(facts.get("inactive_file", 0))
