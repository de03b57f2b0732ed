"""A sweep from its beginning to its end: its folder, its tracked run, its jobs, and their comparison."""

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.table import Table

from pipeline.comparison.report import COMMAND, notes, terminal_table, varied, winning, write
from pipeline.config.experiment import Experiment
from pipeline.config.schemas import SweepSettings
from pipeline.console import Console
from pipeline.decide.decision import check
from pipeline.decide.fork import forked_run
from pipeline.decide.job import Job, OnEpoch, Part
from pipeline.decide.plan import after_training
from pipeline.execute.facts import NOTE, begun_tags, label, show_plan, sweep_description, sweep_name
from pipeline.exit_codes import DONE, FAILED, STOPPED, SWEEP_FAILED, WRONG_CONFIGURATION
from pipeline.launch.engine import LOOK_SECONDS
from pipeline.launch.handle import Handle
from pipeline.launch.slots import Slot, deal_out, may_overlap
from pipeline.paths import new_folder_name, shorter
from pipeline.provenance.code_state import CodeState, code_state, command, resuming_command
from pipeline.provenance.source_digest import Sources
from pipeline.runs.finding import progress
from pipeline.runs.folder import RunFolder
from pipeline.runs.lock import locked
from pipeline.runs.summary import scored
from pipeline.sweep.index import SweepJob, compare, is_sweep, write_index
from pipeline.sweep.queue import Scheduler, refusal_in
from pipeline.sweep.resume import to_resume
from pipeline.sweep.view import combination, view_of
from pipeline.system import signals
from pipeline.system.environment import imports_kept
from pipeline.system.processes import warm_up
from pipeline.system.streams import all_written
from pipeline.tracking.pending import end_lost
from pipeline.tracking.stored_run import RunSpec
from pipeline.tracking.tracker import Tracker, open_tracker
from stages.errors import UserError


class Sweep:
    """A sweep, all jobs of which are known. Its folder is locked by this process while it runs."""

    kind = "sweep"
    unit = "job"
    is_adaptive = False  # whether a job depends on the results of those before
    folder: Path  # once it has begun

    def __init__(self, jobs: Sequence[SweepJob], settings: SweepSettings, console: Console) -> None:
        self.settings = settings
        self.console = console
        self._parent = Tracker()
        self._code: CodeState | None = None
        self._jobs: dict[str, SweepJob] = {}  # by their folders
        self._running: Sequence[Handle] = ()
        self._failed = False
        self._began = time.monotonic()
        self.experiments = [job.experiment for job in jobs]  # those that are known now: one at least
        for job in jobs:
            self.add(job)
        self.name = sweep_name([job.label for job in jobs])  # of its tracked run
        self.total = len(jobs)  # at most
        self.sources = Sources({name: content for job in jobs for name, content in job.sources.files.items()})
        facts = json.dumps([(job.folder, job.identity) for job in jobs])  # equal where the command would run the same
        self.identity = hashlib.sha256(facts.encode()).hexdigest()[:32]

    def show(self) -> None:
        """Print the plan, for `dry_run=true`."""
        self.console.log(f"{self.total:,} jobs")
        for job in self.jobs:
            self.console.log(f"\n{job.label}")
            show_plan(job.experiment, check(job.experiment), self.console)

    def begin(self, is_new: bool) -> None:
        """Check what only a new one needs, and print what it will do.

        Raises:
            UserError: where it cannot begin.
        """
        for experiment in self.experiments if is_new else ():
            forked_run(experiment)

    def draw(self) -> Iterator[Job]:
        """Yield the jobs to run, each when a slot is free for it."""
        left = []
        for made in self.jobs:
            if self.run(made).has_finished:
                self.say(made, "already finished, skipped")
                self.take_over(made)
                made.exit_code = DONE
            else:
                left.append(made)
            signals.check()
        self.write()
        yield from map(self.job, left)

    def exit_code(self) -> int:
        """Return the exit code where all jobs have ended."""
        return SWEEP_FAILED if any(job.exit_code != DONE for job in self.jobs) else DONE

    def ended(self, made: SweepJob) -> None:
        """Take note of a job that has ended for good.

        Raises:
            UserError: where the next jobs would end as badly.
        """

    def results(self) -> list[Path]:
        """Write what there is beside the comparison; return the files."""
        return []

    def facts(self) -> Mapping[str, Any]:
        """Return what the index says beside the jobs."""
        return {}

    @property
    def first(self) -> Experiment:
        """An experiment whose `outputs`, `tracking` and `resume` all jobs have."""
        return self.experiments[0]

    @property
    def jobs(self) -> list[SweepJob]:
        """The jobs so far, in their order, without those that finish the best of them."""
        return sorted((job for job in self._jobs.values() if not job.finishes), key=lambda job: job.number)

    def add(self, made: SweepJob) -> None:
        """Add a job, which ends with its training where the best alone is to be finished."""
        is_whole = self.settings.finish == "all" or made.experiment.from_stage is not None
        made.only_trains = not is_whole and bool(after_training(made.experiment))
        self._jobs[made.folder] = made

    def job(self, made: SweepJob, on_epoch: OnEpoch | None = None) -> Job:
        """Return the run to make for a job."""
        name = label(made.label.split(), made.experiment.choices)
        part = Part(
            sweep_id=self._parent.run_id,
            experiment=self.first.name,
            code=self._code,
            name=f"best: {name}" if made.finishes and self.settings.finish == "best" else name,
            combination="" if made.finishes else combination(made),
        )
        return Job(made.experiment, self.run(made), part, made.only_trains, on_epoch)

    def run(self, made: SweepJob) -> RunFolder:
        """Return the run of a job."""
        return RunFolder(self.folder / made.folder)

    def say(self, made: SweepJob, text: str, style: str | None = None) -> None:
        """Print a line on a job."""
        self.console.log(f"{self._title(made)}  {text}", style=style)

    def _title(self, made: SweepJob) -> str:
        best = "best " if made.finishes and self.settings.finish == "best" else ""
        return f"{best}{self.unit} {made.number:>{len(str(self.total))}}/{self.total}  {made.label}"

    def take_over(self, made: SweepJob) -> None:
        """Send what the store misses of a job that has ended, and see whether it has only trained."""
        end_lost(self.run(made), made.experiment, FAILED, self.console)
        run = self.run(made).read()
        if run is not None and run.status == "FINISHED" and run.facts.pruned_after_epoch is None:
            later = {run.stages[name].status for name in after_training(made.experiment) if name in run.stages}
            made.only_trains = later == {"skipped"}

    def write(self, status: str = "RUNNING") -> None:
        """Write the index of the folder, unless it would lose the jobs of one that is resumed."""
        if self._jobs or not is_sweep(self.folder):
            facts = {"identity": self.identity, "code": self.sources.digest, "total": self.total}
            facts |= {"finish": self.settings.finish, **self.facts()}
            write_index([job.entry for job in self.jobs], self.folder, status, facts)

    def start(self) -> int:
        """Run the jobs, and return the exit code: 0, 3 where some failed, 130 or 143 where it was stopped.

        The last session of the same work is resumed if it has not finished: jobs that have finished stay as they are,
        one that was interrupted is resumed.

        Raises:
            UserError: where it cannot begin; nothing has been started then.
        """
        slots = deal_out(self.settings, self.experiments)
        if self.first.dry_run:
            self.show()
            return all_written(DONE)
        if not self.first.cluster.submits_jobs:
            warm_up()
        resumed = to_resume(self, self.console.log)
        self.begin(resumed is None)
        outputs = self.first.outputs
        self.folder = resumed or outputs / "sweeps" / new_folder_name(outputs)
        self.folder.mkdir(parents=True, exist_ok=True)
        ending = "s" * (self.total != 1) + (f", {len(slots)} at a time" if len(slots) > 1 else "")
        begun = "resuming " if resumed else ""
        self.console.log(f"{begun}{self.kind} {self.folder.name}: {self.total:,} {self.unit}{ending}")
        with locked(self.folder):
            if resumed and to_resume(self, lambda line: None) != resumed:
                problem = f"{shorter(resumed)} was finished by another process"
                raise UserError(problem, "an unfinished sweep", "resume=never")
            self.sources.write(self.folder)
            return self._run(slots)

    def _run(self, slots: Sequence[Slot]) -> int:
        """Run the jobs, end the session, and return its exit code."""
        code: int | None = None
        with signals.listening(), signals.uninterrupted():
            try:
                self.write()
                self._code = code_state()
                self._parent = self._open_parent()
                signals.on_forced_exit(lambda request: self._mark_killed())
                with self.console.live(self._table):
                    overlaps = not self.is_adaptive and may_overlap(slots, self.experiments)
                    given = self._ended, self._poll, self.settings.retries, overlaps
                    for jobs in map(self._until_failed, (self.draw(), self._to_finish())):
                        Scheduler(jobs, self.console, list(slots), *given).run()
            except signals.Interrupted as interrupted:
                code = interrupted.exit_code
            if code is None:
                code = SWEEP_FAILED if self._failed else self.exit_code()
            with signals.ending(code):
                status = self._end(code)
                self.write(status)  # last of all: before it, the same command resumes this session
                return code

    def _until_failed(self, jobs: Iterator[Job]) -> Iterator[Job]:
        """Yield `jobs`, none after an error that the next ones would have, too."""
        try:
            while not self._failed and (job := next(jobs, None)) is not None:
                yield job
        except UserError as error:
            self._fail(error)

    def _to_finish(self) -> Iterator[Job]:
        """Yield a job for each that is to be finished, and has only trained: it evaluates and exports what that has.

        Nothing is chosen by its results, so that a sweep which finishes its best touches the test split once.

        Raises:
            UserError: where the best is to be finished, and none is.
        """
        if not any(job.only_trains for job in self.jobs):
            return
        self.write()
        comparison = compare(self.folder)
        wanted = comparison.runs if self.settings.finish == "all" else comparison.runs_to_take
        if comparison.rows and not wanted:
            raise UserError("sweep.finish=best cannot choose a job, because none is the best", "", "sweep.finish=all")
        for made in (job for run in wanted if (job := self._jobs[run.folder.name]).only_trains):
            final = made.finishing(self.folder)
            self._jobs[final.folder] = final
            if self.run(final).has_finished:
                self.take_over(final)
            else:
                yield self.job(final)

    def _fail(self, error: UserError) -> None:
        self._failed = True
        self.console.error(str(error))

    def _poll(self, running: Sequence[Handle]) -> None:
        self._running = running

    def _ended(self, job: Job, code: int, seconds: float, again: bool) -> None:
        assert job.folder is not None
        made, run = self._jobs[job.folder.path.name], job.folder
        made.reason = refusal_in(run) if code == WRONG_CONFIGURATION else None
        self._show_end(made, code, seconds, again)
        if again:
            return
        made.exit_code = code
        try:
            if not made.finishes:
                self.ended(made)
        except UserError as error:
            self._fail(error)
        self._failed |= made.finishes and code != DONE
        self.write()

    def _show_end(self, made: SweepJob, code: int, seconds: float, again: bool) -> None:
        """Print what became of a job, and where more is said."""
        folder = self.run(made)
        run = folder.read()
        if code == DONE and run is not None:
            best = run.metrics.get(f"val/best_{run.primary}")
            score = f"val {run.primary} {scored(run.primary, best)}" if best is not None else ""
            epoch = run.facts.pruned_after_epoch
            pruned = f"pruned after epoch {epoch}" if epoch is not None else ""
            self.say(made, f"{run.status} in {seconds:.1f} s  {pruned or score}".rstrip())
            return
        lost = ("REFUSED" if code == WRONG_CONFIGURATION else "DIED", made.reason)
        status, error = (run.status, run.error) if run is not None else lost
        why = (f": {error}" if error else "") + ("; retrying" if again else "")
        self.say(made, f"{status} in {seconds:.1f} s, exit code {code}{why}", style="bold red")
        if "(traceback in" not in why:
            self.console.log(f"     its logs are in {folder}")

    def _table(self) -> Table:
        """Return the jobs that run, for a terminal."""
        table = Table("running", "epoch", "best on validation", "seconds", box=None, pad_edge=False, header_style="dim")
        for process in self._running:
            epoch, best = progress(process.folder, int(time.monotonic() / LOOK_SECONDS))
            epochs = getattr(process.job.experiment.settings.get("train"), "epochs", "?")
            score = "" if math.isnan(best) else f"{best:.4g}"
            seconds = f"{time.monotonic() - process.started:.0f}"
            table.add_row(self._title(self._jobs[process.folder.path.name]), f"{epoch}/{epochs}", score, seconds)
        done = sum(job.exit_code is not None for job in self.jobs)
        table.caption = f"{done} of {self.total} {self.unit}s have ended"
        return table

    def _open_parent(self) -> Tracker:
        first = self.first
        tags = begun_tags(first.tracking, self._code) | {"sweep": self.folder.name, "jobs": str(self.total)}
        if first.debug is not None:
            tags["debug"] = first.debug.kind
        spec = RunSpec(first.tracking, first.outputs, self.folder, first.name, self.name, tags=tags, has_jobs=True)
        with imports_kept():
            tracker = open_tracker(spec, self.console.warn)
            for name in ("matplotlib.backends.backend_svg", "matplotlib.figure"):
                import_module(name)  # for the comparison: no job waits for them now
            return tracker

    def _mark_killed(self) -> None:
        """Mark the tracked run as KILLED, as this process is about to be ended by force."""
        self._parent.status("KILLED")
        self._parent.flush()

    def _end(self, code: int) -> str:
        """Print and write the results, end the tracked run, and return its status."""
        console, parent = self.console, self._parent
        more = self.results()
        self.write()
        comparison = compare(self.folder)
        console.log()
        if comparison.rows:
            console.table(terminal_table(comparison))
        for line in notes(comparison):
            console.log(line) if line.startswith(COMMAND) else console.wrapped(line)
        paths = write(comparison, self.folder)
        console.log(f"comparison  {shorter(self.folder / 'comparison.html')}")
        for title, line in parent.links:
            console.log(f"{title:11} {line}")
        is_over = self.is_adaptive and code == SWEEP_FAILED and not self._failed  # a trial that failed is not run again
        if code != DONE and not is_over:
            console.log(f"{'resume':11} {resuming_command()}")
        for path in (*paths, *more):
            parent.artifact(path)
        failed = sum(job.exit_code not in (None, DONE) for job in self.jobs)
        parent.params({**varied(comparison), "jobs": len(comparison.runs)})
        parent.metrics({**winning(comparison), "failed": failed}, step=sum(run.has_finished for run in comparison.runs))
        table = (self.folder / "comparison.md").read_text()
        parent.tags({NOTE: sweep_description(table, command(), self.first.tracking.note), "failed": str(failed)})
        parent.view(f"{self.name} ({self.folder.name})", **view_of(comparison, self.jobs, self.is_adaptive))
        status = "FINISHED" if code == DONE else "KILLED" if code in STOPPED else "FAILED"
        parent.status(status)
        parent.flush(console.log if code == DONE else None)
        parent.close()
        seconds = time.monotonic() - self._began
        console.log(f"{'time':11} {seconds:.1f} s for {len(comparison.runs)} {self.unit}s: {status}")
        return status
