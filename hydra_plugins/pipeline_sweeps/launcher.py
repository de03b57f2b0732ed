"""A process for every job of a sweep. Imported by Hydra at every start, so it imports little."""

import re
from collections.abc import Sequence

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict


class ProcessLauncher(Launcher):
    """Hands the jobs over to `pipeline.sweep`, all checked before the first one starts."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._context, self._config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from pipeline.config import added_config_dirs
        from pipeline.sweep import Composed, run_sweep

        jobs, config_dirs = [], added_config_dirs(self._config.hydra.runtime)
        for overrides in job_overrides:
            document = self._context.config_loader.load_sweep_config(self._config, list(overrides))
            choices = dict(document.hydra.runtime.choices)
            task = [re.sub(r"\\(.)", r"\1", given) for given in document.hydra.overrides.task]  # as it was typed
            with open_dict(document):
                document.pop("hydra")
            jobs.append(Composed(document, choices, tuple(task), config_dirs))
        raise SystemExit(run_sweep(jobs))


_NODE = {"_target_": f"{__name__}.ProcessLauncher"}
ConfigStore.instance().store(group="hydra/launcher", name="pipeline_processes", node=_NODE, provider="pipeline")
