"""Runs the jobs of a sweep under one parent run, and compares them."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pipeline.command_line.compose import Composed
from pipeline.config.sweep_settings import SweepSettings
from pipeline.console import Console
from pipeline.exit_codes import DONE, SWEEP_FAILED, WRONG_CONFIGURATION
from pipeline.paths import shorter
from pipeline.planning.earlier import forked_run, plan_of
from pipeline.planning.job import Job, SweepRun
from pipeline.provenance.source_digest import Sources
from pipeline.run.facts import show_plan
from pipeline.run.naming import sweep_name
from pipeline.run_folder.lock import locked
from pipeline.run_folder.runs import has_finished
from pipeline.run_folder.settle import send_rest
from pipeline.sweep.batch import run_batch
from pipeline.sweep.display import Display
from pipeline.sweep.index import unfinished, write_index
from pipeline.sweep.jobs import SweepJob, checked
from pipeline.sweep.parent import finish, is_sent, mark_killed, new_sweep_folder, parent_run
from pipeline.sweep.places import Place, deal_out, opened
from pipeline.sweep.process import refusal_in
from pipeline.system import signals
from pipeline.system.signal_listener import Interrupted
from pipeline.system.streams import all_written
from pipeline.tracking.tracker import Tracker
from stages.errors import UserError


def run_sweep(composed: Iterable[Composed], total: int, console: Console, settings: SweepSettings) -> int:
    """Runs the jobs, about `total` in number, and returns the sweep's exit code: 0, 3 where some failed, 130 or 143
    where it was stopped.

    The last sweep of the same jobs is resumed if it has not finished: jobs that have finished stay as they are, one
    that was interrupted is resumed.

    Raises:
        UserError: where any of the jobs is wrong; none has been started then.
    """
    jobs = checked(composed, total, console, settings.refused == "skip")
    to_run = [job for job in jobs if job.refused is None]
    first = to_run[0].experiment
    places = deal_out(settings, [job.experiment for job in to_run])
    if first.dry_run:
        _show_plans(jobs, console)
        return all_written(DONE)
    with opened(places, [job.experiment for job in to_run], console) as ready:
        return _run_checked(jobs, console, settings, ready)


def _run_checked(jobs: list[SweepJob], console: Console, settings: SweepSettings, places: Sequence[Place]) -> int:
    first = next(job.experiment for job in jobs if job.refused is None)
    index = [job.entry for job in jobs]
    everything = Sources({name: content for job in jobs for name, content in job.sources.files.items()})

    def to_resume(log: Callable[[str], None]) -> Path | None:
        return unfinished(index, first, everything, log, lambda place: is_sent(place, places_of(place), first.tracking))

    def places_of(sweep: Path) -> Iterable[Path]:
        return (sweep / job.folder for job in jobs)

    folder = resumed = to_resume(console.log)
    at_once = f", {len(places)} at a time" if len(places) > 1 else ""
    if folder is None:
        for job in jobs:
            if job.refused is None:
                forked_run(job.experiment)
        folder = new_sweep_folder(first)
        console.log(f"sweep {folder.name}: {len(jobs):,} jobs{at_once}")
    else:
        console.log(f"resuming sweep {folder.name}: {len(jobs):,} jobs{at_once}")
    with locked(folder):
        if resumed is not None and to_resume(lambda line: None) != folder:
            raise UserError(f"{shorter(folder)} has finished meanwhile", "a sweep that has not", "resume=never")
        everything.write(folder)
        _write(jobs, folder)
        return _Sweep(folder, jobs, console, settings, places).run()


def _show_plans(jobs: Sequence[SweepJob], console: Console) -> None:
    console.log(f"{len(jobs):,} jobs")
    for job in jobs:
        console.log(f"\n{job.label}")
        if job.refused is not None:
            console.log(f"skipped: {job.refused}")
        else:
            show_plan(job.experiment, plan_of(job.experiment), console)


@dataclass
class _Sweep:
    """A sweep that runs."""

    folder: Path
    jobs: Sequence[SweepJob]
    console: Console
    settings: SweepSettings
    places: Sequence[Place]

    def __post_init__(self) -> None:
        self._to_run = [job for job in self.jobs if job.refused is None]
        self._first = self._to_run[0].experiment
        self._by_folder = {self.folder / job.folder: job for job in self.jobs}
        total = str(len(self.jobs))
        titles = {
            place: f"job {job.number:>{len(total)}}/{total}  {job.label}" for place, job in self._by_folder.items()
        }
        self._display = Display(self.console, titles)

    def run(self) -> int:
        """Runs the jobs that have not finished, and returns the sweep's exit code."""
        parent: Tracker = Tracker()
        parent_id: str | None = None
        code: int | None = None
        with ExitStack() as held, signals.listening(), signals.uninterrupted():
            try:
                name = sweep_name(job.label for job in self.jobs)
                parent = parent_run(self._first, self.folder, len(self.jobs), name, self.console)
                parent_id = parent.run_id
                held.enter_context(signals.on_forced_exit(lambda request: mark_killed(parent)))
                self._run_jobs(SweepRun(parent_id, self._first.name))
            except Interrupted as interrupted:
                code = interrupted.exit_code
            if code is None:
                code = SWEEP_FAILED if any(job.exit_code != DONE for job in self._to_run) else DONE
            with signals.ending(code):
                status = finish(self.folder, parent, self._to_run, code, self.console)
                if parent.run_id != parent_id:  # the store has lost the sweep's run: its jobs belong to the new one
                    for job in self._to_run:
                        if job.exit_code is not None:
                            send_rest(self.folder / job.folder, job.experiment, self.console, parent.run_id)
                _write(self.jobs, self.folder, status)  # last of all: before it, the same command resumes this sweep
                return code

    def _run_jobs(self, sweep: SweepRun) -> None:
        left: list[Job] = []
        for job in self.jobs:
            folder = self.folder / job.folder
            if job.refused is not None:
                self._display.skipped(folder, f"skipped: {job.refused}")
            elif has_finished(folder):
                self._display.skipped(folder, "finished earlier, skipped")
                send_rest(folder, job.experiment, self.console, sweep.run_id)
                self._note(job, DONE)
            else:
                left.append(Job(job.experiment, job.overrides, folder, sweep, run_name=job.run_name))
            signals.check()

        def ended(job: Job, code: int) -> None:
            assert job.folder is not None
            made = self._by_folder[job.folder]
            made.reason = refusal_in(job.folder) if code == WRONG_CONFIGURATION else None
            self._note(made, code)

        run_batch(left, self._display, self.settings, self.places, ended)

    def _note(self, job: SweepJob, code: int) -> None:
        job.exit_code = code
        _write(self.jobs, self.folder)


def _write(jobs: Sequence[SweepJob], folder: Path, status: str = "RUNNING") -> None:
    write_index([job.entry for job in jobs], folder, status)
