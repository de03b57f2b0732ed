"""The interface of all launchers. A launcher starts runs, here or elsewhere, and returns a handle for each run."""

from abc import ABC, abstractmethod
from typing import Any

from pipeline.config.experiment import Experiment
from pipeline.console import Console
from pipeline.decide.decision import Decision
from pipeline.execute.link import Link
from pipeline.execute.task import Task
from pipeline.launch.handle import Ended, Handle
from stages.targets import class_at

LOOK_SECONDS = 2.0
"""Seconds between two checks of a job that runs elsewhere, in its journal or in the queue."""


class Launcher(ABC):
    """Starts runs. The setting `cluster._target_` names a subclass.

    Attributes:
        settings: The settings of the group `cluster`.
    """

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    @abstractmethod
    def start(
        self, decision: Decision, console: Console, link: Link | None = None, started: float | None = None
    ) -> Handle:
        """Start the run of `decision` and return its handle, for `supervise`.

        Args:
            decision: What to do.
            console: Prints the progress and the results.
            link: The connections of a job to its sweep.
            started: When the user began to wait, in seconds of `time.monotonic()`; None: now.

        Raises:
            UserError: If it cannot be started. Nothing has been recorded then.
        """

    def close(self) -> None:  # noqa: B027  most have nothing to do
        """Free what the launcher holds, when its runs have ended."""


def launcher_of(experiment: Experiment) -> Launcher:
    """Return the launcher that `experiment` names.

    Raises:
        UserError: If there is no such launcher.
    """
    launcher: type[Launcher] = class_at(experiment.cluster._target_, Launcher, "cluster", "cluster=local")
    return launcher(experiment.cluster)


def run_here(
    decision: Decision, console: Console, link: Link | None, started: float | None, task: Task | None = None
) -> Ended:
    """Execute `decision` in this process; return its handle, which has ended."""
    from pipeline.execute.execute import execute  # slow imports, which a dry run or a wrong setting does not need

    return Ended(decision.job, execute(decision, console, link, task, started=started))
