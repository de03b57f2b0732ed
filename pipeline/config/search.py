"""Settings of a search: a sweep that chooses its next job by the results so far."""

from dataclasses import dataclass
from typing import Any

from stages.settings.ranges import choice, number


@dataclass
class SearchSettings:
    """A search by Optuna. Its space are the settings that have several values: intervals, ranges and lists."""

    n_jobs: int = 1
    sampler: str = choice("tpe", "random", "tpe", "grid", "cmaes", "nsga2")
    trials: int = number(20, at_least=1, at_most=100_000, unit="trials in all, those of an interrupted search included")
    metric: Any = None
    """What is looked for, by its full name, or a list for several goals; null: the validation metric of the best epoch,
    which `train.monitor` names."""
    direction: Any = None
    """`maximize` or `minimize`, one a metric; null: by the metric's name."""
    pruner: str | None = choice("median", "median", "halving")
    """What ends a trial early: `median` of the others at the same epoch, asynchronous successive `halving`, or null."""
    startup_trials: int | None = number(None, at_least=1, unit="trials at random before any is chosen or pruned")
    """null: a quarter of `trials`, 10 at most."""
    min_epochs: int = number(1, at_least=1, unit="epochs that every trial trains before it may be pruned")
    population: int = number(10, at_least=2, unit="trials in a generation of nsga2")
    seed: int = number(0, at_least=0, at_most=2**31 - 1)
    """Of what is drawn. The runs have `seed`."""
