"""Decide what a command does, completely and before TensorFlow is imported."""

import functools
from dataclasses import dataclass, replace

from pipeline.checks.registry import check_rules
from pipeline.config.experiment import Experiment
from pipeline.decide.fork import forked_run
from pipeline.decide.job import Job, Part
from pipeline.decide.notes import Notes
from pipeline.decide.plan import TRAIN, PlannedStage, after_training
from pipeline.decide.resume import is_unsent, run_to_resume
from pipeline.decide.reuse import plan_with, reused_run, with_compared_run
from pipeline.paths import new_folder_name, shorter
from pipeline.provenance.identity import identity
from pipeline.provenance.source_digest import Sources, sources
from pipeline.runs.folder import RunFolder
from pipeline.runs.summary import Summary
from stages.settings.train import TrainSettings


@dataclass(frozen=True)
class New:
    """A new run, in a new folder or in the folder of a job that has not begun."""


@dataclass(frozen=True)
class Resume:
    """The run continues in its folder."""

    run: Summary


@dataclass(frozen=True)
class AlreadyFinished:
    """The run has finished; only printing its results or uploading its records remains to be done."""

    run: Summary


@dataclass(frozen=True)
class Fork:
    """Training starts from the weights of another run."""

    run: Summary


@dataclass(frozen=True)
class Reuse:
    """The first stages take their results from another run."""

    run: Summary


@dataclass(frozen=True)
class Decision:
    """The complete plan of a command. It never changes, and no later code repeats the look-ups."""

    job: Job
    """The run to make, with its folder, which exists unless the run is new."""
    plan: tuple[PlannedStage, ...]
    """The stages in order, with those that are reused or skipped."""
    start: New | Resume | AlreadyFinished
    """Whether the run is new, resumed or already finished."""
    origin: Fork | Reuse | None
    """The other run that this run starts from, if any."""
    identity: str
    """Digest of the settings that the results depend on."""
    notes: Notes
    """Lines that are printed before anything happens."""

    @property
    def experiment(self) -> Experiment:
        """Its configuration."""
        return self.job.experiment

    @property
    def folder(self) -> RunFolder:
        """The run's folder."""
        assert self.job.folder is not None
        return self.job.folder

    @property
    def part(self) -> Part | None:
        """The place of the run in a sweep; None for a run by itself."""
        return self.job.part

    @functools.cached_property
    def sources(self) -> Sources:
        """The source code that the results depend on. It is read on first use, because a dry run does not need it."""
        return sources(self.experiment)


def decide(job: Job) -> Decision:
    """Return what to do for `job`. This reads the runs in `outputs` and the data, and does not record anything.

    1. A job of a sweep continues in its own folder, unless it has finished.
    2. `resume=<run>` resumes that run, which must have the same settings.
    3. `resume=auto` resumes the last run with the same settings and code, unless it has finished.
    4. Otherwise a new run starts: from scratch, from the weights of another run (`fork=<run>`), or with the results of
       its first stages (`from=<stage> run=<run>`).

    If a finished run was killed before it printed its results, or if some of its records are not in MLflow, the command
    only prints the results and sends the records.

    Raises:
        UserError: If something cannot work.
    """
    experiment, notes = job.experiment, Notes()
    check_rules(experiment)
    reused = reused_run(experiment)
    plan = plan_with(experiment, reused)
    if job.only_trains:
        later = after_training(experiment)
        plan = tuple(replace(stage, is_needed=stage.is_needed and stage.name not in later) for stage in plan)
    run_identity = identity(experiment)
    if reused is not None:
        _note_reuse(experiment, plan, reused, notes)
    start = _start(job, run_identity, notes)
    origin: Fork | Reuse | None = Reuse(reused) if reused is not None else None
    if not isinstance(start, AlreadyFinished):
        has_begun = isinstance(start, Resume) and RunFolder(start.run.folder).can_start
        forked = None if has_begun else forked_run(experiment)  # a run that has a checkpoint starts from that
        if isinstance(start, Resume) and job.folder is None:
            notes.run("resuming", start.run, "" if has_begun else _where_it_begins(start.run, experiment))
        elif forked is not None:
            notes.run("forking", forked)
        origin = Fork(forked) if forked is not None else origin
    return Decision(
        job=replace(job, experiment=with_compared_run(experiment), folder=_folder(job, start)),
        plan=plan,
        start=start,
        origin=origin,
        identity=run_identity,
        notes=notes,
    )


def check(experiment: Experiment) -> tuple[PlannedStage, ...]:
    """Return the plan of `experiment`, without deciding which earlier run to resume.

    Raises:
        UserError: If something cannot work.
    """
    check_rules(experiment)
    return plan_with(experiment, reused_run(experiment))


def _start(job: Job, run_identity: str, notes: Notes) -> New | Resume | AlreadyFinished:
    experiment = job.experiment
    if job.folder is not None:
        run = job.folder.read(notes.warn)
        return New() if run is None or run.status == "FINISHED" else Resume(run)
    run = run_to_resume(experiment, run_identity, notes)
    if run is None:
        return New()
    if run.status != "FINISHED":
        return Resume(run)
    rest = ", but part of it is not in MLflow yet: sending the rest" if is_unsent(run, experiment.tracking) else ""
    notes.log(f"{shorter(run.folder)} has already finished{rest}; nothing to train")
    return AlreadyFinished(run)


def _folder(job: Job, start: New | Resume | AlreadyFinished) -> RunFolder:
    if job.folder is not None:
        return job.folder
    if not isinstance(start, New):
        return RunFolder(start.run.folder)
    outputs = job.experiment.outputs
    return RunFolder(outputs / "runs" / job.experiment.name / new_folder_name(outputs))


def _where_it_begins(run: Summary, experiment: Experiment) -> str:
    """Return the end of a note on a resumed run: that it trains from its first epoch, if it has no checkpoint."""
    trained = run.stages.get(TRAIN)
    is_over = trained is not None and trained.status in ("ran", "reused")
    trains = experiment.of("train", TrainSettings) is not None and experiment.from_stage is None
    begins_again = trains and experiment.fork is None and not is_over
    return ", from epoch 1, because there is no checkpoint" if begins_again else ""


def _note_reuse(experiment: Experiment, plan: tuple[PlannedStage, ...], run: Summary, notes: Notes) -> None:
    notes.run(f"starting with {experiment.from_stage}, from the results of", run)
    now = sources(experiment)
    if any(stage.action == "reused" for stage in plan) and run.code != now.digest:
        changed = now.changed(run.folder) or "files that were not recorded"
        notes.warn(f"the code has changed since that run ({changed}), but its results are reused")
