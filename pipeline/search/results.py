"""The results of a search: its best trials, each as an experiment that is one run, and its plots."""

import re
import shlex
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from pipeline.command_line.compose import Composed
from pipeline.config.experiment import read
from pipeline.config.names import Options
from pipeline.paths import outputs_folder, shorter
from pipeline.redaction import redact, redact_overrides
from pipeline.search.plan import Compose
from pipeline.search.study import Study, Trial
from stages.storage.atomic import atomic_write

FOLDER = "conf"
"""In a search's folder: what `--config-dir` takes."""

EXPERIMENT = "experiment"

OF_THE_COMMAND = ("outputs", "resume", "max_jobs", "dry_run", "trust", "hang_seconds", "job_timeout_seconds")
"""Settings of the command, and of the machine that it ran on, that say nothing of the experiment."""


def write_experiment(composed: Composed, comment: str, options: Options, folder: Path, name: str) -> Path:
    """Write the whole configuration of a trial as the experiment `name` into a search's folder; return its path.

    The file chooses the trial's option in every group and sets every value. So it stands alone: neither what the search
    varies nor the experiment file that it came from is read again. Secrets are left out and named, as the file is an
    artifact of the search's run.

    Args:
        comment: stands above it. options: those of the groups, to tell an option that is replaced from one that is new.
    """
    values, secrets = _values(composed)
    if secrets:
        comment += f"\nWithout what holds secrets, to be given with the command: {', '.join(secrets)}"
    header = "".join(f"# {line}\n" for line in comment.splitlines())
    body = {"defaults": [*_choices(composed, options), "_self_"], **values}
    path = folder / FOLDER / EXPERIMENT / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, f"# @package _global_\n{header}{yaml.safe_dump(body, sort_keys=False, allow_unicode=True)}")
    return path


def run_command(composed: Composed, options: Options, folder: Path, name: str) -> str:
    """Return the command that runs the experiment `name` of the search in `folder`, once, beside the search."""
    words = ["python", "-m", "pipeline", "--config-dir", shorter(folder / FOLDER)]
    for place in composed.config_dirs:
        words += ["--config-dir", str(place)]
    words.append(f"{'' if EXPERIMENT in options.defaults else '+'}{EXPERIMENT}={name}")
    words += [line for line in composed.overrides if line.startswith("~")]  # no file can remove what another one sets
    outputs = folder.parent.parent
    if outputs != outputs_folder(None):
        words.append(f"outputs={shorter(outputs)}")
    return " ".join([*map(shlex.quote, words), *(f"{secret}=…" for secret in _values(composed)[1])])


def _choices(composed: Composed, options: Options) -> list[dict[str, Any]]:
    """Return what chooses the options of a trial, as entries of a defaults list."""
    chosen: dict[str, Any] = {group: composed.choices[group] for group in composed.choices if group in options.groups}
    for group in (EXPERIMENT, "debug", "sweep"):
        chosen.pop(group, None)
    if "sweep" in options.defaults:
        chosen["sweep"] = "none"
    new_first = sorted(chosen, key=lambda group: group in options.defaults)  # as Hydra wants them
    return [
        {f"{'override ' if group in options.defaults else ''}/{group}": chosen[group]}
        for group in new_first
        if chosen[group] is not None
    ]


def _values(composed: Composed) -> tuple[dict[str, Any], list[str]]:
    """Return the values of a trial's experiment, and the dotted names of those that are left out as secrets."""
    document = read(composed.document, composed.choices, composed.config_dirs).document
    plain = OmegaConf.to_container(document, resolve=False)
    assert isinstance(plain, dict)
    secrets: list[str] = []
    own = {name: value for name, value in plain.items() if name not in OF_THE_COMMAND}
    return _without_secrets(own, redact(own), "", secrets), secrets


def _without_secrets(
    plain: Mapping[Any, Any], masked: Mapping[Any, Any], path: str, secrets: list[str]
) -> dict[Any, Any]:
    """Return `plain` without the values that differ in `masked`, whose names are added to `secrets`."""
    kept: dict[Any, Any] = {}
    for (key, value), (shown_key, shown) in zip(plain.items(), masked.items(), strict=True):
        if isinstance(value, Mapping) and key == shown_key:
            kept[key] = _without_secrets(value, shown, f"{path}{key}.", secrets)
        elif (key, value) == (shown_key, shown):
            kept[key] = value
        else:
            secrets.append(f"{path}{shown_key}")
    return kept


FEWEST = 4
"""Complete trials that importances need."""


def answer(study: Study) -> str:
    """Return the best of the complete trials, by the goals of the search and nothing else."""
    goals, best = study.plan.goals, study.best()
    if not best:
        return "no trial is complete, so that none is best"
    complete, failed = len(study.trials("COMPLETE")), len(study.trials("FAIL"))
    of = f"best of {complete} complete trial{'s' * (complete != 1)}{f' ({failed} failed)' if failed else ''}"
    if len(goals) == 1:
        better = "lower" if goals[0].direction == "minimize" else "higher"
        value = f"{goals[0].metric} ({best[0].values[0]:.4g}; {better} is better)"
        return f"{of}: trial {best[0].ordinal}, {settings_text(best[0])}, chosen on {value}, never on test"
    found = "; ".join(f"trial {trial.ordinal} ({_values_text(study, trial)})" for trial in best)
    return f"{of}, as none beats them in {' and in '.join(goal.metric for goal in goals)}: {found}"


def settings_text(trial: Trial) -> str:
    """Return the settings of a trial as a person reads them: numbers of at most four digits, no secrets."""
    lines = [
        re.sub(r"(?<==)-?\d+\.\d+(e-?\d+)?$", lambda match: f"{float(match[0]):.4g}", line) for line in trial.lines
    ]
    return " ".join(redact_overrides(lines))


def _values_text(study: Study, trial: Trial) -> str:
    return ", ".join(f"{goal.metric} {value:.4g}" for goal, value in zip(study.plan.goals, trial.values, strict=True))


def write_best(study: Study, compose: Compose, folder: Path, options: Options) -> tuple[list[Path], list[str]]:
    """Write the best configurations into the folder of the search; return the files, and the commands to run them."""
    paths, commands = [], []
    best = study.best()
    for number, trial in enumerate(best, 1):
        name = "best" if len(best) == 1 else f"best_{number}"
        composed = compose(trial.lines)
        comment = f"Trial {trial.ordinal} of search {folder.name}: {_values_text(study, trial)}"
        paths.append(write_experiment(composed, comment, options, folder, name))
        commands.append(run_command(composed, options, folder, name))
    return paths, commands


def draw(study: Study, folder: Path) -> list[Path]:
    """Draw `history.png`, of several goals the Pareto front, and `importance.png` where there are trials enough.

    The importance of a setting is its share in the variance of a goal, by functional ANOVA (Hutter et al., "An
    Efficient Approach for Assessing Hyperparameter Importance", ICML 2014).
    """
    names = [goal.metric for goal in study.plan.goals]
    values = [trial.values for trial in study.trials("COMPLETE")]
    if not values or len(names) > 3:
        return []
    import matplotlib as mpl
    import optuna

    mpl.use("agg")
    from optuna.visualization import matplotlib as plots

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        figures: dict[str, Any] = {}
        if len(names) == 1:
            figures["history.png"] = plots.plot_optimization_history(study.optuna, target_name=names[0])
        else:
            figures["history.png"] = plots.plot_pareto_front(study.optuna, target_names=names)
        if len(values) >= FEWEST and all(len(set(column)) > 1 for column in zip(*values, strict=True)):
            evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
            figures["importance.png"] = plots.plot_param_importances(study.optuna, evaluator, target_name=names[0])
    for name, axes in figures.items():
        axes.figure.savefig(folder / name, dpi=120, bbox_inches="tight")
    return [folder / name for name in figures]
