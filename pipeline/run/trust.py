"""What a run's folder may tell the command that resumes or forks it: settings, and no code of its own."""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from pipeline.config.schemas import SCHEMAS
from pipeline.paths import CONF, shorter
from pipeline.run.source_digest import targets_in
from pipeline.run.summary import Summary
from stages.errors import UserError

ELSEWHERE = ("tracking.uri", "strategy.name", "outputs")
"""Settings that send data to another place, or write there."""


_KEY = re.compile(r"(\+\+|[+~])?[\w/@:-][\w./@:-]*")


def check_overrides(run: Summary, overrides: Sequence[str], option: str) -> None:
    """Refuses flags of the command, and settings of Hydra's own, among the overrides of a run.

    Args:
        option: with which the run was named, such as `resume=4d9eb298`.
    """
    for override in overrides:
        key = override.partition("=")[0]
        if override.startswith("-") or not _KEY.fullmatch(key) or key.lstrip("+~").startswith("hydra"):
            raise UserError(
                f"{option}: {shorter(Path(run.folder))} has the override {override!r}, which no run has",
                "a folder that this project wrote",
                f"{option.partition('=')[0]}=<another run>",
            )


def check_trust(
    run: Summary, overrides: Sequence[str], outputs: Path, config_dirs: Sequence[Path], option: str
) -> None:
    """Refuses overrides of a run that would execute, read or send what the present configuration does not.

    Args:
        run: whose folder carries `overrides`, those that the command line does not give itself.
        outputs: of the command; a run below it may name the places that it was told.
        option: with which the run was named, such as `resume=4d9eb298`.

    Raises:
        UserError: with all that `trust=true` would allow.
    """
    allowed = known_targets(config_dirs)
    own = Path(run.folder).resolve().is_relative_to(outputs.resolve())
    asked: list[str] = []
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        value = value.strip("'\"")
        asked += [f"run {target} ({key})" for target in _targets(override) if target not in allowed]
        if "${oc." in override:
            asked.append(f"read this machine's environment ({override})")
        if key in ELSEWHERE and not own and not _holds(key, value, run):
            asked.append(f"use {override}")
        if key == "model.weights" and not own and not value.startswith(("none", "imagenet", "runs:/", "models:/")):
            asked.append(f"load {override}")
    if asked:
        raise UserError(
            f"{option} would {'; '.join(asked)}: {shorter(Path(run.folder))} asks for it, no file of the configuration",
            "targets of conf/ and of --config-dir, or trust=true, once you have read what the folder asks for",
            "trust=true",
        )


def known_targets(config_dirs: Sequence[Path]) -> set[str]:
    """Returns every `_target_` of the configuration's files and schemas."""
    found = {
        field.default
        for schemas in SCHEMAS.values()
        for schema in schemas.values()
        for field in dataclasses.fields(schema)
        if field.name == "_target_" and isinstance(field.default, str)
    }
    for folder in (CONF, *config_dirs):
        for path in (*folder.rglob("*.yaml"), *folder.rglob("*.yml")):
            try:
                found |= set(targets_in(yaml.safe_load(path.read_text())))
            except (OSError, ValueError, yaml.YAMLError):
                continue
    return found


def _targets(override: str) -> Iterator[str]:
    """Yields the targets that an override names; of one that cannot be read, all of it."""
    if "_target_" not in override:
        return
    try:
        parsed = OverridesParser.create().parse_override(override)
        value = parsed.value()
    except (HydraException, ValueError):
        yield override
        return
    if parsed.key_or_group.rpartition(".")[2] == "_target_":
        yield str(value)
    else:
        found = list(targets_in(value))
        yield from found or [override]


def _holds(key: str, value: str, run: Summary) -> bool:
    """Returns whether `outputs` of a run is where the run lies, so that it names no other place."""
    return key == "outputs" and Path(value.strip("'\"")).expanduser().resolve() == Path(run.folder).resolve().parents[2]
