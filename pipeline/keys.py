"""The dotted names that a configuration has, to name the nearest one to a name that does not exist."""

from collections.abc import Iterator, Sequence

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.paths import CONF


def existing_keys(overrides: Sequence[str]) -> list[str]:
    """Returns the names under the options that `overrides` choose, else under the default ones."""
    groups = {path.name for path in CONF.iterdir() if path.is_dir()}
    chosen = [given for given in overrides if given.partition("=")[0] in groups and "," not in given]
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for attempt in (chosen, []):
            try:
                return list(dotted(compose("config", attempt)))
            except (HydraException, OmegaConfBaseException):
                continue
    return []


def dotted(node: DictConfig, prefix: str = "") -> Iterator[str]:
    """Yields the name of every key below `node`, such as `train.epochs`."""
    for key in map(str, node):
        if OmegaConf.is_interpolation(node, key):
            continue  # it stands, and is set, under the name that it points at
        yield f"{prefix}{key}"
        if not OmegaConf.is_missing(node, key) and isinstance(node[key], DictConfig):
            yield from dotted(node[key], f"{prefix}{key}.")
