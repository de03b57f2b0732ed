"""`${by_rows:<setting>}` in configuration files: values that follow from the number of training rows of a table."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

from pipeline.config.errors import as_written, parts
from stages.settings.by_rows import settings_by_rows

RESOLVER = "by_rows"


def replace_by_rows(document: DictConfig) -> None:
    """Replace each `${by_rows:…}` by its value, so that the configuration of a run records what was used."""
    for name, node, key in list(parts(document)):
        if OmegaConf.is_interpolation(node, key) and f"${{{RESOLVER}:" in as_written(node, key):
            OmegaConf.update(document, name, node[key])


def _value(setting: str, _root_: DictConfig) -> Any:
    data = OmegaConf.to_container(_root_.data, resolve=False)
    assert isinstance(data, dict)
    value = settings_by_rows({str(name): part for name, part in data.items()})[setting]
    return min(value, _root_.train.epochs / 10) if setting == "warmup_epochs" else value


OmegaConf.register_new_resolver(RESOLVER, _value, replace=True)
