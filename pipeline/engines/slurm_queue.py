"""Slurm's queue, and notes in the folders of runs by which the same command finds their jobs there."""

import json
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from signal import SIGTERM
from typing import NamedTuple

from pipeline.config.experiment import Experiment
from pipeline.exit_codes import TIMED_OUT
from pipeline.provenance.identity import identity
from pipeline.run_folder.runs import read_run
from stages.errors import UserError
from stages.storage.atomic import atomic_write

QUEUE_SECONDS = 2.0
"""Seconds between two looks at the queue."""

COMMAND_SECONDS = 60

ENDED = {"CANCELLED": 128 + SIGTERM, "TIMEOUT": TIMED_OUT, "DEADLINE": TIMED_OUT}
"""Exit codes of jobs that Slurm has ended; else it is their own."""

ENDS = {"COMPLETED", "FAILED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "OUT_OF_MEMORY", "REVOKED", "UNKNOWN", *ENDED}
"""States after which a job is not run again; it is, after any other."""

NAME = "slurm.json"
"""The note in the folder of a run."""


class Entry(NamedTuple):
    """A job in the queue: its state with the reason, its nodes, its exit status, and the script that was submitted."""

    state: str
    reason: str = ""
    nodes: str = ""
    status: int = 0
    script: str = ""


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
        fields = "JobArrayID:|,State:|,Reason:|,NodeList:|,exit_code:|,Command:|"
        command = ["squeue", "--me", "--array", "--noheader", "--states=all", f"--Format={fields}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        rows = [line.split("|") for line in done.stdout.splitlines() if line.count("|") >= 6]
        return {row[0].strip(): Entry(row[1], row[2], row[3], int(row[4] or 0), row[5]) for row in rows}


queue = cache(_Queue)


@dataclass(frozen=True)
class Note:
    """The last job that was submitted for a run: its id, what its first task prints into, and the run's identity."""

    id: str
    log: str
    identity: str

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / NAME, json.dumps(asdict(self)) + "\n")


def queued(folder: Path | None) -> Note | None:
    """Returns the job of the run in `folder` that waits in Slurm's queue or runs, if any.

    Raises:
        UserError: where there may be one, and Slurm does not answer.
    """
    note = _note(folder) if folder is not None else None
    if note is None:
        return None
    jobs = queue().jobs()
    if jobs is None:
        raise UserError(
            f"cluster=slurm: squeue does not answer, and this experiment may be in the queue already, as job {note.id}",
            "a Slurm that answers",
            "squeue --me",
        )
    return note if _is_queued(note, jobs) else None


def queued_folder(experiment: Experiment) -> Path | None:
    """Returns the folder of a job with these settings that waits in Slurm's queue, and has begun no run there yet.

    Whether a run that has begun is resumed depends on more, such as its code; see `pipeline.planning.earlier`.

    Raises:
        UserError: as `queued` does.
    """
    wanted = identity(experiment)
    for path in sorted((experiment.outputs / "runs" / experiment.name).glob(f"*/{NAME}"), reverse=True):
        folder = path.parent
        note = _note(path.parent)
        if note is None or note.identity != wanted or read_run(folder) is not None:
            continue
        if queued(folder) is not None:
            return folder
    return None


def _note(folder: Path) -> Note | None:
    try:
        note = Note(**json.loads((folder / NAME).read_text()))
    except (OSError, ValueError, TypeError):  # there is none, or it is damaged
        return None
    return note if all(isinstance(value, str) for value in asdict(note).values()) else None


def _is_queued(note: Note, jobs: Mapping[str, Entry]) -> bool:
    """Returns whether the job of `note` is among `jobs` and has not ended; an id may be another cluster's."""
    entry = jobs.get(note.id, Entry("UNKNOWN"))
    return entry.state not in ENDS and Path(entry.script).parent == Path(note.log).parent
