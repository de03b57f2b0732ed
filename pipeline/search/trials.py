"""The trials of a search as jobs. The study draws each trial when it can run, and receives its result."""

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from pipeline.comparison.choice import are_validated_alike
from pipeline.config.experiment import Experiment
from pipeline.console import Console
from pipeline.decide.fork import epochs_before, forked_run
from pipeline.decide.job import OnEpoch
from pipeline.exit_codes import DONE, FAILED, STOPPED
from pipeline.runs.folder import RunFolder
from pipeline.runs.summary import Summary, is_lower_better
from pipeline.search.plan import BEST, OF_TEST, Compose, Plan, read_trial
from pipeline.search.study import REASON, Pruner, Study, answer, draw, settings_text
from pipeline.sweep.grid import check_job
from pipeline.sweep.jobs import SweepJob, is_finished_later
from stages.errors import UserError
from stages.reuse import PENALIZED
from stages.settings.strategy import MultiWorkerSettings, ParameterServerSettings
from stages.settings.train import TrainSettings


class Trials:
    """The job source of a search. Its study is in the folder of the search.

    Attributes:
        jobs: The trials so far, in order.
        study: The study.
    """

    def __init__(self, plan: Plan, compose: Compose, folder: Path, console: Console) -> None:
        """Open the study in `folder`, with the trials of earlier commands, or create it.

        Args:
            plan: The plan of the search.
            compose: Returns the configuration of a trial.
            folder: The folder of the search, which this process has locked.
            console: Prints which trials cannot run.
        """
        self.jobs: list[SweepJob] = []
        self.study = Study(folder, plan)
        self._plan = plan
        self._compose = compose
        self._folder = folder
        self._console = console
        for trial in self.study.trials():
            self._add(trial)
        self._earlier = deque(self.jobs)

    def next(self) -> SweepJob | None:
        """Return the next trial that was interrupted; after them, the next one that the study draws."""
        while self._earlier:
            if (job := self._earlier.popleft()).exit_code is None:
                return job
        while (trial := self.study.ask()) is not None:
            if (drawn := self._add(trial)) is not None:
                return drawn
        return None

    def tell(self, job: SweepJob, run: Summary | None) -> None:
        """Tell the study the result of a trial; one that was stopped will be resumed by the next command."""
        if job.exit_code in STOPPED:
            return
        trial = self.study.trials()[job.number - 1]
        if run is None or run.status != "FINISHED":
            reason = (run.error if run else job.reason) or "its process died before the run began"
            self.study.tell(trial, reason=reason)
        elif run.facts.pruned_after_epoch is not None:
            self.study.tell(trial, pruned=True)
        else:
            try:
                refuse_goal(self._plan, run, job.only_trains)
                self._refuse_other_examples(run, job)
            except UserError as error:
                self.study.tell(trial, reason=error.problem)
                raise
            values = [run.metrics[goal.metric] for goal in self._plan.goals]
            if any(value != value for value in values):
                self.study.tell(trial, reason="its metric is not a number")
            else:
                self.study.tell(trial, values)

    @property
    def has_succeeded(self) -> bool:
        """Whether there is a best trial."""
        return bool(self.study.best())

    def facts(self) -> Mapping[str, Any]:
        best = {trial.number + 1 for trial in self.study.best()}
        folders = [job.folder for job in self.jobs if job.number in best]
        metrics = [goal.metric for goal in self._plan.goals]
        return {"search": {"answer": answer(self.study), "metrics": metrics, "best": folders}}

    def draw(self) -> list[Path]:
        return draw(self.study, self._folder)

    def _add(self, trial: FrozenTrial) -> SweepJob | None:
        """Add the job of a trial and return it; None if its settings cannot be combined, so the trial has failed."""
        is_running = trial.state is TrialState.RUNNING
        try:
            experiment = read_trial(self._compose, self._plan.lines(trial))
            check_job(experiment)
        except UserError as error:
            if is_running:
                self.study.tell(trial, reason=str(error))
                self._console.warn(f"trial {trial.number + 1} failed: {error}")
            return None
        job = SweepJob(trial.number + 1, settings_text(self.study, trial), experiment)
        job.only_trains = is_finished_later(experiment, self._plan.settings)
        if is_running:
            job.on_epoch = self._pruner(trial, experiment)
        else:
            job.exit_code = FAILED if trial.state is TrialState.FAIL else DONE
            job.reason = trial.user_attrs.get(REASON)
        self.jobs.append(job)
        return job

    def _pruner(self, trial: FrozenTrial, experiment: Experiment) -> OnEpoch | None:
        """Return the pruner of a trial; None if it cannot be pruned, such as a trial of several processes."""
        settings, strategy = self._plan.settings, experiment.settings.get("strategy")
        if not self._plan.prunes or isinstance(strategy, (MultiWorkerSettings, ParameterServerSettings)):
            return None
        train = experiment.of("train", TrainSettings)
        return Pruner(
            file=self.study.file,
            trial=trial.number,
            metric=self._plan.goals[0].metric.replace(BEST, "val/", 1),
            before=epochs_before(experiment, forked_run(experiment, starts=False)),
            epochs=train.all_epochs if train else 0,
            kind=settings.pruner,
            startup_trials=settings.startup_trials or 1,
            min_epochs=settings.min_epochs,
        )

    def _refuse_other_examples(self, run: Summary, job: SweepJob) -> None:
        """Refuse a trial with other validation examples than the first one."""
        others = (RunFolder(self._folder / other.folder).read() for other in self.jobs if other is not job)
        first = next((other for other in others if other is not None and other.facts.val_examples), run)
        if not are_validated_alike([first, run]):
            problem = (
                f"trial {job.number} has other validation examples than the first trial, so they cannot be compared"
            )
            fix = f"python -m pipeline -m {self._plan.axes[0].key}=<value>,<value>"
            raise UserError(problem, "settings that do not change the validation split", fix)


def refuse_goal(plan: Plan, run: Summary, only_trains: bool) -> None:
    """Refuse a goal if a trial lacks its metric, it includes penalties, or its direction contradicts the trial's task.

    Args:
        plan: The plan of the search.
        run: The summary of the trial, which has finished.
        only_trains: Whether the trial has only trained.
    """
    names = [goal.metric for goal in plan.goals]
    if missing := [name for name in names if name not in run.metrics]:
        known = sorted(name for name in run.metrics if not name.startswith(OF_TEST))
        problem = f"sweep.metric={missing[0]}: the runs record no such metric"
        raise UserError(problem, known, "sweep.finish=all" if only_trains else "sweep.metric=val/best_loss")
    losses = [name for name in names if name.endswith("loss")]
    is_of_model = any(axis.key.partition(".")[0] == "model" for axis in plan.axes)
    if losses and is_of_model and PENALIZED in (run.facts.val_loss or {}):
        problem = f"{losses[0]} includes the networks' regularization penalties, which may differ between trials"
        raise UserError(problem, "a metric without regularization penalties", f"sweep.metric=val/best_{run.primary}")
    directions = ["minimize" if is_lower_better(name, run.task) else "maximize" for name in names]
    for goal, direction in zip(plan.goals, directions, strict=True):
        if goal.direction != direction and plan.settings.direction is None:
            problem = f"sweep.metric={goal.metric}: its name suggests {goal.direction}, but the runs' task {direction}"
            raise UserError(problem, "an explicit direction", f"sweep.direction=[{','.join(directions)}]")
