"""Plots of a search: its progress, and which settings mattered."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.search.plan import Goal
from pipeline.search.study import Study, Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOG_RANGE = 50
"""Ratio of the greatest to the least value from which on the axis is logarithmic."""

FEWEST = 4
"""Complete trials that importances need."""


def draw(study: Study, goals: Sequence[Goal], folder: Path) -> list[Path]:
    """Draws `history.png` and, where there are trials enough, `importance.png`; returns their paths."""
    trials = study.trials()
    if not any(trial.state == "COMPLETE" for trial in trials):
        return []
    history = _pareto(trials, study.best(), goals) if len(goals) == 2 else _history(trials, goals)
    figures = {"history.png": history}
    importance = importances(study, goals)
    if importance:
        figures["importance.png"] = _importance(importance, goals)
    for name, figure in figures.items():
        figure.savefig(folder / name, dpi=120)
    return [folder / name for name in figures]


def importances(study: Study, goals: Sequence[Goal]) -> dict[str, list[float]]:
    """Returns the share of each setting in the variance of each goal, by functional ANOVA (Hutter et al., "An Efficient
    Approach for Assessing Hyperparameter Importance", ICML 2014); empty with too few complete trials."""
    import optuna

    complete = [trial for trial in study.trials() if trial.state == "COMPLETE"]
    if len(complete) < FEWEST:
        return {}
    shares: dict[str, list[float]] = {}
    for place in range(len(goals)):
        if len({trial.values[place] for trial in complete}) < 2:  # nothing varies
            return {}

        def value(trial: optuna.trial.FrozenTrial, place: int = place) -> float:
            return float(trial.values[place])

        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        importances_of_goal = optuna.importance.get_param_importances(study.study, evaluator=evaluator, target=value)
        for name, share in importances_of_goal.items():
            shares.setdefault(name, []).append(share)
    return shares


def _figure(height: float) -> "Figure":
    from matplotlib.figure import Figure  # half a second to import

    return Figure(figsize=(8, height), layout="constrained")


def _history(trials: Sequence[Trial], goals: Sequence[Goal]) -> "Figure":
    """Draws the value of each complete trial and the best so far, a panel a goal."""
    figure = _figure(3.2 * len(goals) + 0.4)
    panels = figure.subplots(len(goals), 1, squeeze=False)[:, 0]
    for place, (goal, panel) in enumerate(zip(goals, panels, strict=True)):
        done = [trial for trial in trials if trial.state == "COMPLETE"]
        numbers = [trial.ordinal for trial in done]
        values = np.array([trial.values[place] for trial in done])
        best = np.minimum.accumulate(values) if goal.direction == "minimize" else np.maximum.accumulate(values)
        panel.plot(numbers, values, "o", label="trial")
        panel.step(numbers, best, where="post", label="best so far")
        pruned = [trial.ordinal for trial in trials if trial.state == "PRUNED"]
        panel.plot(
            pruned, [0.03] * len(pruned), "x", color="grey", label="pruned", transform=panel.get_xaxis_transform()
        )
        if values.min() > 0 and values.max() > LOG_RANGE * values.min():
            panel.set_yscale("log")
        panel.set_xlabel("trial")
        panel.set_ylabel(goal.metric)
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.grid(alpha=0.3)
        panel.legend()
    return figure


def _pareto(trials: Sequence[Trial], best: Sequence[Trial], goals: Sequence[Goal]) -> "Figure":
    """Draws both values of each complete trial, and the front of those that no other beats in both."""
    figure = _figure(4.5)
    panel = figure.subplots()
    done = [trial.values for trial in trials if trial.state == "COMPLETE"]
    front = sorted(trial.values for trial in best)
    panel.plot(*zip(*done, strict=True), "o", label="trial")
    panel.plot(*zip(*front, strict=True), "-o", label="front")
    panel.set_xlabel(f"{goals[0].metric} ({goals[0].direction})")
    panel.set_ylabel(f"{goals[1].metric} ({goals[1].direction})")
    panel.grid(alpha=0.3)
    panel.legend()
    return figure


def _importance(shares: dict[str, list[float]], goals: Sequence[Goal]) -> "Figure":
    figure = _figure(1.2 + 0.4 * len(shares) * len(goals))
    panel = figure.subplots()
    names = sorted(shares, key=lambda name: sum(shares[name]))
    width = 0.8 / len(goals)
    for place, goal in enumerate(goals):
        bars = panel.barh(
            np.arange(len(names)) + place * width, [shares[name][place] for name in names], width, label=goal.metric
        )
        panel.bar_label(bars, fmt="%.2f", padding=3)
    panel.set_yticks(np.arange(len(names)) + width * (len(goals) - 1) / 2, names)
    panel.set_xlabel("share of the variance" + (f" of {goals[0].metric}" if len(goals) == 1 else ""))
    panel.margins(x=0.15)
    if len(goals) > 1:
        panel.legend()
    return figure
