"""Trials as jobs: made from the points that the study draws; their results go back to it."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pipeline.checks.registry import check_rules
from pipeline.console import Console
from pipeline.exit_codes import DONE, FAILED, STOPPED, WRONG_CONFIGURATION
from pipeline.planning.earlier import plan_of
from pipeline.planning.job import Job, SweepRun
from pipeline.provenance.identity import identity
from pipeline.provenance.source_digest import sources
from pipeline.redaction import redact_overrides
from pipeline.run_folder.runs import read_run
from pipeline.run_folder.settle import send_rest
from pipeline.run_folder.summary import PRUNED
from pipeline.search.checks import Search, epochs_of, read_trial
from pipeline.search.pruning import Pruner
from pipeline.search.study import Study, Trial
from pipeline.sweep.index import write_index
from pipeline.sweep.jobs import SweepJob
from pipeline.sweep.process import refusal_in
from stages.errors import UserError


class Trials:
    """The trials of one search.

    Args:
        folder: the search's. sweep: its tracked run.

    Attributes:
        sweep: as given; what is set here holds for the jobs to come.
        titles: from the folders of the trials so far to what each is called.
    """

    def __init__(self, search: Search, study: Study, folder: Path, sweep: SweepRun, console: Console) -> None:
        self._search = search
        self._study = study
        self._folder = folder
        self.sweep = sweep
        self._console = console
        self.titles: dict[Path, str] = {}
        self._begun: dict[Path, tuple[Trial, SweepJob]] = {}

    def jobs(self) -> Iterator[Job]:
        """Yields a job for each trial that was interrupted, then for each that the study asks for."""
        for earlier in self._study.trials():
            job = self._made(earlier)
            if job is None:
                continue
            if earlier.state != "RUNNING" or self._has_ended(earlier, job):
                send_rest(self._folder / job.folder, job.experiment, self._console, self.sweep.run_id)
            else:
                yield self._job(earlier, job)
        while (trial := self._study.ask()) is not None:
            job = self._made(trial)
            if job is not None:
                yield self._job(trial, job)

    def ended(self, job: Job, code: int) -> None:
        """Tells the study what became of a job's trial; one that was stopped resumes when the search does."""
        assert job.folder is not None
        trial, made = self._begun[job.folder]
        made.exit_code = code
        made.reason = refusal_in(job.folder) if code == WRONG_CONFIGURATION else None
        if code not in STOPPED:
            self._tell(trial, job.folder, made.reason)
        self.write()

    @property
    def begun(self) -> list[SweepJob]:
        """The jobs of the trials so far, in their order."""
        return sorted((job for _, job in self._begun.values()), key=lambda job: job.number)

    def write(self, status: str = "RUNNING") -> None:
        """Writes the index of the search's folder."""
        told = {"identity": self._search.identity, "code": self._search.sources.digest}
        write_index([job.entry for job in self.begun], self._folder, status, told)

    def _made(self, trial: Trial) -> SweepJob | None:
        """Returns the job of a trial; None, and the trial has failed, where its settings do not go together."""
        try:
            job = trial_job(self._search, trial)
        except UserError as error:
            if trial.state == "RUNNING":
                self._study.tell(trial.number, reason=str(error))
                if self._search.settings.refused == "fail":
                    raise error.within(f"trial {trial.ordinal}") from error
                self._console.warn(f"trial {trial.ordinal} fails: {error}")
            return None
        total = self._search.plan.trials
        self._begun[self._folder / job.folder] = trial, job
        self.titles[self._folder / job.folder] = f"trial {trial.ordinal:>{len(str(total))}}/{total}  {job.label}"
        if trial.state != "RUNNING":
            job.exit_code = FAILED if trial.state == "FAIL" else DONE
            job.reason = trial.reason
        return job

    def _has_ended(self, trial: Trial, job: SweepJob) -> bool:
        """Tells the study of a trial whose run had ended when the search was killed; returns whether there was one."""
        run = read_run(self._folder / job.folder, self._console.warn)
        if run is None or run.status != "FINISHED":
            return False
        self._tell(trial, self._folder / job.folder)
        return True

    def _tell(self, trial: Trial, folder: Path, refusal: str | None = None) -> None:
        """Tells the study what became of a trial; refusal: why its process has refused it, if it has."""
        run = read_run(folder, self._console.warn)
        if run is None or run.status != "FINISHED":
            self._study.tell(trial.number, reason=(run.error if run else refusal) or "it died before its run began")
            return
        if PRUNED in run.facts:
            self._study.tell(trial.number, pruned=True)
            return
        values = [run.metrics.get(goal.metric) for goal in self._search.plan.goals]
        missing = [goal.metric for goal, value in zip(self._search.plan.goals, values, strict=True) if value is None]
        if missing:
            self._study.tell(trial.number, reason=f"its run records no {missing[0]}")
            raise UserError(
                f"sweep.metric={missing[0]}: the runs record no such metric",
                sorted(name for name in run.metrics if not name.startswith("test/")),
                "sweep.metric=val/best_loss",
            )
        numbers = [float(value) for value in values if value is not None]
        if any(number != number for number in numbers):
            self._study.tell(trial.number, reason="its metric is not a number")
        else:
            self._study.tell(trial.number, numbers)

    def _job(self, trial: Trial, made: SweepJob) -> Job:
        job = Job(made.experiment, made.overrides, self._folder / made.folder, self.sweep, run_name=made.run_name)
        plan = self._search.plan
        if plan.pruner is None:
            return job
        return replace(
            job,
            on_epoch=Pruner(
                self._study.address,
                self._study.name,
                self._study.id_of(trial.number),
                plan.goals[0].of_epoch,
                epochs_of(made.experiment),
                plan.pruner,
                plan.startup_trials,
                plan.min_epochs,
            ),
        )


def trial_job(search: Search, trial: Trial) -> SweepJob:
    """Returns the job of a trial.

    Raises:
        UserError: where its settings do not go together.
    """
    composed, experiment = read_trial(search.compose, trial.lines)
    check_rules(experiment, surroundings=False)
    plan_of(experiment)
    return SweepJob(
        number=trial.ordinal,
        label=" ".join(redact_overrides([shortened(line) for line in trial.lines])),
        experiment=experiment,
        overrides=composed.overrides,
        shown=redact_overrides(list(composed.overrides)),
        identity=identity(experiment),
        sources=sources(experiment),
    )


def shortened(line: str) -> str:
    """Returns an override with a number of at most four digits: `train.dropout=0.1234` of 0.12341234."""
    return re.sub(r"(?<==)-?\d+\.\d+(e-?\d+)?$", lambda match: f"{float(match[0]):.4g}", line)
