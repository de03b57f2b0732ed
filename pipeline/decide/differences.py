"""Differences between the settings of an earlier run and those of a new command."""

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from pipeline.config.defaults import with_defaults
from pipeline.config.experiment import Experiment
from pipeline.provenance.identity import as_override, differing, relevant_settings, settings_of
from pipeline.runs.folder import RunFolder
from pipeline.runs.summary import Summary
from stages.errors import UserError


def settings_of_both(
    run: Summary, experiment: Experiment, ignored: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of a run and of `experiment` by their dotted names, without those in `ignored`.

    Top-level settings that this version no longer has, such as `max_jobs`, are left out. A setting that was added
    after the run has its default value in that run.
    """
    config = RunFolder(run.folder).config
    before = relevant_settings(OmegaConf.to_container(config, resolve=True), ignored)
    before = {name: value for name, value in before.items() if "." in name or name in experiment.document}
    now = settings_of(experiment, tuple(ignored))
    if now.keys() - before.keys():
        complete = relevant_settings(with_defaults(config, experiment.document), ignored)
        before |= {name: complete[name] for name in now if name not in before and name in complete}
    return before, now


def refuse_differing(
    option: str, before: Mapping[str, Any], now: Mapping[str, Any], expected: str, fix: str | None = None
) -> None:
    """Refuse the first setting that differs.

    Args:
        option: The override that names the earlier run, such as `resume=4e12`.
        before: The settings of the earlier run.
        now: The settings of the command.
        expected: What the user should provide instead.
        fix: The command to suggest; None means the setting with its earlier value.

    Raises:
        UserError: If a setting differs.
    """
    for name in differing(before, now):
        fix = fix or as_override(name, before.get(name))
        raise UserError(f"{option}: {name} was {before.get(name)} and is now {now.get(name)}", expected, fix)
