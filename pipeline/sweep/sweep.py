"""Run a sweep or a search: lock its folder, run its jobs, compare them, and record the results."""

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.comparison.comparison import Comparison
from pipeline.comparison.report import COMMAND, notes, terminal_table, write
from pipeline.console import Console
from pipeline.decide.job import Job, Part
from pipeline.execute.facts import label
from pipeline.exit_codes import DONE, FAILED, STOPPED, SWEEP_FAILED, WRONG_CONFIGURATION
from pipeline.launch.slots import Slot, deal_out, may_overlap
from pipeline.paths import shorter
from pipeline.provenance.code_state import CodeState, code_state, resuming_command
from pipeline.runs.folder import RunFolder
from pipeline.sweep.claim import claimed_sweep
from pipeline.sweep.index import compare, write_index
from pipeline.sweep.jobs import SweepJob, has_only_trained
from pipeline.sweep.outcome import SweepOutcome
from pipeline.sweep.progress import Progress
from pipeline.sweep.queue import Scheduler, refusal_in
from pipeline.sweep.source import JobSource, KnownJobs, Work
from pipeline.sweep.tracked import combination, open_sweep, record_comparison
from pipeline.system import signals
from pipeline.system.processes import warm_up
from pipeline.system.streams import all_written
from pipeline.tracking.follower import Follower
from pipeline.tracking.pending import end_lost
from pipeline.tracking.tracker import STOPPED_SECONDS, Tracker
from stages.errors import UserError


def run_sweep(work: Work, console: Console) -> SweepOutcome:
    """Run the jobs of `work`, compare them, and return how that ended.

    The last sweep of the same work is resumed if it has not finished. Its finished jobs stay as they are, and an
    interrupted one is resumed.

    The order is important. The index is written before any job begins, so that the same command finds the sweep
    whenever the process dies. It gets its final status last, when everything else is printed and recorded.

    Raises:
        UserError: If the sweep cannot begin. No job has started then.
    """
    began = time.monotonic()
    slots = deal_out(work.settings, work.experiments)
    if work.experiments[0].dry_run:
        work.show(console)
        return SweepOutcome(all_written(DONE))
    if not work.experiments[0].cluster.submits_jobs:
        warm_up()
    with ExitStack() as resources, signals.listening(), signals.allow(signals.RUN_SECONDS):
        folder = resources.enter_context(claimed_sweep(work, len(slots), console))
        follower = resources.enter_context(closing(Follower(work.experiments[0].tracking)))
        source = work.begin(folder, console)
        record_jobs(work, source, folder)
        code = code_state()
        tracker = open_sweep(work, folder, code, console, follower)
        signals.on_forced_exit(lambda request: tracker.status("KILLED"))
        sweep = Sweep(work, source, folder, tracker, follower, code, console)
        try:
            with console.live(sweep.progress.table):
                sweep.run(source, slots)
                sweep.run(sweep.jobs_that_finish(), slots)
            exit_code = DONE if sweep.error is None and source.has_succeeded else SWEEP_FAILED
        except signals.Interrupted as interrupted:
            exit_code = interrupted.exit_code
        signals.ended(exit_code)
        with signals.ending():
            return finish_sweep(sweep, exit_code, began)


@dataclass
class Sweep:
    """A sweep that has begun, in a folder that this process has locked."""

    work: Work
    """The jobs that the command asked for."""
    source: JobSource
    """The source of its jobs."""
    folder: Path
    tracker: Tracker
    """Records its tracked run."""
    follower: Follower
    """Sends the records of the sweep and its jobs."""
    code: CodeState | None
    """The state of the repository when it began, if there is one."""
    console: Console
    error: str | None = None
    """The reason why no further job begins; None while nothing is wrong."""

    def __post_init__(self) -> None:
        self.progress = Progress(self.work, self.source, self.console)
        self._begun: dict[RunFolder, SweepJob] = {}

    def run(self, source: JobSource, slots: Sequence[Slot]) -> None:
        """Run the jobs of `source` until it has none, as many at a time as there are slots.

        Jobs that earlier commands have finished are taken over. After an error that the next jobs would have too, none
        begins.

        Raises:
            Interrupted: After a signal, when all processes have saved and ended.
        """
        for job in source.jobs:
            self._take_over(source, job)
            signals.check()
        self.record()
        overlaps = not self.work.is_adaptive and may_overlap(slots, self.work.experiments)
        Scheduler(
            take=partial(self._next, source),
            console=self.console,
            follower=self.follower,
            free=list(slots),
            on_end=partial(self._ended, source),
            on_poll=self.progress.poll,
            retries=self.work.settings.retries,
            overlaps=overlaps,
        ).run()

    def jobs_that_finish(self) -> KnownJobs:
        """Return the jobs that evaluate and export what others have only trained, for the best one or for all.

        Nothing is chosen by their results, so a sweep that finishes its best job uses the test split once.
        """
        jobs: Sequence[SweepJob] = ()
        try:
            if self.error is None:
                jobs = jobs_to_finish(self.folder, self.source.jobs, self.work.settings.finish)
        except UserError as error:
            self._fail(error)
        return KnownJobs(jobs)

    def record(self, status: str = "RUNNING") -> None:
        """Write the index."""
        record_jobs(self.work, self.source, self.folder, status)

    def _take_over(self, source: JobSource, job: SweepJob) -> None:
        """Send what the store lacks of a job that an earlier command has ended, and give its result to the source."""
        run = RunFolder(self.folder / job.folder)
        if job.exit_code is None and run.has_finished:
            self.progress.say(job, "already finished, skipped")
            job.exit_code = DONE
            self._tell(source, job, run)
        if job.exit_code is not None:
            end_lost(run, job.experiment, FAILED, self.console)
        if job.exit_code == DONE and (summary := run.read()) is not None:
            job.only_trains = has_only_trained(job, summary)

    def _next(self, source: JobSource) -> Job | None:
        try:
            job = source.next() if self.error is None else None
        except UserError as error:
            self._fail(error)
            return None
        if job is None:
            return None
        run = RunFolder(self.folder / job.folder)
        self._begun[run] = job
        self.progress.begin(job, run)
        name = label(job.label.split(), job.experiment.choices)
        part = Part(
            sweep_id=self.tracker.run_id,
            experiment=self.work.experiments[0].name,
            code=self.code,
            name=f"best: {name}" if job.finishes and self.work.settings.finish == "best" else name,
            combination="" if job.finishes else combination(job),
        )
        return Job(job.experiment, run, part, job.only_trains, job.on_epoch)

    def _ended(self, source: JobSource, ended: Job, code: int, seconds: float, again: bool) -> None:
        assert ended.folder is not None
        run, job = ended.folder, self._begun[ended.folder]
        job.reason = refusal_in(run) if code == WRONG_CONFIGURATION else None
        self.progress.show_end(job, run, code, seconds, again)
        if again:
            return
        job.exit_code = code
        self._tell(source, job, run)
        if job.finishes and code != DONE:
            self.error = self.error or f"{job.folder} ended with exit code {code}"
        self.record()

    def _tell(self, source: JobSource, job: SweepJob, run: RunFolder) -> None:
        try:
            source.tell(job, run.read())
        except UserError as error:
            self._fail(error)

    def _fail(self, error: UserError) -> None:
        self.error = str(error)
        self.console.error(str(error))


def record_jobs(work: Work, source: JobSource, folder: Path, status: str = "RUNNING") -> None:
    """Write the index of a sweep: what it is, and its jobs so far."""
    facts = {"identity": work.identity, "code": work.sources.digest, "total": work.total}
    facts |= {"finish": work.settings.finish, **source.facts()}
    write_index([job.entry for job in source.jobs], folder, status, facts)


def jobs_to_finish(folder: Path, jobs: Sequence[SweepJob], finish: str) -> list[SweepJob]:
    """Return a job for each of `jobs` that has only trained and is to be finished: the best one, or all.

    Args:
        folder: The folder of the sweep, whose index is up to date.
        jobs: The jobs of the sweep.
        finish: `best` or `all`.

    Raises:
        UserError: If the best one is to be finished, and none is the best.
    """
    trained = {job.folder: job for job in jobs if job.only_trains}
    if not trained:
        return []
    comparison = compare(folder)
    wanted = comparison.runs if finish == "all" else comparison.runs_to_take
    if comparison.rows and not wanted:
        raise UserError("sweep.finish=best cannot choose a job, because none is the best", "", "sweep.finish=all")
    return [trained[run.folder.name].finishing(folder) for run in wanted if run.folder.name in trained]


def finish_sweep(sweep: Sweep, code: int, began: float) -> SweepOutcome:
    """End the sweep: compare its jobs, print and record the results; return the outcome.

    Args:
        sweep: The sweep, none of whose jobs runs.
        code: Its exit code.
        began: When the command began, in seconds of `time.monotonic()`.
    """
    work, folder, tracker, console = sweep.work, sweep.folder, sweep.tracker, sweep.console
    pictures = sweep.source.draw()
    sweep.record()
    comparison = compare(folder)
    files = write(comparison, folder)
    show_results(comparison, folder, tracker, console)
    is_over = work.is_adaptive and code == SWEEP_FAILED and sweep.error is None  # a trial that failed is not run again
    if code != DONE and not is_over:
        console.log(f"{'resume':11} {resuming_command()}")
    status = "FINISHED" if code == DONE else "KILLED" if code in STOPPED else "FAILED"
    record_comparison(tracker, work, folder, comparison, sweep.source.jobs, (*files, *pictures))
    tracker.status(status)
    tracker.flush(console.log if code == DONE else None)
    tracker.close()
    sweep.follower.wait(STOPPED_SECONDS)
    seconds = time.monotonic() - began
    console.log(f"{'time':11} {seconds:.1f} s for {len(comparison.runs)} {work.unit}s: {status}")
    sweep.record(status)  # last of all: before it, the same command resumes this sweep
    return SweepOutcome(
        code, folder, sweep.error or (what_failed(comparison, work.unit, code) if code != DONE else None)
    )


def show_results(comparison: Comparison, folder: Path, tracker: Tracker, console: Console) -> None:
    """Print the comparison of the jobs, the path of its page, and the links to MLflow."""
    console.log()
    if comparison.rows:
        console.table(terminal_table(comparison))
    for line in notes(comparison):
        console.log(line) if line.startswith(COMMAND) else console.wrapped(line)
    console.log(f"comparison  {shorter(folder / 'comparison.html')}")
    for title, line in tracker.links:
        console.log(f"{title:11} {line}")


def what_failed(comparison: Comparison, unit: str, code: int) -> str:
    """Return why a sweep has no complete result: the signal, or the first of its jobs that failed."""
    if code in STOPPED:
        return f"the sweep was stopped (exit code {code})"
    failed = [run for run in comparison.runs if run.status != "FINISHED"]
    reasons = [f"{unit} {run.number} {run.status}" + f": {run.reason}" * bool(run.reason) for run in failed[:1]]
    return "; ".join([f"{len(failed)} of {len(comparison.runs)} {unit}s have not finished", *reasons])
