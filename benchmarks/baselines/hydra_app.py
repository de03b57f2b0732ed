"""An application of Hydra's that runs one experiment in its own process, for Hydra's launchers."""

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from pipeline.api import run_experiment

ConfigStore.instance().store("hydra_app", {"seed": 0, "outputs": "outputs"})


@hydra.main(config_name="hydra_app", version_base="1.3")
def main(config: DictConfig) -> None:
    GlobalHydra.instance().clear()
    run_experiment(
        [f"seed={config.seed}", f"outputs={config.outputs}", "train.epochs=1", "deterministic=true", "resume=never"]
    )


if __name__ == "__main__":
    main()
