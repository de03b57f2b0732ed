"""Runs the jobs of a sweep one after another, under one parent run, and compares them."""

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from pipeline.command_line.compose import Composed
from pipeline.comparison.tables import notes, terminal_table
from pipeline.config.experiment import Experiment
from pipeline.paths import shorter
from pipeline.run import provenance
from pipeline.run.clock import process_started
from pipeline.run.console import Console
from pipeline.run.job import DONE, STOPPED, Job, SweepRun, exit_code
from pipeline.run.lock import locked
from pipeline.run.origin import Origin
from pipeline.run.plan import make_plan
from pipeline.run.resume import has_finished
from pipeline.run.settle import flush, send_rest
from pipeline.run.source_digest import Sources
from pipeline.sweep.comparison import compare, write
from pipeline.sweep.index import unfinished, write_index
from pipeline.sweep.jobs import SweepJob, checked
from pipeline.sweep.scheduler import run_jobs
from pipeline.system import signals
from pipeline.system.signal_listener import Interrupted
from pipeline.tracking.health import server_answers
from pipeline.tracking.journal import Journal
from pipeline.tracking.spec import RunSpec, open_tracker
from pipeline.tracking.tracker import NullTracker, Patience, Tracker
from stages.errors import UserError

SERVER_PATIENCE_SECONDS = 600.0
"""Seconds that a sweep waits for a tracking server that went away; a job that begins without it is refused."""


def run_sweep(composed: Iterable[Composed], total: int, console: Console) -> int:
    """Runs the jobs, `total` in number, and returns the sweep's exit code: 0, 3 where some failed, 130 or 143 where it
    was stopped.

    The last sweep of the same jobs is resumed if it has not finished: jobs that have finished stay as they are, one
    that was interrupted is resumed.

    Raises:
        UserError: where any of the jobs is wrong; none has been started then.
    """
    jobs = checked(composed, total, console)
    first = jobs[0].experiment
    if first.dry_run:
        console.say(f"{total:,} jobs")
        for job in jobs:
            console.say(f"\n{job.label}")
            console.plan(job.experiment, make_plan(job.experiment))
        return DONE
    index = [job.entry for job in jobs]
    everything = Sources({name: content for job in jobs for name, content in job.sources.files.items()})
    folder = unfinished(index, first, everything, console.say, lambda folder: _is_sent(folder, jobs, first))
    if folder is None:
        folder = first.outputs / "sweeps" / f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}"
        folder.mkdir(parents=True)
        console.say(f"sweep {folder.name}: {total:,} jobs")
    else:
        console.say(f"resuming sweep {folder.name}: {total:,} jobs")
    with locked(folder):
        everything.write(folder)
        Origin(first.name, jobs=index).write(folder)
        _write(jobs, folder)
        return _run_all(folder, jobs, console)


def _run_all(folder: Path, jobs: Sequence[SweepJob], console: Console) -> int:
    """Runs the jobs of a sweep that have not finished."""
    parent: Tracker = NullTracker()
    parent_id: str | None = None
    codes: list[int] = []
    by_folder = {folder / job.folder: job for job in jobs}

    def title(job: SweepJob) -> str:
        return f"job {job.number}/{len(jobs)}  {job.label}"

    def note(job: SweepJob, code: int) -> None:
        job.exit_code = code
        codes.append(code)
        _write(jobs, folder)

    def unfinished_jobs() -> Iterator[Job]:
        sweep = SweepRun(parent.run_id, jobs[0].experiment.name)
        for job in jobs:
            place = folder / job.folder
            if has_finished(place):
                console.say(f"\n{title(job)}: finished earlier, skipped", style="bold")
                send_rest(place, job.experiment, console, sweep.run_id)
                note(job, DONE)
                signals.check()
            else:
                wait_for_server(job.experiment, console)
                yield Job(job.experiment, job.overrides, place, sweep)

    def started(running: Job) -> None:
        assert running.folder is not None
        console.say(f"\n{title(by_folder[running.folder])}", style="bold")

    def ended(running: Job, code: int) -> None:
        assert running.folder is not None
        job = by_folder[running.folder]
        note(job, code)
        if code != DONE:
            console.error(f"{title(job)}: exit code {code}")

    with ExitStack() as held, signals.listening(), signals.uninterrupted():
        try:
            parent = parent_run(jobs[0].experiment, folder, len(jobs), console)
            parent_id = parent.run_id
            held.enter_context(signals.last_words(lambda request: mark_killed(parent)))
            run_jobs(unfinished_jobs(), console, on_start=started, on_end=ended)
        except Interrupted as interrupted:
            codes.append(interrupted.exit_code)
        with signals.ending(exit_code(codes)):
            status = finish(folder, parent, jobs, exit_code(codes), console)
            if parent.run_id != parent_id:  # the store has lost the sweep's run: its jobs belong to the new one
                for job in jobs:
                    if job.exit_code is not None:
                        send_rest(folder / job.folder, job.experiment, console, parent.run_id)
            _write(jobs, folder, status)  # last of all: before it, the same command resumes this sweep
            return exit_code(codes)


def _write(jobs: Sequence[SweepJob], folder: Path, status: str = "RUNNING") -> None:
    write_index([job.entry for job in jobs], folder, status)


def parent_run(experiment: Experiment, folder: Path, jobs: int, console: Console) -> Tracker:
    """Opens the tracked run of the sweep in `folder`."""
    tags = {**experiment.tags, "sweep": folder.name, "jobs": str(jobs)}
    name = f"sweep {folder.name}"
    spec = RunSpec(experiment.tracking, experiment.outputs, folder, experiment.name, name, tags=tags)
    return open_tracker(spec, console.warn)


def _is_sent(folder: Path, jobs: Sequence[SweepJob], experiment: Experiment) -> bool:
    """Returns whether the store has everything of a sweep that has finished, and of its jobs."""
    if experiment.tracking.kind == "off":
        return True
    journals = [Journal(path) for path in (folder, *(folder / job.folder for job in jobs))]
    return all(journal.is_closed for journal in journals if journal.run_id is not None or not journal.trusted)


def wait_for_server(experiment: Experiment, console: Console) -> None:
    """Waits for a tracking server that went away since the sweep began: a job cannot begin without it."""
    deadline = time.monotonic() + SERVER_PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            server_answers(experiment)
            return
        except UserError as error:
            console.warn(f"{error.problem}; the next job waits for it")
            signals.pause(10)


def mark_killed(parent: Tracker) -> None:
    """Marks the tracked run of a sweep as KILLED, as this process is about to be ended by force."""
    parent.status("KILLED")
    parent.flush(Patience.of_stopped())


def finish(
    folder: Path,
    parent: Tracker,
    jobs: Sequence[SweepJob],
    code: int,
    console: Console,
    more: Sequence[Path] = (),
) -> str:
    """Prints and writes the comparison, then ends the tracked run; returns its status.

    Args:
        code: the exit code of the sweep. more: files that belong to the tracked run, too.
    """
    comparison = compare(folder)
    console.say()
    if comparison.rows:
        console.table(terminal_table(comparison))
    for line in notes(comparison):
        console.say(line)
    paths = write(comparison, folder)
    console.say(f"comparison  {shorter(folder / 'comparison.html')}")
    for label, line in zip(("open", ""), (parent.how_to_open() or "").splitlines(), strict=False):
        console.say(f"{label:11} {line}")
    if code != DONE:
        console.say(f"{'continue':11} {provenance.command()}")
    for path in (*paths, *more):
        parent.artifact(path)
    parent.tags({"failed": str(sum(job.exit_code not in (None, DONE) for job in jobs))})
    status = "FINISHED"
    if code != DONE:
        status = "KILLED" if code in STOPPED else "FAILED"
    parent.status(status)
    flush(parent, code == DONE, console)
    parent.close()
    console.say(f"{'time':11} {time.monotonic() - process_started():.1f} s for {len(comparison.runs)} jobs: {status}")
    return status
