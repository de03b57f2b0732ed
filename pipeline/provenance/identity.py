"""Identity of a run: a digest of the settings that its results depend on."""

import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from pipeline.config.experiment import Experiment
from pipeline.config.names import flatten
from pipeline.redaction import redact
from stages.settings.model import KerasHubSettings, ModelSettings
from stages.settings.places import content_digest

WITHOUT_EFFECT = (
    "resume", "dry_run", "job_timeout_seconds", "hang_seconds", "outputs", "tracking",
    "cluster", "name",
    "train.checkpoint_every_seconds", "train.checkpoint_every_steps", "train.checkpoints_kept", "inspect.batch_size",
    "export.reload", "export.reload_seconds",
)  # fmt: skip
"""Settings that do not change the results of a run."""

COMMAND_SETTINGS = ("sweep", "resume", "dry_run")
"""Settings that belong to a command and not to its run."""


def settings_of(experiment: Experiment, ignored: tuple[str, ...] = WITHOUT_EFFECT) -> dict[str, Any]:
    """Return the settings of `experiment` by their dotted names, without secrets."""
    return relevant_settings(redact(OmegaConf.to_container(experiment.document, resolve=True)), ignored)


def identity(experiment: Experiment) -> str:
    """Return 32 hexadecimal digits that are the same for settings with the same results.

    Secrets do not count. A preset of KerasHub counts by its content.
    """
    settings = settings_of(experiment)
    model = experiment.of("model", ModelSettings)
    if model is not None and isinstance(model.network, KerasHubSettings):
        digest = content_digest(model.network.preset)
        settings = {name: digest if value == model.network.preset else value for name, value in settings.items()}
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:32]


def relevant_settings(document: Any, ignored: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a configuration by their dotted names, without those in `ignored`."""
    return {name: value for name, value in flatten(document) if not is_among(name, ignored)}


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of the settings with different values in `before` and `now`."""
    return [name for name in dict.fromkeys([*before, *now]) if str(before.get(name)) != str(now.get(name))]


def is_among(name: str, settings: Iterable[str]) -> bool:
    """Return whether the dotted `name` is one of `settings` or below one of them."""
    return any(name == setting or name.startswith(f"{setting}.") for setting in settings)


def as_override(name: str, value: Any) -> str:
    """Return the override that sets `name` to `value`, quoted for a shell."""
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return shlex.quote(f"{name}={text}")
