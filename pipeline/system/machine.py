"""GPUs, processor and memory of this machine, determined without TensorFlow, and its free ports."""

import os
import platform
import re
import shutil
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from stages.errors import UserError

GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU."""

    name: str
    compute_capability: tuple[int, int]
    """Major and minor version: from (7, 0), the GPU has tensor cores; from (8, 0), it computes in bfloat16."""


@cache
def gpus() -> tuple[Gpu, ...]:
    """Return the NVIDIA GPUs that this process may use, according to `nvidia-smi` and `CUDA_VISIBLE_DEVICES`."""
    query = ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    visible = os.environ.get(GPUS)
    if not shutil.which(query[0]) or visible in ("", "-1"):
        return ()
    query += [f"--id={visible}"] if visible is not None else []
    try:
        listed = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    rows = re.findall(r"^(.+), *(\d+)\.(\d+) *$", listed, re.MULTILINE)
    return tuple(Gpu(name, (int(major), int(minor))) for name, major, minor in rows)


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    count = len(gpus())
    visible = [part.strip() for part in os.environ.get(GPUS, "").split(",") if part.strip() not in ("", "-1")]
    return visible[:count] if visible else [str(number) for number in range(count)]


@cache
def cpu_flags() -> frozenset[str]:
    """Return the CPU's instruction sets, such as `avx512_bf16`; empty if the system does not list them."""
    return frozenset(_cpu_info("flags", "Features").split())


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def facts() -> dict[str, Any]:
    """Return the hardware that a run's speed depends on, without names of the machine or its owner."""
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "processor": _cpu_info("model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": [f"{gpu.name}, compute capability {'.'.join(map(str, gpu.compute_capability))}" for gpu in gpus()],
    }


def _cpu_info(*names: str) -> str:
    """Return the first value in /proc/cpuinfo with one of these names; empty if there is none."""
    with suppress(OSError), Path("/proc/cpuinfo").open() as file:
        return next((line.partition(":")[2].strip() for line in file if line.startswith(names)), "")
    return ""


def peak_memory_mib() -> float | None:
    """Return the peak resident memory of this process in MiB; None if it is unknown.

    The value is from /proc, because a forked process inherits `ru_maxrss` from its parent.
    """
    status = Path("/proc/self/status")
    match = re.search(r"VmHWM:\s*(\d+) kB", status.read_text()) if status.exists() else None
    return int(match[1]) / 1024 if match else None


HOST = "127.0.0.1"


def free_port(port: int | None, first: int) -> int:
    """Return `port` if it is free; if it is None, return the first free port from `first`.

    Raises:
        UserError: If the port is invalid, in use, or not permitted for this user.
    """
    for candidate in [port] if port else range(first, first + 100):
        with suppress(OSError, OverflowError), socket.create_server((HOST, candidate)):
            return candidate
    problem = f"port {port or first} of {HOST} is not available"
    raise UserError(problem, "a free port between 1024 and 65535", f"--port={first + 1}")
