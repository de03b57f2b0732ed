"""The grid of a sweep. Imported by Hydra at every start, so it imports little."""

import itertools

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class GridSweeper(Sweeper):
    """Every combination of the values given as `a,b,c`. Hydra's own writes files before the jobs are checked."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._context = hydra_context
        self._launcher: Launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        self._launcher.launch(self.grid(arguments), initial_job_idx=0)

    def grid(self, arguments: list[str]) -> list[list[str]]:
        """Returns the overrides of each job, the last axis changing fastest."""
        parser = OverridesParser.create(config_loader=self._context.config_loader)
        axes = []
        for override in parser.parse_overrides(arguments):
            name = override.get_key_element()
            if override.is_sweep_override():
                axes.append([f"{name}={value}" for value in override.sweep_string_iterator()])
            else:
                axes.append([override.input_line or f"{name}={override.get_value_element_as_str()}"])
        return [list(job) for job in itertools.product(*axes)]


_NODE = {"_target_": f"{__name__}.GridSweeper"}
ConfigStore.instance().store(group="hydra/sweeper", name="pipeline_grid", node=_NODE, provider="pipeline")
