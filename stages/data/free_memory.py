"""Main memory that is free for this process."""

import resource
from pathlib import Path

import psutil

_CGROUPS = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Returns how many bytes of main memory this process can still take.

    The smallest of the machine's available memory, the remainder of the process's control groups (Linux, v2 and v1;
    cached files count as free, as the kernel drops them) and that of its address space (`ulimit -v`). No swap.
    Source: docs.kernel.org/admin-guide/cgroup-v2.html#memory.
    """
    remainders = [psutil.virtual_memory().available, *_remainders_of_cgroups()]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        remainders.append(limit - psutil.Process().memory_info().vms)
    return max(min(remainders), 0)


def _remainders_of_cgroups() -> list[int]:
    """Returns the bytes that each control group of this process has left; empty where there are no limits."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return []
    remainders = []
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers in ("", "memory"):
            root = _CGROUPS / controllers
            # A container sees its own group as the root, under whatever name the host knows it.
            group = root / name.lstrip("/")
            remainders += [
                _remainder(folder) for folder in {root, group, *group.parents} if folder.is_relative_to(root)
            ]
    return [value for value in remainders if value is not None]


def _remainder(folder: Path) -> int | None:
    """Returns the bytes that a control group has left, or None where it sets no limit."""
    for limit_file, used_file, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit, used = int((folder / limit_file).read_text()), int((folder / used_file).read_text())
            facts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            return limit - used + int(facts.get(cached, 0))
        except (OSError, ValueError):  # no such file; `max`, which is no limit
            continue
    return None
