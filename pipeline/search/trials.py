"""Trials as jobs: made from the points that the study draws; their results go back to it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.checks.registry import check_rules
from pipeline.config.options import Options
from pipeline.console import Console
from pipeline.exit_codes import DONE, FAILED, STOPPED, SWEEP_FAILED
from pipeline.planning.earlier import plan_of
from pipeline.planning.job import Job
from pipeline.provenance.identity import identity
from pipeline.provenance.source_digest import sources
from pipeline.redaction import redact_overrides
from pipeline.run.facts import show_plan
from pipeline.run_folder.runs import read_run
from pipeline.run_folder.summary import PRUNED
from pipeline.search.plan import Search, epochs_of, read_trial
from pipeline.search.pruning import Pruner
from pipeline.search.results import answer, draw, print_counts, settings_text, write_best
from pipeline.search.study import Study, Trial
from pipeline.sweep.index import Index
from pipeline.sweep.jobs import SweepJob
from pipeline.sweep.session import Session, Work
from stages.errors import UserError


class Trials(Work):
    """The trials of a search: each is drawn when a slot is free for it."""

    kind = "search"
    unit = "trial"

    def __init__(self, search: Search, options: Options) -> None:
        """Take a search, and the options of the groups, by which the best configuration is written."""
        self._search = search
        self._options = options
        self._begun: dict[str, Trial] = {}  # by the name of the folder
        self._study: Study | None = None
        self._commands: list[str] = []  # that run the best, once they are known
        self.name = f"search of {search.plan.trials} trials"
        self.total = search.plan.trials
        self.experiments = [search.first]
        self.sources = search.sources
        self.identity = search.identity

    @property
    def study(self) -> Study:
        """The study, which is open while the session runs."""
        assert self._study is not None
        return self._study

    def show(self, console: Console) -> None:
        self.begin(console, True)
        show_plan(self._search.first, plan_of(self._search.first), console)

    def begin(self, console: Console, is_new: bool) -> None:
        plan, axes = self._search.plan, self._search.axes
        random = f", the first {plan.startup_trials} at random" if plan.sampler in ("tpe", "cmaes") else ""
        pruned = {None: "none pruned", "median": "pruned by the median", "halving": "pruned by successive halving"}
        console.log(f"{'trials':8} {plan.trials:,} by {plan.sampler}{random}, {pruned[plan.pruner]}")
        console.log(f"{'goal':8} {', '.join(f'{goal.direction} {goal.metric}' for goal in plan.goals)}")
        for label, axis in zip(("space", *[""] * len(axes)), axes, strict=False):
            console.log(f"{label:8} {axis.key}: {axis.text}")

    def is_whole(self, index: Index) -> bool:
        return int(index.facts.get("trials", 0)) >= self.total

    def jobs(self, session: Session) -> Iterator[Job]:
        """Yield a job for each trial that was interrupted, then for each that the study draws."""
        self._study = study = Study(session.folder, self._search.plan, self._search.axes)
        known = [(trial, made) for trial in study.trials() if (made := self._made(trial, session)) is not None]
        session.write()
        for earlier, made in known:
            if earlier.state != "RUNNING" or self._has_ended(earlier, session.folder / made.folder):
                session.send(made)
            else:
                yield session.job(made, self._pruner(earlier, made))
        while (trial := study.ask()) is not None:
            made = self._made(trial, session)
            if made is not None:
                yield session.job(made, self._pruner(trial, made))

    def ended(self, made: SweepJob, folder: Path) -> None:
        """Tell the study what became of a trial; one that was stopped resumes when the search does."""
        if made.exit_code not in STOPPED:
            self._tell(self._begun[made.folder], folder, made.reason)

    def exit_code(self, jobs: Sequence[SweepJob]) -> int:
        return DONE if self.study.best() else SWEEP_FAILED

    def results(self, folder: Path, console: Console) -> list[Path]:
        if self._study is None:
            return []
        print_counts(self._search, self.study, console)
        paths, self._commands = write_best(self._search, self.study, folder, self._options)
        return [*draw(self.study, folder), *paths]

    def facts(self) -> Mapping[str, Any]:
        if self._study is None:
            return {}
        best = {trial.number for trial in self.study.best()}
        return {
            "trials": len(self.study.trials()),
            "search": {
                "answer": answer(self._search, self.study),
                "metrics": [goal.metric for goal in self._search.plan.goals],
                "best": [name for name, trial in self._begun.items() if trial.number in best],
                "commands": self._commands,
            },
        }

    def _made(self, trial: Trial, session: Session) -> SweepJob | None:
        """Return the job of a trial; None, and the trial has failed, where its settings do not go together."""
        try:
            made = trial_job(self._search, trial)
        except UserError as error:
            if trial.state == "RUNNING":
                self.study.tell(trial.number, reason=str(error))
                if self._search.settings.refused == "fail":
                    raise error.within(f"trial {trial.ordinal}") from error
                session.console.warn(f"trial {trial.ordinal} fails: {error}")
            return None
        self._begun[made.folder] = trial
        session.add(made)
        if trial.state != "RUNNING":
            made.exit_code = FAILED if trial.state == "FAIL" else DONE
            made.reason = trial.reason
        return made

    def _has_ended(self, trial: Trial, folder: Path) -> bool:
        """Tell the study of a trial whose run had ended when the search was killed; return whether there was one."""
        run = read_run(folder)
        if run is None or run.status != "FINISHED":
            return False
        self._tell(trial, folder)
        return True

    def _tell(self, trial: Trial, folder: Path, refusal: str | None = None) -> None:
        """Tell the study what became of a trial; refusal: why its process has refused it, if it has."""
        tell, goals = self.study.tell, self._search.plan.goals
        run = read_run(folder)
        if run is None or run.status != "FINISHED":
            tell(trial.number, reason=(run.error if run else refusal) or "it died before its run began")
            return
        if PRUNED in run.facts:
            tell(trial.number, pruned=True)
            return
        missing = [goal.metric for goal in goals if run.metrics.get(goal.metric) is None]
        if missing:
            tell(trial.number, reason=f"its run records no {missing[0]}")
            raise UserError(
                f"sweep.metric={missing[0]}: the runs record no such metric",
                sorted(name for name in run.metrics if not name.startswith("test/")),
                "sweep.metric=val/best_loss",
            )
        numbers = [float(run.metrics[goal.metric]) for goal in goals]
        if any(number != number for number in numbers):
            tell(trial.number, reason="its metric is not a number")
        else:
            tell(trial.number, numbers)

    def _pruner(self, trial: Trial, made: SweepJob) -> Pruner | None:
        plan = self._search.plan
        if plan.pruner is None:
            return None
        return Pruner(
            self.study.file,
            self.study.id_of(trial.number),
            plan.goals[0].of_epoch,
            epochs_of(made.experiment),
            plan.pruner,
            plan.startup_trials,
            plan.min_epochs,
        )


def trial_job(search: Search, trial: Trial) -> SweepJob:
    """Return the job of a trial.

    Raises:
        UserError: where its settings do not go together.
    """
    composed, experiment = read_trial(search.compose, trial.lines)
    check_rules(experiment, surroundings=False)
    plan_of(experiment)
    return SweepJob(
        number=trial.ordinal,
        label=settings_text(trial),
        experiment=experiment,
        overrides=composed.overrides,
        shown=redact_overrides(list(composed.overrides)),
        identity=identity(experiment),
        sources=sources(experiment),
    )
