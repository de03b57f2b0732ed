"""Sweeps by third-party sweepers (`hydra/sweeper=…`): the sweeper chooses jobs, and the rest is as in any sweep."""

import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.utils import JobReturn, JobStatus

from pipeline.command_line.compose import Composed
from pipeline.config.sweep_settings import SearchSettings, SweepSettings
from pipeline.console import Console
from pipeline.exit_codes import DONE, SWEEP_FAILED
from pipeline.planning.job import Job, SweepRun
from pipeline.run_folder.lock import locked
from pipeline.run_folder.rebuild import read_run
from pipeline.sweep.batch import run_batch
from pipeline.sweep.display import Display
from pipeline.sweep.index import write_index
from pipeline.sweep.jobs import SweepJob, checked, monitored, refuse_too_many
from pipeline.sweep.parent import finish, mark_killed, new_sweep_folder, parent_run
from pipeline.sweep.places import Place, deal_out, opened
from pipeline.system import signals
from pipeline.system.signal_listener import Interrupted
from pipeline.tracking.tracker import Tracker
from stages.errors import UserError

if TYPE_CHECKING:
    from hydra.plugins.sweeper import Sweeper

MakeSweeper = Callable[[Any, Path], "Sweeper"]
"""Returns the sweeper, which is given a task function and a folder for what it writes."""


def run_foreign_sweep(
    make: MakeSweeper,
    arguments: Sequence[str],
    compose: Callable[[Sequence[str]], Composed],
    settings: SweepSettings,
    console: Console,
) -> int:
    """Runs what a third-party sweeper asks for, and returns the exit code as `run_sweep` does.

    Args:
        make: makes the sweeper. arguments: the overrides that it gets, values that vary included.
        compose: returns the job of overrides.

    Raises:
        UserError: where a job of the first batch is wrong; nothing is recorded then.
    """
    if isinstance(settings, SearchSettings):
        raise UserError("hydra/sweeper with a search: both choose the next job", "one of them", "sweep=none")
    for name in ("zip", "exclude"):
        if getattr(settings, name):
            raise UserError(
                f"sweep.{name} has no effect on a third-party sweeper", "hydra/sweeper without it", f"sweep.{name}=[]"
            )
    with ForeignSweep(compose, settings, console) as sweep, tempfile.TemporaryDirectory() as scratch:
        sweeper = make(sweep, Path(scratch))
        return sweep.run(lambda: sweeper.sweep(list(arguments)))


class ForeignSweep:
    """The jobs that another's sweeper asks for, a batch at a time. Hydra takes it for its task function."""

    def __init__(self, compose: Callable[[Sequence[str]], Composed], settings: SweepSettings, console: Console) -> None:
        self._compose = compose
        self._settings = settings
        self._console = console
        self._jobs: list[SweepJob] = []
        self._parent: Tracker = Tracker()
        self._folder: Path | None = None
        self._places: Sequence[Place] = ()
        self._held = ExitStack()

    def __enter__(self) -> "ForeignSweep":
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def __call__(self, config: object) -> None:
        """Is no function that runs a job in this process: third-party launchers cannot be used."""
        raise UserError("third-party launchers run no jobs here", "hydra/sweeper alone", "hydra/sweeper=<option>")

    def run(self, sweep: Callable[[], object]) -> int:
        """Has the sweeper run, and ends the sweep; returns its exit code."""
        code = SWEEP_FAILED
        with signals.listening(), signals.uninterrupted():
            try:
                sweep()
                code = SWEEP_FAILED if any(job.exit_code != DONE for job in self._jobs) else DONE
            except Interrupted as interrupted:
                code = interrupted.exit_code
            except Exception as error:
                if self._folder is None:  # before anything ran
                    raise
                self._console.error(f"the sweeper ended: {error}")
            if self._folder is None:
                raise UserError("the sweeper asked for no job", "values that vary", "-m seed=1,2")
            with signals.ending(code):
                status = finish(self._folder, self._parent, self._jobs, code, self._console)
                self._write(status)
        return code

    def launch(self, batch: Sequence[Sequence[str]]) -> list[JobReturn]:
        """Runs a batch of jobs, and returns for each the validation metric that `train.monitor` names, or its error.

        Raises:
            UserError: where a job of the first batch is wrong.
            Interrupted: after a signal.
        """
        composed = [self._compose(lines) for lines in batch]
        jobs = checked(
            composed, len(composed), self._console, self._settings.refused == "skip" or bool(self._jobs), repeats=True
        )
        for number, job in enumerate(jobs, len(self._jobs) + 1):
            job.number = number
            job.label = " ".join(batch[number - len(self._jobs) - 1]) or "the only job"
        first = jobs[0].experiment
        refuse_too_many(len(self._jobs) + len(jobs), first.max_jobs)
        if first.dry_run or first.resume not in ("auto", "never"):
            given, fix = (
                ("dry_run=true", "dry_run=false") if first.dry_run else (f"resume={first.resume}", "resume=never")
            )
            raise UserError(f"{given}: what a third-party sweeper asks for is known only as it runs", "", fix)
        folder = self._begin(jobs[0]) if self._folder is None else self._folder
        self._jobs += jobs
        self._write()
        self._run(jobs, folder)
        return [self._returned(job, made, folder) for job, made in zip(jobs, composed, strict=True)]

    def _begin(self, first: SweepJob) -> Path:
        places = deal_out(self._settings, [first.experiment])
        self._places = self._held.enter_context(opened(places, [first.experiment], self._console))
        self._folder = folder = new_sweep_folder(first.experiment)
        self._held.enter_context(locked(folder))
        self._console.log(f"sweep {folder.name}, by a third-party sweeper")
        self._parent = parent_run(first.experiment, folder, 0, "jobs of a sweeper", self._console)
        self._held.enter_context(signals.last_words(lambda request: mark_killed(self._parent)))
        return folder

    def _run(self, jobs: Sequence[SweepJob], folder: Path) -> None:
        by_folder = {folder / job.folder: job for job in jobs}
        display = Display(self._console, {place: f"job {job.number}  {job.label}" for place, job in by_folder.items()})
        for place, job in by_folder.items():
            if job.refused is not None:
                display.skipped(place, f"skipped: {job.refused}")
        sweep = SweepRun(self._parent.run_id, jobs[0].experiment.name)
        wanted = [(place, job) for place, job in by_folder.items() if job.refused is None]

        def ended(job: Job, code: int) -> None:
            assert job.folder is not None
            by_folder[job.folder].exit_code = code
            self._write()

        of_batch = deal_out(self._settings, [job.experiment for _, job in wanted])
        run_batch(
            [Job(job.experiment, job.overrides, place, sweep, run_name=job.run_name) for place, job in wanted],
            display,
            self._settings,
            [replace(own, start=ready.start) for own, ready in zip(of_batch, self._places, strict=True)],
            ended,
        )

    def _write(self, status: str = "RUNNING") -> None:
        assert self._folder is not None
        write_index([job.entry for job in self._jobs], self._folder, status)

    def _returned(self, job: SweepJob, composed: Composed, folder: Path) -> JobReturn:
        summary = read_run(folder / job.folder)
        returned = JobReturn(overrides=list(job.overrides), cfg=composed.document, working_dir=str(folder / job.folder))
        if job.exit_code == DONE and summary is not None:
            returned.status = JobStatus.COMPLETED
            returned.return_value = summary.metrics.get(monitored(job.experiment), math.nan)
        else:
            reason = job.refused or (summary.error if summary is not None else None) or f"exit code {job.exit_code}"
            returned.status = JobStatus.FAILED
            returned.return_value = RuntimeError(f"job {job.number}: {reason}")
        return returned
