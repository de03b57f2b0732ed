"""The machine, the versions and the commit that the figures belong to, and what the machine lacks."""

import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu.answering import Answerer, Budget, Failed
from benchmarks.processes import ROOT, others_python
from pipeline.system import machine

PACKAGES = ("tensorflow", "keras", "mlflow", "numpy")


@dataclass
class Machine:
    """The processes that take steps, and what is known of the machine.

    gpus: that TensorFlow finds. why_no_pytorch: empty if `pytorch` answers.
    """

    worker: Answerer
    pytorch: Answerer
    gpus: list[str]
    capability: tuple[int, int] | None
    why_no_pytorch: str
    facts: dict[str, Any]
    notes: list[str]

    @property
    def why_no_tf32(self) -> str:
        """Why TF32 has no effect; empty if it has."""
        if not self.gpus:
            return "TF32 requires a GPU"
        if self.capability is not None and self.capability < (8, 0):
            return "TF32 requires compute capability 8.0"
        return ""

    def close(self) -> None:
        self.worker.close()
        self.pytorch.close()


def worker(folder: Path, budget: Budget, *arguments: str) -> Answerer:
    """Return a process with TensorFlow; it starts with the first request."""
    return Answerer((sys.executable, "-m", "benchmarks.gpu.worker", *arguments), folder / "worker.log", budget)


def look(folder: Path, budget: Budget) -> Machine:
    """Start the processes, and return what they find on this machine."""
    steps = worker(folder, budget)
    python = sys.executable if find_spec("torch") else others_python("torch")
    pytorch = Answerer((python or "", "-m", "benchmarks.gpu.pytorch"), folder / "pytorch.log", budget)
    with ThreadPoolExecutor() as pool:  # both take seconds to import
        answers = pool.submit(steps.ask, "facts"), pool.submit(pytorch.ask, "facts") if python else None
        found = answers[0].result()
        others, why_no_pytorch = _facts_of_pytorch(answers[1])
    notes = []
    gpus = list(found["gpus"])
    if not gpus:
        notes.append("**TensorFlow found no GPU on this machine, so all figures are from its CPU.**")
        if machine.gpus():
            listed = ", ".join(gpu.name for gpu in machine.gpus())
            notes.append(f"`nvidia-smi` lists {listed}. TensorFlow's messages in worker.log name the missing library.")
    capability = next((tuple(one) for one in found["compute_capability"] if one), None)
    return Machine(steps, pytorch, gpus, capability, why_no_pytorch, _facts(found, others), notes)


def _facts_of_pytorch(answer: "Future[dict[str, Any]] | None") -> tuple[dict[str, Any], str]:
    """Return what PyTorch reports about itself, and why it cannot be used, if so."""
    if answer is None:
        return {}, "PyTorch is not installed"
    try:
        return answer.result(), ""
    except Failed as error:
        return {}, f"PyTorch does not start: {error}"


def _facts(found: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    has_gpu = bool(found["gpus"])
    hardware = machine.facts()
    hardware["gpus"] = found["gpus"]
    hardware["gpu_driver_and_memory"] = _nvidia_smi()
    versions: dict[str, Any] = {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}
    versions |= {"cuda": found["cuda"], "cudnn": found["cudnn"]} if has_gpu else {}
    versions |= {name: others.get(name) for name in ("torch", "torchvision", "torch_cuda")} if others else {}
    return {"machine": hardware, "versions": versions, "commit": _commit()}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # unpacked without its metadata
        return None


def _nvidia_smi() -> str | None:
    if not shutil.which("nvidia-smi"):
        return None
    command = ("nvidia-smi", "--query-gpu=driver_version,memory.total", "--format=csv,noheader")
    return _output(*command)


def _commit() -> str | None:
    commit = _output("git", "rev-parse", "HEAD")
    changed = "" if not _output("git", "status", "--porcelain", "--untracked-files=no") else ", with changes"
    return f"{commit}{changed}" if commit else None


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
