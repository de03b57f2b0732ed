"""Settings of a search: a sweep that chooses its next job by the results so far."""

from dataclasses import dataclass
from typing import Any

from pipeline.config.sweep_settings import MOST_JOBS, SweepSettings
from stages.errors import UserError
from stages.settings.ranges import choice, number


@dataclass
class SearchSettings(SweepSettings):
    """A search by Optuna. Its space is every setting with several values: an interval, a range or a list."""

    sampler: str = choice("tpe", "random", "tpe", "grid", "cmaes", "nsga2")
    trials: int = number(
        20, at_least=1, at_most=MOST_JOBS, unit="trials in all, those of an interrupted search included"
    )
    metric: Any = None
    """The metric to optimize, by its full name, or a list for several goals; null: that of the best epoch,
    which `train.monitor` names."""
    direction: Any = None
    """`maximize` or `minimize`, one a metric; null: by the metric's name."""
    pruner: str = choice("median", "median", "halving", "none")
    """Ends trials early: by the `median` of the others at the same epoch, successive `halving`, or `none`."""
    startup_trials: int | None = number(None, at_least=1, unit="trials at random before any is chosen or pruned")
    """null: a quarter of `trials`, 10 at most."""
    min_epochs: int = number(1, at_least=1, unit="epochs that every trial trains before it may be pruned")
    population: int = number(10, at_least=2, unit="trials in a generation of nsga2")
    seed: int = number(0, at_least=0, at_most=2**31 - 1)
    """Of what is drawn. The runs have `seed`."""

    refused: str = choice("skip", "fail", "skip")
    """Effect of a combination that a rule refuses: a failed trial (`skip`), or the end of the search (`fail`)."""

    def check(self, path: str) -> None:
        """Refuses what only a grid can do, and goals that are not named."""
        super().check(path)
        for name, example in (("metric", "val/best_accuracy"), ("direction", "maximize")):
            value = getattr(self, name)
            named = [value] if isinstance(value, str) else value
            if value is not None and not (named and isinstance(named, list) and all(isinstance(o, str) for o in named)):
                raise UserError(f"{path}.{name}={value}", "a name, or a list of names", f"{path}.{name}={example}")
        for name in ("zip", "exclude"):
            if getattr(self, name):
                raise UserError(
                    f"{path}.{name} with {path}.sampler={self.sampler}: a search draws each setting by itself",
                    f"no {path}.{name}, or a sweep over a grid",
                    f"{path}.{name}=[]",
                )
