"""Commands in processes of their own, and what they cost."""

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.measuring import Figures, UnavailableError

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 120.0
DATA = ROOT.parent / "shared" / "data"
OTHERS = ROOT / ".bench-venv"
"""An environment for what the project does not need: PyTorch, Hydra's launcher for joblib. `make bench` makes it."""

T = TypeVar("T")


def cost(*command: str, expect: int = 0, cores: int | None = None) -> Figures:
    """Run a command to its end; return wall time in seconds and peak resident memory in MiB.

    cores: how many of this process's it gets; None: all.

    The caller must be small: Linux counts the memory of the process that forks as the child's, up to `exec`.

    Raises:
        RuntimeError: where it does not exit with `expect`.
    """
    own = sorted(os.sched_getaffinity(0))
    pinned = ("taskset", "--cpu-list", ",".join(map(str, own[:cores]))) if cores else ()
    with tempfile.TemporaryFile() as output:
        began = time.perf_counter()
        process = subprocess.Popen(
            [*pinned, *command], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != expect:
            output.seek(0)
            said = output.read().decode(errors="replace")[-3000:]
            raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}\n{said}")
    return {"seconds": seconds, "MiB": usage.ru_maxrss / 1024}


def in_fresh_process(function: Callable[..., T], *arguments: object) -> T:
    """Return what `function` returns in a process that has done nothing before, whose memory tells what it needs."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def python(*arguments: str, expect: int = 0, cores: int | None = None) -> Figures:
    """Return what `python <arguments>` costs."""
    return cost(sys.executable, *arguments, expect=expect, cores=cores)


def pipeline(outputs: Path, *overrides: str, expect: int = 0, cores: int | None = None) -> Figures:
    """Return what a new run of `python -m pipeline <overrides>` costs."""
    return python("-m", "pipeline", *overrides, f"outputs={outputs}", "resume=never", expect=expect, cores=cores)


def summary(outputs: Path) -> dict[str, Any]:
    """Return `summary.json` of the newest run in `outputs`."""
    newest = max(outputs.glob("runs/*/*/summary.json"), key=lambda path: path.parent.name)
    result: dict[str, Any] = json.loads(newest.read_text())
    return result


def wait_for(port: int, path: str) -> None:
    """Wait until a server of this machine answers a GET of `path` by 200.

    Raises:
        TimeoutError: where it does not within START_SECONDS.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.2)
        finally:
            connection.close()
    raise TimeoutError(f"the server at port {port} does not answer")


def others_python(package: str) -> str | None:
    """Return the Python that has `package`, an environment of its own; None where that is not there."""
    return str(OTHERS / "bin" / "python") if any(OTHERS.glob(f"lib/*/site-packages/{package}")) else None


def prepared(name: str) -> Path:
    """Return the folder of TFDS that holds the set `name`.

    Raises:
        UnavailableError: where it is not there.
    """
    folder = DATA / "tfds"
    if not (folder / name).is_dir():
        raise UnavailableError(f"no {name} in ../shared/data/tfds")
    return folder
