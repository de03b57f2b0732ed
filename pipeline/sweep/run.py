"""Runs the jobs of a sweep under one parent run, and compares them."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pipeline.command_line.compose import Composed
from pipeline.config.sweep_settings import SweepSettings
from pipeline.console import Console
from pipeline.exit_codes import DONE, SWEEP_FAILED
from pipeline.planning.earlier import forked_run, plan_of
from pipeline.planning.job import Job
from pipeline.provenance.source_digest import Sources
from pipeline.run.facts import show_plan
from pipeline.run.naming import sweep_name
from pipeline.run_folder.runs import has_finished
from pipeline.sweep.index import Index
from pipeline.sweep.jobs import SweepJob, checked
from pipeline.sweep.session import Session, Work, run_session
from pipeline.system import signals


def run_sweep(composed: Iterable[Composed], total: int, console: Console, settings: SweepSettings) -> int:
    """Run the jobs, about `total` in number, and return the exit code; see `run_session`.

    Raises:
        UserError: where any of the jobs is wrong; none has been started then.
    """
    return run_session(Sweep(checked(composed, total, console, settings.refused == "skip")), settings, console)


class Sweep(Work):
    """The jobs of a sweep: all of them are known."""

    kind = "sweep"
    unit = "job"

    def __init__(self, jobs: Sequence[SweepJob]) -> None:
        self.known = jobs
        self.name = sweep_name(job.label for job in jobs)
        self.total = len(jobs)
        self.experiments = [job.experiment for job in jobs if job.refused is None]
        self.sources = Sources({name: content for job in jobs for name, content in job.sources.files.items()})
        facts = json.dumps([(job.folder, job.identity) for job in jobs])
        self.identity = hashlib.sha256(facts.encode()).hexdigest()[:32]

    def show(self, console: Console) -> None:
        console.log(f"{self.total:,} jobs")
        for job in self.known:
            console.log(f"\n{job.label}")
            if job.refused is not None:
                console.log(f"skipped: {job.refused}")
            else:
                show_plan(job.experiment, plan_of(job.experiment), console)

    def begin(self, console: Console, is_new: bool) -> None:
        for experiment in self.experiments if is_new else ():
            forked_run(experiment)

    def is_whole(self, index: Index) -> bool:
        return True

    def jobs(self, session: Session) -> Iterator[Job]:
        left = []
        for made in self.known:
            if made.refused is not None:
                session.skip(made, f"skipped: {made.refused}")
            elif has_finished(session.folder / made.folder):
                session.skip(made, "finished earlier, skipped")
                session.send(made)
                made.exit_code = DONE
            else:
                left.append(made)
            signals.check()
        session.write()
        yield from map(session.job, left)

    def ended(self, made: SweepJob, folder: Path) -> None:
        """Nothing depends on how a job of a sweep ended."""

    def exit_code(self, jobs: Sequence[SweepJob]) -> int:
        return SWEEP_FAILED if any(job.exit_code != DONE for job in jobs if job.refused is None) else DONE
