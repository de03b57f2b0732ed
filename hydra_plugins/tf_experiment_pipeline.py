"""Hydra's launcher of this project: by it third-party sweepers, `hydra/sweeper=…`, run this project's jobs.

Hydra takes launchers from the namespace `hydra_plugins` alone and imports all of it: this module imports only Hydra.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


@dataclass
class PipelineLauncherConf:
    """Of `hydra/launcher=pipeline`."""

    _target_: str = "hydra_plugins.tf_experiment_pipeline.PipelineLauncher"


ConfigStore.instance().store(group="hydra/launcher", name="pipeline", node=PipelineLauncherConf, provider="pipeline")


class PipelineLauncher(Launcher):
    """Hands the jobs to a `pipeline.sweep.foreign.ForeignSweep`, which is the task function that it is set up with."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._sweep: Any = task_function

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Runs the jobs, and returns what became of each; see `ForeignSweep.launch`."""
        returns: Sequence[JobReturn] = self._sweep.launch(job_overrides)
        return returns
