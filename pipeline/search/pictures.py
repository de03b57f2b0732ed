"""Pictures of a search: its progress, and the importance of each setting."""

import textwrap
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from optuna.trial import FrozenTrial, TrialState

WIDE_RANGE = 20.0
"""A metric whose largest value is this many times its smallest one is drawn on a logarithmic scale."""


def history(trials: Sequence[FrozenTrial], metric: str, is_maximized: bool) -> Figure:
    """Return a chart of the metric of each completed trial, and of the best value so far.

    Pruned trials are marked at the last value that they reported.
    """
    complete = {trial.number + 1: trial.values[0] for trial in trials if trial.state is TrialState.COMPLETE}
    pruned = {
        trial.number + 1: trial.intermediate_values[max(trial.intermediate_values)]
        for trial in trials
        if trial.state is TrialState.PRUNED and trial.intermediate_values
    }
    better = max if is_maximized else min
    best: list[float] = []
    for value in complete.values():
        best.append(better([value, *best[-1:]]))
    figure = Figure(figsize=(8, 3.8), layout="constrained")
    axes = figure.subplots()
    last = max(*complete, *pruned)
    axes.step([*complete, last], [*best, best[-1]], where="post", color="tab:blue", label="best so far")
    axes.plot([*complete], [*complete.values()], "o", color="tab:blue", label="complete")
    if pruned:
        axes.plot([*pruned], [*pruned.values()], "x", color="tab:grey", label="pruned")
    winner = better(complete, key=lambda number: complete[number])
    axes.plot(winner, complete[winner], "*", color="tab:orange", markersize=14, label=f"best: trial {winner}")
    shown = [*complete.values(), *pruned.values()]
    if min(shown) > 0 and max(shown) > WIDE_RANGE * min(shown):
        axes.set_yscale("log")
    axes.set(xlabel="trial", ylabel=f"{metric} ({'higher' if is_maximized else 'lower'} is better)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def importance_of(shares: Mapping[str, float], metric: str) -> Figure:
    """Return a chart of the share of each setting in the variance of the metric, the largest first."""
    names = ["\n".join(textwrap.wrap(name, 40)) for name in shares]
    figure = Figure(figsize=(8, 1.2 + 0.45 * len(names)), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(names, [*shares.values()], color="tab:blue")
    axes.bar_label(bars, labels=[f"{value:.0%}" for value in shares.values()], padding=4)
    axes.set(xlabel=f"share of the variance of {metric}", xlim=(0, 1.1 * max(shares.values())))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    return figure
