"""Names of tracked runs: what differs comes first, as MLflow's tables cut a name after some twenty characters."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pipeline.config.names import split_override
from pipeline.provenance.identity import WITHOUT_EFFECT, is_among

SHORT = {"learning_rate": "lr", "batch_size": "batch", "weight_decay": "decay"}
"""Settings by the words that people use for them, where a name would fill a table's column."""

DEFAULTS = "defaults"
"""The name of a run without overrides."""

LONGEST = 100
"""Characters of a name."""

CHOOSES_A_RUN = ("resume", "fork", "fork_weights", "trust", "sweep")
"""Settings that choose a run or make a sweep, rather than set up a run."""


def label(overrides: Iterable[str], groups: Mapping[str, str]) -> str:
    """Returns overrides as a table shows them.

    Args:
        overrides: as typed, without secrets.
        groups: the configuration's groups, whose options come first and alone.

    Example:
        >>> label(["strategy=mirrored", "optimizer.learning_rate=0.01", "seed=2"], {"strategy": "mirrored"})
        'mirrored lr=0.01 seed=2'
    """
    options_first = sorted(overrides, key=lambda text: split_override(text)[0] not in groups)
    return " ".join(_part(text, groups) for text in options_first)[:LONGEST]


def run_name(overrides: Sequence[str], groups: Mapping[str, str], folder: Path) -> str:
    """Returns the name of a run that is no job of a sweep: its own settings, and the end of its folder's name.

    Args:
        overrides: without secrets; those that change no result are left out.
    """
    chosen = [text for text in overrides if not is_among(split_override(text)[0], (*WITHOUT_EFFECT, *CHOOSES_A_RUN))]
    return f"{label(chosen, groups) or DEFAULTS} {folder.name[-8:]}"


def sweep_name(labels: Iterable[str]) -> str:
    """Returns the name of a sweep: the settings in which its jobs differ, and how many jobs it has.

    Args:
        labels: of each job, the overrides that not all jobs share.

    Example:
        >>> sweep_name(["strategy=mirrored seed=1", "strategy=mirrored seed=2", "strategy=one_device seed=1"])
        'strategy × seed, 3 jobs'
    """
    jobs = list(labels)
    keys = dict.fromkeys(_short(split_override(text)[0]) for label in jobs for text in label.split() if "=" in text)
    return f"{' × '.join(keys) or 'sweep'}, {len(jobs):,} job{'s' if len(jobs) > 1 else ''}"


def _part(override: str, groups: Mapping[str, str]) -> str:
    key, value = split_override(override)
    if key == "debug":
        return override
    if "=" not in override or key in groups:
        return value or key
    return f"{_short(key)}={value}"


def _short(key: str) -> str:
    name = key.rpartition(".")[2]
    return SHORT.get(name, name)
