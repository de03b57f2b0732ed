"""The session of a sweep or a search: its folder, its tracked run, its jobs, and their comparison at the end."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.comparison.report import notes, terminal_table, write
from pipeline.config.experiment import Experiment
from pipeline.config.sweep_settings import SweepSettings
from pipeline.console import Console
from pipeline.exit_codes import DONE, STOPPED, SWEEP_FAILED, WRONG_CONFIGURATION
from pipeline.paths import new_folder_name, shorter
from pipeline.planning.job import Job, OnEpoch, SweepRun
from pipeline.provenance.code_state import code_state, command, resuming_command
from pipeline.provenance.source_digest import Sources, new_for_other_code
from pipeline.run.facts import NOTE, begun_tags, sweep_description
from pipeline.run_folder.lock import locked
from pipeline.run_folder.pending import send_rest
from pipeline.sweep.display import Display
from pipeline.sweep.index import Index, compare, find_sweep, is_sweep, read_index, sweep_folders, write_index
from pipeline.sweep.jobs import SweepJob
from pipeline.sweep.process import refusal_in
from pipeline.sweep.queue import Queue, Scheduler, wait_for_server
from pipeline.sweep.slots import Slot, deal_out, opened
from pipeline.system import signals
from pipeline.system.environment import imports_kept
from pipeline.system.processes import process_started
from pipeline.system.signal_listener import Interrupted
from pipeline.system.streams import all_written
from pipeline.tracking.journal import Journal
from pipeline.tracking.stored_run import RunSpec
from pipeline.tracking.tracker import Tracker, open_tracker
from stages.errors import UserError


class Work(ABC):
    """The work of a session: the jobs of a sweep, or the trials of a search, known to work."""

    kind: str  # `sweep` or `search`
    unit: str  # what its jobs are called
    name: str  # of its tracked run
    total: int  # jobs at most
    experiments: Sequence[Experiment]  # those that are known before it begins: one at least
    sources: Sources  # of all jobs
    identity: str  # equal where the same command would run the same
    known: Sequence[SweepJob] = ()  # jobs that are known before it begins

    @property
    def first(self) -> Experiment:
        """An experiment whose `outputs`, `tracking` and `resume` all jobs have."""
        return self.experiments[0]

    @abstractmethod
    def show(self, console: Console) -> None:
        """Print the plan, for `dry_run=true`."""

    @abstractmethod
    def is_whole(self, index: Index) -> bool:
        """Return whether a FINISHED one leaves nothing to run."""

    @abstractmethod
    def begin(self, console: Console, is_new: bool) -> None:
        """Check what only a new one needs, and print what it will do.

        Raises:
            UserError: where it cannot begin.
        """

    @abstractmethod
    def jobs(self, session: "Session") -> Iterator[Job]:
        """Yield the jobs to run, each when a slot is free for it, and tell `session` of the others."""

    @abstractmethod
    def ended(self, made: SweepJob, folder: Path) -> None:
        """Take note of a job that has ended for good.

        Raises:
            UserError: where the next jobs would end as badly.
        """

    @abstractmethod
    def exit_code(self, jobs: Sequence[SweepJob]) -> int:
        """Return the exit code of a session whose jobs have all ended."""

    def results(self, folder: Path, console: Console) -> list[Path]:
        """Print and write what there is beside the comparison; return the files."""
        return []

    def facts(self) -> Mapping[str, Any]:
        """Return what the index says beside the jobs."""
        return {}


def run_session(work: Work, settings: SweepSettings, console: Console) -> int:
    """Run the jobs, and return the exit code: 0, 3 where some failed, 130 or 143 where it was stopped.

    The last session of the same work is resumed if it has not finished: jobs that have finished stay as they are, one
    that was interrupted is resumed.

    Raises:
        UserError: where it cannot begin; nothing has been started then.
    """
    slots = deal_out(settings, work.experiments)
    if work.first.dry_run:
        work.show(console)
        return all_written(DONE)
    with opened(slots, work.experiments, console) as ready:
        resumed = to_resume(work, console.log)
        work.begin(console, resumed is None)
        folder = resumed or new_sweep_folder(work.first)
        at_once = f", {len(slots)} at a time" if len(slots) > 1 else ""
        begun = "" if resumed is None else "resuming "
        console.log(f"{begun}{work.kind} {folder.name}: {work.total:,} {work.unit}s{at_once}")
        with locked(folder):
            if resumed is not None and to_resume(work, lambda line: None) != folder:
                raise UserError(f"{shorter(folder)} has finished meanwhile", "one that has not", "resume=never")
            work.sources.write(folder)
            return Session(work, folder, settings, ready, console).run()


def new_sweep_folder(experiment: Experiment) -> Path:
    """Make the folder of a new sweep."""
    folder = experiment.outputs / "sweeps" / new_folder_name(experiment.outputs)
    folder.mkdir(parents=True)
    return folder


def to_resume(work: Work, log: Callable[[str], None]) -> Path | None:
    """Return the folder of the session to resume, by `resume`; None for a new one.

    One that has finished is resumed where more is wanted now, or the store does not have all of it.

    Args:
        log: gets a line on each index that cannot be read, and on why the same work is not resumed.

    Raises:
        UserError: where the one that is asked for does something else.
    """
    choice = work.first.resume
    if choice == "never":
        return None
    if choice != "auto":
        folder = find_sweep(choice, work.first.outputs)
        if folder is None or read_index(folder).facts.get("identity") != work.identity:
            raise UserError(
                f"resume={choice} is no {work.kind} of these {work.unit}s",
                f"auto, never, a folder in {shorter(work.first.outputs / 'sweeps')}",
                "resume=auto",
            )
        return folder
    for folder in reversed(sweep_folders(work.first.outputs)):
        try:
            index = read_index(folder)
        except UserError as error:
            log(f"warning: {error}; this sweep is passed over")
            continue
        if index.facts.get("identity") != work.identity:
            continue
        if index.status == "FINISHED" and work.is_whole(index) and _is_sent(folder, index, work.first):
            return None
        if index.facts.get("code") != work.sources.digest:
            log(new_for_other_code(work.sources, folder, folder.name, work.kind))
            return None
        return folder
    return None


def _is_sent(folder: Path, index: Index, experiment: Experiment) -> bool:
    """Return whether the store has everything of a sweep and of its jobs, in theirs."""
    if experiment.tracking.kind == "off":
        return True
    journals = [Journal(place) for place in (folder, *(folder / job["folder"] for job in index.jobs))]
    return all(journal.is_closed for journal in journals if journal.run_id is not None)


class Session:
    """A sweep or a search that runs, in its folder, which this process has locked."""

    def __init__(
        self, work: Work, folder: Path, settings: SweepSettings, slots: Sequence[Slot], console: Console
    ) -> None:
        self.folder = folder
        self.console = console
        self._work = work
        self._settings = settings
        self._slots = slots
        self._parent = Tracker()
        self._jobs: dict[Path, SweepJob] = {}
        self._titles: dict[Path, str] = {}
        self._display = Display(console, self._titles, work.total)
        self._began: dict[Path | None, float] = {}
        self._failed = False
        for made in work.known:
            self.add(made)

    @property
    def jobs(self) -> list[SweepJob]:
        """The jobs so far, in their order."""
        return sorted(self._jobs.values(), key=lambda job: job.number)

    def add(self, made: SweepJob) -> Path:
        """Add a job to the session; return its folder."""
        folder = self.folder / made.folder
        self._jobs[folder] = made
        total = f"{self._work.total}"
        self._titles[folder] = f"{self._work.unit} {made.number:>{len(total)}}/{total}  {made.label}"
        return folder

    def job(self, made: SweepJob, on_epoch: OnEpoch | None = None) -> Job:
        """Return the run that a job is to be."""
        sweep = SweepRun(self._parent.run_id, self._work.first.name)
        folder = self.folder / made.folder
        return Job(made.experiment, made.overrides, folder, sweep, on_epoch=on_epoch, run_name=made.run_name)

    def skip(self, made: SweepJob, reason: str) -> None:
        """Print why a job does not run."""
        self._display.skipped(self.folder / made.folder, reason)

    def send(self, made: SweepJob) -> None:
        """Send what the store misses of a job that has ended."""
        send_rest(self.folder / made.folder, made.experiment, self.console, self._parent.run_id)

    def write(self, status: str = "RUNNING") -> None:
        """Write the index of the folder, unless it would lose the jobs of one that is resumed."""
        work = self._work
        if not self._jobs and is_sweep(self.folder):
            return
        facts = {"identity": work.identity, "code": work.sources.digest, **work.facts()}
        write_index([job.entry for job in self.jobs], self.folder, status, facts)

    def run(self) -> int:
        """Run the jobs, end the session, and return its exit code."""
        code: int | None = None
        parent_id: str | None = None
        with ExitStack() as held, signals.listening(), signals.uninterrupted():
            try:
                self.write()
                self._parent = self._open_parent()
                parent_id = self._parent.run_id
                held.enter_context(signals.on_forced_exit(lambda request: self._mark_killed()))
                self._run_jobs()
            except Interrupted as interrupted:
                code = interrupted.exit_code
            if code is None:
                code = SWEEP_FAILED if self._failed else self._work.exit_code(self.jobs)
            with signals.ending(code):
                status = self._end(code)
                if self._parent.run_id != parent_id:  # the store has lost the parent: its jobs belong to the new one
                    for made in self.jobs:
                        if made.exit_code is not None:
                            self.send(made)
                self.write(status)  # last of all: before it, the same command resumes this session
                return code

    def _run_jobs(self) -> None:
        queue = Queue(self._drawn(), self._settings.retries, lambda job: wait_for_server(job.experiment, self.console))

        def started(job: Job) -> None:
            self._began[job.folder] = time.monotonic()

        ended = partial(self._ended, queue)
        with self.console.live(self._display.table):
            Scheduler(queue, self.console, list(self._slots), started, ended, self._display.poll).run()

    def _drawn(self) -> Iterator[Job]:
        """Yield the jobs, none after an error that the next ones would have, too."""
        jobs = self._work.jobs(self)
        try:
            while not self._failed and (job := next(jobs, None)) is not None:
                yield job
        except UserError as error:
            self._fail(error)

    def _fail(self, error: UserError) -> None:
        self._failed = True
        self.console.error(str(error))

    def _ended(self, queue: Queue, job: Job, code: int) -> None:
        assert job.folder is not None
        again = queue.again(job, code)
        self._display.ended(job.folder, code, time.monotonic() - self._began[job.folder], again)
        if again:
            return
        made = self._jobs[job.folder]
        made.exit_code = code
        made.reason = refusal_in(job.folder) if code == WRONG_CONFIGURATION else None
        try:
            self._work.ended(made, job.folder)
        except UserError as error:
            self._fail(error)
        self.write()

    def _open_parent(self) -> Tracker:
        work, first = self._work, self._work.first
        tags = begun_tags(first.tracking, code_state()) | {"sweep": self.folder.name, "jobs": str(work.total)}
        if first.debug is not None:
            tags["debug"] = first.debug.kind
        spec = RunSpec(first.tracking, first.outputs, self.folder, first.name, work.name, tags=tags)
        with imports_kept():
            return open_tracker(spec, self.console.warn)

    def _mark_killed(self) -> None:
        """Mark the tracked run as KILLED, as this process is about to be ended by force."""
        self._parent.status("KILLED")
        self._parent.flush()

    def _end(self, code: int) -> str:
        """Print and write the results, end the tracked run, and return its status."""
        console, parent = self.console, self._parent
        more = self._work.results(self.folder, console)
        self.write()
        comparison = compare(self.folder)
        console.log()
        if comparison.rows:
            console.table(terminal_table(comparison))
        for line in notes(comparison):
            console.log(line)
        paths = write(comparison, self.folder)
        console.log(f"comparison  {shorter(self.folder / 'comparison.html')}")
        for label, line in zip(("open", ""), (parent.open_with or "").splitlines(), strict=False):
            console.log(f"{label:11} {line}")
        if code != DONE:
            console.log(f"{'resume':11} {resuming_command()}")
        for path in (*paths, *more):
            parent.artifact(path)
        note = self._work.first.tracking.note
        failed = sum(job.refused is None and job.exit_code not in (None, DONE) for job in self.jobs)
        table = (self.folder / "comparison.md").read_text()
        parent.tags({NOTE: sweep_description(table, command(), note), "failed": str(failed)})
        status = "FINISHED" if code == DONE else "KILLED" if code in STOPPED else "FAILED"
        parent.status(status)
        parent.flush(console.log if code == DONE else None)
        parent.close()
        seconds = time.monotonic() - process_started()
        console.log(f"{'time':11} {seconds:.1f} s for {len(comparison.runs)} {self._work.unit}s: {status}")
        return status
