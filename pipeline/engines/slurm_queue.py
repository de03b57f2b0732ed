"""Slurm's queue, and notes in the folders of runs by which the same command finds their jobs there."""

import json
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from pipeline.config.experiment import Experiment
from pipeline.run.identity import identity
from stages.storage.atomic import atomic_write

QUEUE_SECONDS = 2.0
"""Seconds between two looks at the queue."""

COMMAND_SECONDS = 60

ENDS = {
    "COMPLETED", "FAILED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "OUT_OF_MEMORY", "REVOKED", "UNKNOWN", "CANCELLED",
    "TIMEOUT", "DEADLINE",
}  # fmt: skip
"""States after which a job is not run again; it is, after any other."""

NOTE = "slurm.json"

Entry = tuple[str, str, str, int]
"""State, reason, nodes and exit status of a job."""


class _Queue:
    """This user's jobs in Slurm, asked for every QUEUE_SECONDS."""

    def __init__(self) -> None:
        self._asked = -QUEUE_SECONDS
        self._jobs: Mapping[str, Entry] | None = None

    def jobs(self) -> Mapping[str, Entry] | None:
        """Returns the jobs by their ids, with those that ended in the last minutes; None: Slurm does not answer."""
        if time.monotonic() - self._asked >= QUEUE_SECONDS:
            self._jobs = self._ask()
            self._asked = time.monotonic()
        return self._jobs

    @staticmethod
    def _ask() -> Mapping[str, Entry] | None:
        fields = "JobArrayID:|,State:|,Reason:|,NodeList:|,exit_code:|"
        command = ["squeue", "--me", "--array", "--noheader", "--states=all", f"--Format={fields}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        rows = [line.split("|") for line in done.stdout.splitlines() if line.count("|") >= 5]
        return {row[0].strip(): (row[1], row[2], row[3], int(row[4] or 0)) for row in rows}


queue = cache(_Queue)


@dataclass(frozen=True)
class Note:
    """The last job that was submitted for a run: its id, what its first task prints into, and the run's identity."""

    id: str
    log: str
    identity: str

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / NOTE, json.dumps(asdict(self)) + "\n")


def queued(folder: Path | None) -> Note | None:
    """Returns the job of the run in `folder` that waits in Slurm's queue or runs, if any."""
    try:
        note = Note(**json.loads((folder / NOTE).read_text())) if folder is not None else None
    except (OSError, ValueError, TypeError):  # there is none, or it is damaged
        return None
    jobs = queue().jobs() if note is not None else None
    state = jobs[note.id][0] if note is not None and jobs is not None and note.id in jobs else "UNKNOWN"
    return None if state in ENDS else note


def queued_folder(experiment: Experiment) -> Path | None:
    """Returns the folder of a run with these settings whose job waits in Slurm's queue or runs, if any."""
    wanted = identity(experiment)
    for path in sorted((experiment.outputs / "runs" / experiment.name).glob(f"*/{NOTE}"), reverse=True):
        note = queued(path.parent)
        if note is not None and note.identity == wanted:
            return path.parent
    return None
