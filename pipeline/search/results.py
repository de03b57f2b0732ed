"""The results of a search: its best trials in a sentence, and its plots."""

import re
import warnings
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from pipeline.redaction import redact_overrides
from pipeline.search.study import Study

FEWEST = 4
"""Complete trials that importances need."""


def answer(study: Study) -> str:
    """Return the best of the complete trials, by the goals of the search and nothing else."""
    goals, best = study.plan.goals, study.best()
    if not best:
        return "no trial is complete, so that none is best"
    complete, failed = len(study.trials(TrialState.COMPLETE)), len(study.trials(TrialState.FAIL))
    of = f"best of {complete} complete trial{'s' * (complete != 1)}{f' ({failed} failed)' if failed else ''}"
    if len(goals) == 1:
        better = "lower" if goals[0].direction == "minimize" else "higher"
        value = f"{goals[0].metric} ({best[0].values[0]:.4g}; {better} is better)"
        return f"{of}: trial {best[0].number + 1}, {settings_text(study, best[0])}, chosen on {value}, never on test"
    found = "; ".join(f"trial {trial.number + 1} ({_values_text(study, trial)})" for trial in best)
    return f"{of}, as none beats them in {' and in '.join(goal.metric for goal in goals)}: {found}"


def settings_text(study: Study, trial: FrozenTrial) -> str:
    """Return the settings of a trial as a person reads them: numbers of at most four digits, no secrets."""
    lines = [
        re.sub(r"(?<==)-?\d+\.\d+(e-?\d+)?$", lambda match: f"{float(match[0]):.4g}", line)
        for line in study.plan.lines(trial)
    ]
    return " ".join(redact_overrides(lines))


def _values_text(study: Study, trial: FrozenTrial) -> str:
    return ", ".join(f"{goal.metric} {value:.4g}" for goal, value in zip(study.plan.goals, trial.values, strict=True))


def draw(study: Study, folder: Path) -> list[Path]:
    """Draw `history.png`, of several goals the Pareto front, and `importance.png` where there are trials enough.

    The importance of a setting is its share in the variance of a goal, by functional ANOVA (Hutter et al., "An
    Efficient Approach for Assessing Hyperparameter Importance", ICML 2014).
    """
    names = [goal.metric for goal in study.plan.goals]
    values = [trial.values for trial in study.trials(TrialState.COMPLETE)]
    if not values or len(names) > 3:
        return []
    import matplotlib as mpl

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
