"""The dotted names that a configuration has, to name the nearest one to a name that does not exist."""

from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf


def dotted(node: DictConfig, prefix: str = "") -> Iterator[str]:
    """Yields the name of every key below `node`, such as `train.epochs`."""
    names: list[Any] = list(node)
    for key in names:
        if OmegaConf.is_interpolation(node, key):
            continue  # it stands, and is set, under the name that it points at
        yield f"{prefix}{key}"
        if not OmegaConf.is_missing(node, key) and isinstance(node[key], DictConfig):
            yield from dotted(node[key], f"{prefix}{key}.")
