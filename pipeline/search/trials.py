"""Trials as jobs: made from the points that the study draws; their results go back to it."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from pipeline.comparison.choice import are_validated_alike
from pipeline.config.experiment import Experiment
from pipeline.config.schemas import SearchSettings
from pipeline.console import Console
from pipeline.decide.decision import check
from pipeline.decide.fork import epochs_before, forked_run
from pipeline.decide.job import Job
from pipeline.decide.plan import after_training
from pipeline.execute.facts import show_plan
from pipeline.exit_codes import DONE, FAILED, STOPPED, SWEEP_FAILED
from pipeline.provenance.identity import identity
from pipeline.provenance.source_digest import Sources, sources
from pipeline.runs.summary import Summary, is_lower_better
from pipeline.search.plan import BEST, OF_TEST, Axis, Compose, check_axes, make_plan, probes, read_trial, refuse_debug
from pipeline.search.study import REASON, Pruner, Study, answer, draw, settings_text
from pipeline.sweep.index import SweepJob
from pipeline.sweep.run import check_job
from pipeline.sweep.session import Sweep
from stages.errors import UserError
from stages.reuse import PENALIZED
from stages.settings.strategy import MultiWorkerSettings, ParameterServerSettings
from stages.settings.train import TrainSettings


class Search(Sweep):
    """The trials of a search: each is drawn when a slot is free for it."""

    kind = "search"
    unit = "trial"
    is_adaptive = True
    study: Study  # once it runs

    def __init__(self, settings: SearchSettings, axes: Sequence[Axis], compose: Compose, console: Console) -> None:
        """Plan a search, once every end of its space is known to have an effect and a value in its range.

        Combinations that a rule refuses may show only as they come; at least one end must work.

        Raises:
            UserError: where the search is wrong.
        """
        super().__init__((), settings, console)
        check_axes(settings, axes)
        self._compose = compose
        files: dict[str, str] = {}
        identities: list[str] = []
        working: list[Experiment] = []
        refusals: list[UserError] = []
        for lines in probes(axes):
            experiment = read_trial(compose, lines)
            refuse_debug(experiment, axes)
            identities.append(identity(experiment))
            files |= sources(experiment).files
            try:
                check_job(experiment, surroundings=not working)
                working.append(experiment)
            except UserError as error:
                refusals.append(error.within(f"trial {' '.join(lines)}"))
        if not working:
            raise refusals[0]
        self.plan = make_plan(settings, axes, working[0])
        self.experiments = working[:1]
        self.sources = Sources(files)
        self.identity = hashlib.sha256((self.plan.describe() + identities[0]).encode()).hexdigest()[:32]
        self._trials: dict[str, FrozenTrial] = {}  # by the name of the folder
        self.total = self.plan.settings.trials
        self.name = f"search of {self.total} trials"

    def show(self) -> None:
        self.begin(True)
        show_plan(self.first, check(self.first), self.console)

    def begin(self, is_new: bool) -> None:
        forked_run(self.first, starts=is_new)
        settings, axes = self.plan.settings, self.plan.axes
        of_points = f" of {points:,} points" if (points := self.plan.points) else ""
        pruned = f"pruner {settings.pruner}" if self.plan.prunes else "no pruning"
        self.console.log(f"{'trials':8} {self.total:,}{of_points}, sampler {settings.sampler}, {pruned}")
        if settings.finish == "best" and (stages := after_training(self.first)):
            self.console.log(f"{'finish':8} {', '.join(stages)}: once, for the best trial")
        self.console.log(f"{'goal':8} {', '.join(f'{goal.direction} {goal.metric}' for goal in self.plan.goals)}")
        for label, axis in zip(("space", *[""] * len(axes)), axes, strict=False):
            self.console.log(f"{label:8} {axis.key}: {axis.text}")

    def draw(self) -> Iterator[Job]:
        """Yield a job for each trial that was interrupted, then for each that the study draws."""
        self.study = Study(self.folder, self.plan)
        known = [(trial, made) for trial in self.study.trials() if (made := self._made(trial)) is not None]
        self.write()
        for earlier, made in known:
            run = self.run(made).read()
            if earlier.state is TrialState.RUNNING and (run is None or run.status != "FINISHED"):
                yield self._job(earlier, made)
                continue
            if earlier.state is TrialState.RUNNING:
                self._tell(earlier, made)  # the search was killed before
            self.take_over(made)
        while (trial := self.study.ask()) is not None:
            if (drawn := self._made(trial)) is not None:
                yield self._job(trial, drawn)

    def ended(self, made: SweepJob) -> None:
        """Tell the study what became of a trial; one that was stopped resumes when the search does."""
        if made.exit_code not in STOPPED:
            self._tell(self._trials[made.folder], made)

    def exit_code(self) -> int:
        return DONE if self.study.best() else SWEEP_FAILED

    def results(self) -> list[Path]:
        return draw(self.study, self.folder) if hasattr(self, "study") else []

    def facts(self) -> Mapping[str, Any]:
        if not hasattr(self, "study"):
            return {}
        best = {trial.number for trial in self.study.best()}
        folders = [name for name, trial in self._trials.items() if trial.number in best]
        metrics = [goal.metric for goal in self.plan.goals]
        return {"search": {"answer": answer(self.study), "metrics": metrics, "best": folders}}

    def _made(self, trial: FrozenTrial) -> SweepJob | None:
        """Return the job of a trial; None, and the trial has failed, where its settings do not go together."""
        try:
            experiment = read_trial(self._compose, self.plan.lines(trial))
            check_job(experiment)
        except UserError as error:
            if trial.state is TrialState.RUNNING:
                self.study.tell(trial, reason=str(error))
                self.console.warn(f"trial {trial.number + 1} failed: {error}")
            return None
        made = SweepJob(trial.number + 1, settings_text(self.study, trial), experiment)
        if trial.state is not TrialState.RUNNING:
            made.exit_code = FAILED if trial.state is TrialState.FAIL else DONE
            made.reason = trial.user_attrs.get(REASON)
        self._trials[made.folder] = trial
        self.add(made)
        return made

    def _tell(self, trial: FrozenTrial, made: SweepJob) -> None:
        """Tell the study what became of a trial."""
        run = self.run(made).read()
        if run is None or run.status != "FINISHED":
            reason = (run.error if run else made.reason) or "its process died before the run began"
            self.study.tell(trial, reason=reason)
        elif run.facts.pruned_after_epoch is not None:
            self.study.tell(trial, pruned=True)
        else:
            try:
                self._refuse_goal(run, made)
                self._refuse_other_examples(run, made)
            except UserError as error:
                self.study.tell(trial, reason=error.problem)
                raise
            values = [run.metrics[goal.metric] for goal in self.plan.goals]
            if any(value != value for value in values):
                self.study.tell(trial, reason="its metric is not a number")
            else:
                self.study.tell(trial, values)

    def _refuse_goal(self, run: Summary, made: SweepJob) -> None:
        """Refuse a goal that a trial lacks, that has penalties, or of which the trial's task wants the opposite."""
        names = [goal.metric for goal in self.plan.goals]
        if missing := [name for name in names if name not in run.metrics]:
            known = sorted(name for name in run.metrics if not name.startswith(OF_TEST))
            problem = f"sweep.metric={missing[0]}: the runs record no such metric"
            raise UserError(problem, known, "sweep.finish=all" if made.only_trains else "sweep.metric=val/best_loss")
        losses = [name for name in names if name.endswith("loss")]
        is_of_model = any(axis.key.partition(".")[0] == "model" for axis in self.plan.axes)
        if losses and is_of_model and PENALIZED in (run.facts.val_loss or {}):
            problem = f"{losses[0]} includes the networks' regularization penalties, which may differ between trials"
            raise UserError(
                problem, "a metric without regularization penalties", f"sweep.metric=val/best_{run.primary}"
            )
        told = ["minimize" if is_lower_better(name, run.task) else "maximize" for name in names]
        for goal, direction in zip(self.plan.goals, told, strict=True):
            if goal.direction != direction and self.plan.settings.direction is None:
                problem = (
                    f"sweep.metric={goal.metric}: its name suggests {goal.direction}, but the runs' task {direction}"
                )
                raise UserError(problem, "an explicit direction", f"sweep.direction=[{','.join(told)}]")

    def _refuse_other_examples(self, run: Summary, made: SweepJob) -> None:
        """Refuse a trial that was validated on other examples than the first one."""
        others = (self.run(job).read() for job in self.jobs if job is not made)
        first = next((other for other in others if other is not None and other.facts.val_examples), run)
        if not are_validated_alike([first, run]):
            problem = (
                f"trial {made.number} has other validation examples than the first trial, so they cannot be compared"
            )
            fix = f"python -m pipeline -m {self.plan.axes[0].key}=<value>,<value>"
            raise UserError(problem, "settings that do not change the validation split", fix)

    def _job(self, trial: FrozenTrial, made: SweepJob) -> Job:
        """Return the run of a trial, which is pruned unless its processes end together."""
        settings, own = self.plan.settings, made.experiment.settings.get("strategy")
        if not self.plan.prunes or isinstance(own, (MultiWorkerSettings, ParameterServerSettings)):
            return self.job(made)
        train = made.experiment.of("train", TrainSettings)
        epochs, startup = train.all_epochs if train else 0, settings.startup_trials or 1
        before = epochs_before(made.experiment, forked_run(made.experiment, starts=False))
        of_epoch = self.plan.goals[0].metric.replace(BEST, "val/", 1)
        place = (self.study.file, trial.number, of_epoch, before, epochs)
        return self.job(made, Pruner(*place, settings.pruner, startup, settings.min_epochs))
