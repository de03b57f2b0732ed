"""A search before it begins: its plan, and the checks of its space."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from pipeline.config.experiment import Experiment
from pipeline.config.schemas import SearchSettings, SweepSettings
from pipeline.console import Console
from pipeline.decide.decision import check
from pipeline.decide.fork import forked_run
from pipeline.decide.plan import after_training
from pipeline.execute.facts import show_plan
from pipeline.provenance.identity import identity
from pipeline.provenance.source_digest import Sources, sources
from pipeline.search.plan import Axis, Compose, check_axes, plan_search, probes, read_trial, refuse_debug
from pipeline.search.trials import Trials
from pipeline.sweep.grid import check_job
from stages.errors import UserError


class Search:
    """The work of a search, whose trials are drawn while it runs. See `Work` for its attributes."""

    kind = "search"
    unit = "trial"
    is_adaptive = True

    def __init__(self, settings: SearchSettings, axes: Sequence[Axis], compose: Compose) -> None:
        """Plan a search, after checking that every end of its space has an effect and a value in its range.

        Combinations that a rule refuses may only show later; at least one end must work.

        Args:
            settings: The settings of the search.
            axes: Its space.
            compose: Returns the configuration of a trial.

        Raises:
            UserError: If the search is wrong.
        """
        check_axes(settings, axes)
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
        self.settings: SweepSettings = settings
        self.plan = plan_search(settings, axes, working[0])
        self.experiments: Sequence[Experiment] = working[:1]
        self.total = self.plan.settings.trials
        self.name = f"search of {self.total} trials"
        self.sources = Sources(files)
        self.identity = hashlib.sha256((self.plan.describe() + identities[0]).encode()).hexdigest()[:32]
        self._compose = compose

    def show(self, console: Console) -> None:
        self.announce(console, is_new=True)
        [first] = self.experiments
        show_plan(first, check(first), console)

    def announce(self, console: Console, is_new: bool) -> None:
        settings, axes, [first] = self.plan.settings, self.plan.axes, self.experiments
        forked_run(first, starts=is_new)
        of_points = f" of {points:,} points" if (points := self.plan.points) else ""
        pruned = f"pruner {settings.pruner}" if self.plan.prunes else "no pruning"
        console.log(f"{'trials':8} {self.total:,}{of_points}, sampler {settings.sampler}, {pruned}")
        if settings.finish == "best" and (stages := after_training(first)):
            console.log(f"{'finish':8} {', '.join(stages)}: once, for the best trial")
        console.log(f"{'goal':8} {', '.join(f'{goal.direction} {goal.metric}' for goal in self.plan.goals)}")
        for label, axis in zip(("space", *[""] * len(axes)), axes, strict=False):
            console.log(f"{label:8} {axis.key}: {axis.text}")

    def begin(self, folder: Path, console: Console) -> Trials:
        return Trials(self.plan, self._compose, folder, console)
