"""Each default is defined once, in its dataclass; the options in conf/ only have values that differ from it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipeline.config.names import flatten
from pipeline.config.schemas import SCHEMAS, TopSettings, top_level_key
from pipeline.paths import CONF


def plain(configuration: Any) -> dict[str, Any]:
    values = OmegaConf.to_container(configuration)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values in an option's file, and the values that it inherits from schemas and other options."""
    values = plain(OmegaConf.load(path))
    inherited: dict[str, Any] = {}
    for entry in values.pop("defaults"):
        if isinstance(entry, Mapping):
            [(key, name)] = entry.items()
            if str(key).startswith("override "):  # of another group
                continue
            group, place = str(key).removeprefix("/schema/").split("@")
            schema = plain(OmegaConf.structured(SCHEMAS[group][name]))
            inherited |= schema if place == "_here_" else {place: schema}
        elif entry != "_self_":
            own, base = read(path.with_name(f"{entry}.yaml"))
            inherited = plain(OmegaConf.merge(base, own))
    return values, inherited


def test_options_do_not_repeat_defaults() -> None:
    for path in CONF.glob("*/*.yaml"):
        if path.parent.name not in ("experiment", "pipeline"):
            values, inherited = map(flatten, read(path))
            defaults = list(inherited)
            assert [item for item in values if item in defaults] == [], path


def test_the_primary_configuration_and_its_schema_have_the_same_defaults() -> None:
    primary, defaults = plain(OmegaConf.load(CONF / "config.yaml")), plain(OmegaConf.structured(TopSettings))
    del defaults["pipeline"]  # a group
    assert {name: primary[top_level_key(name)] for name in defaults} == defaults
