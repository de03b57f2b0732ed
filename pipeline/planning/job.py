"""Jobs: runs to be made, and the folders that they claim."""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from pipeline.config.experiment import Experiment
from pipeline.config.names import split_override
from pipeline.config.schemas import SQLITE
from pipeline.exit_codes import DONE
from pipeline.paths import LOCK, new_folder_name, shorter
from pipeline.provenance.code_state import CodeState, versions
from pipeline.provenance.identity import OF_A_COMMAND, identity, is_among
from pipeline.provenance.source_digest import sources
from pipeline.redaction import redact_overrides
from pipeline.run_folder.journal import NAME as JOURNAL
from pipeline.run_folder.lock import LockedError, is_locked, locked, share
from pipeline.run_folder.runs import Runs, read_run
from pipeline.run_folder.summary import FINGERPRINT, NAME, Summary
from pipeline.system import signals
from stages.checkpoints.names import can_start, checkpoint_files
from stages.errors import UserError
from stages.settings.places import appendable
from stages.settings.ranges import quoted


class PrunedError(Exception):
    """A search ends its trial after `epoch`, counted from 1: others do better."""

    def __init__(self, epoch: int) -> None:
        super().__init__(epoch)
        self.epoch = epoch


OnEpoch = Callable[[Mapping[str, float], int], None]
"""Receives the metrics of each epoch by their full names, and its number from 1; may raise PrunedError."""


@dataclass(frozen=True)
class SweepRun:
    """The tracked run of a sweep, the parent of its jobs' runs.

    run_id: None if the sweep is not tracked. code: the state of the repository, if there is one, as the sweep began.
    """

    run_id: str | None
    experiment: str
    code: CodeState | None


@dataclass
class Turn:
    """The turn of a sweep's job to train: it may begin while the one before is evaluated and exported.

    connection: to the sweep's process; None: the job is alone, and need not wait. limit: `job_timeout_seconds`.
    waited: seconds for the end of the one before. has_come: whether the turn has come.
    """

    connection: Connection | None = None
    limit: float | None = None
    waited: float = 0.0
    has_come: bool = False

    def wait(self) -> None:
        """Wait for the turn, which comes once; the job's time limit begins when it has come."""
        if self.has_come or self.connection is None:
            return
        began = time.monotonic()
        try:
            came = signals.until(self._came)
        finally:
            self.waited = time.monotonic() - began
        self.has_come = True
        if self.limit is not None:
            signals.time_out(came + self.limit, self.limit)

    def _came(self) -> float:
        """Return when the turn has come, in seconds of `time.monotonic()`; 0 before."""
        assert self.connection is not None
        with suppress(EOFError, OSError):  # the sweep was killed, which ends its jobs
            return float(self.connection.recv()) if self.connection.poll() else 0.0
        return 0.0

    def has_trained(self) -> None:
        """Let the next job begin, and wait."""
        self._tell(None)

    def has_finished(self) -> None:
        """Let the next job train: this one is only to be sent to its store."""
        self._tell(DONE)

    def _tell(self, code: int | None) -> None:
        if self.connection is not None:
            with suppress(OSError):
                self.connection.send(code)


@dataclass(frozen=True)
class Job:
    """One run to be made.

    folder: of the run; None: a new one under `outputs/runs`.
    sweep: the sweep that it belongs to, if any; run_name: what its tracked run is called there: what differs.
    combination: the same without the seed.
    resumed: the run that goes on in its own folder; forked: the one from whose weights a new run starts.
    started: when the user began to wait for it, in seconds of `time.monotonic()`.
    on_epoch: of a search's trial. turn: to train, where other jobs of the sweep are in the same place.
    tags: of its tracked run, about where it runs. is_supervised: another process has locked the folder for this one.
    only_trains: whether the stages after training are left out, as another job runs them.
    lock: of the folder, in the process that has claimed it. store: the connection to one that talks to its store.
    """

    experiment: Experiment
    overrides: tuple[str, ...] = ()
    folder: Path | None = None
    sweep: SweepRun | None = None
    resumed: Summary | None = None
    forked: Summary | None = None
    started: float = field(default_factory=time.monotonic)
    on_epoch: OnEpoch | None = None
    turn: Turn = field(default_factory=Turn)
    run_name: str | None = None
    combination: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    is_supervised: bool = False
    only_trains: bool = False
    lock: IO[str] | None = None
    store: Connection | None = None

    @property
    def run_folder(self) -> Path:
        """The folder of a job that has one by now."""
        assert self.folder is not None
        return self.folder

    def resuming(self, run: Summary | None) -> "Job":
        """Returns this job, resuming `run` in its folder; unchanged for None."""
        if run is None:
            return self
        folder = self.folder or Path(run.folder)
        forked = None if can_start(folder / "checkpoints") else self.forked
        return replace(self, folder=folder, resumed=run, forked=forked)


def new_folder(experiment: Experiment) -> Path:
    """Returns the folder of a new run, which does not exist yet."""
    return experiment.outputs / "runs" / experiment.name / new_folder_name(experiment.outputs)


@contextmanager
def claimed(job: Job, supervises: bool = False) -> Iterator[Job]:
    """Locks the folder of `job`, a new one where it has none, and yields `job` with the run that it finds there.

    A new run gets its first summary here, before TensorFlow is imported, so that the same command finds it from now
    on. All of a run is written within this block. The summary is read in it, too, as `resolve` has looked before
    another process may have ended the run. A run that has not begun when the block ends leaves nothing.

    Args:
        supervises: whether the run is written by processes that this one starts, which claim the folder, too.

    Raises:
        UserError: where another process works there or has finished the run.
    """
    code = sources(job.experiment).digest
    with ExitStack() as held:
        if job.folder is None:
            held.enter_context(_alone(job.experiment, code))
        folder = job.folder or new_folder(job.experiment)
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        appendable(folder / LOCK).open("a").close()  # its time is that of the run's beginning
        with locked(folder, shared=job.is_supervised) as lock:
            if supervises:
                share(lock)
            if not (folder / LOCK).exists():
                raise UserError(f"{shorter(folder)} was deleted by another process", "an existing run", "resume=never")
            run = read_run(folder)
            if run is not None and run.status == "FINISHED":
                problem = f"{shorter(folder)} was finished by another process"
                raise UserError(problem, "a run that was interrupted", "resume=never")
            is_supervised = supervises or job.is_supervised
            claim = replace(
                job, folder=folder, resumed=None, is_supervised=is_supervised, lock=None if supervises else lock
            ).resuming(run)
            try:
                if run is None:
                    first_summary(claim, code).write(folder, durable=False)  # `begin` makes it so
                held.close()
                yield claim
            finally:
                if run is None and not has_begun(folder):
                    (folder / NAME).unlink(missing_ok=True)
                    if is_new:
                        remove_if_unused(folder)


@contextmanager
def _alone(experiment: Experiment, code: str) -> Iterator[None]:
    """Keep others from beginning a run within the block, which makes this one visible to them.

    Raises:
        LockedError: if the same command has begun one since `resolve` has looked.
    """
    (experiment.outputs / "runs").mkdir(parents=True, exist_ok=True)
    with locked(experiment.outputs / "runs"):
        if experiment.resume == "auto":
            last = Runs(experiment.outputs).latest(experiment.name, identity(experiment))
            is_same = last is not None and (last.status, last.code) == ("RUNNING", code)
            if last is not None and is_same and is_locked(Path(last.folder)):
                raise LockedError(Path(last.folder))
        yield


def first_summary(job: Job, code: str) -> Summary:
    """Return the summary with which the run of `job` begins, or begins again; `code`: digest of all sources."""
    experiment, folder, resumed = job.experiment, job.run_folder, job.resumed
    known = {}
    if resumed and FINGERPRINT in resumed.facts and checkpoint_files(folder / "checkpoints"):
        known = {FINGERPRINT: resumed.facts[FINGERPRINT]}
    return Summary(
        run_id=resumed.run_id if resumed else None,
        status="RUNNING",
        name=experiment.name,
        folder=str(folder),
        choices=experiment.choices,
        overrides=recorded_overrides(job),
        versions=versions(),
        identity=(resumed.identity if resumed else None) or identity(experiment),
        code=code,
        facts={"seed": experiment.seed, **known, **job.tags},
    )


def recorded_overrides(job: Job) -> list[str]:
    """Return the overrides of a run as they are recorded: without those of the command, and without secrets."""
    texts = [text for text in job.overrides if not is_among(split_override(text)[0], OF_A_COMMAND)]
    uri = job.experiment.tracking.uri or ""
    if uri.startswith(SQLITE):  # complete, as the next command may be typed in another folder
        texts = [f"tracking.uri={quoted(uri)}" if split_override(text)[0] == "tracking.uri" else text for text in texts]
    return redact_overrides(texts)


def has_begun(folder: Path) -> bool:
    """Return whether a run has recorded anything in `folder`."""
    return (folder / JOURNAL).exists()


def remove_if_unused(folder: Path) -> None:
    """Remove the folder of a run in which nothing has begun."""
    if not any([*folder.glob(NAME), *folder.glob("*.log")]):
        shutil.rmtree(folder, ignore_errors=True)
