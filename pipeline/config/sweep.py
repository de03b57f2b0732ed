"""Settings of sweeps and searches: what varies, and how jobs run. None of them is part of a job."""

from dataclasses import dataclass, field
from typing import Any

from stages.errors import UserError
from stages.settings.ranges import choice, number, option

MOST_JOBS = 100_000
"""Of a sweep: each is composed and checked before the first one runs."""


@option("sweep", "sweep")
@dataclass
class SweepSettings:
    """Settings of a sweep, none of which is part of a job."""

    over: dict[str, Any] = field(default_factory=dict)
    """From settings and groups to their values: a list, or what the command line takes, such as `range(0,5)`. Values on
    the command line replace those of the same name, others multiply the jobs."""
    zip: list[Any] = field(default_factory=list)
    """Names whose values advance together, or several lists of such names."""
    exclude: list[dict[str, Any]] = field(default_factory=list)
    """Combinations that are left out, such as `{strategy: mirrored, precision: float16}`; a list of values means any of
    them."""
    n_jobs: int = number(1, at_least=1, at_most=256, unit="jobs that run at the same time")
    devices_per_job: int | None = number(
        None, at_least=0, unit="GPUs that each job sees and no other uses; null: its share of all; 0: none"
    )
    retries: int = number(0, at_least=0, at_most=100, unit="times that a job which failed or died is run again")
    finish: str = choice("all", "all", "best")
    """Jobs that run the stages after `train`: `all`, or the `best` alone, once, when the others have ended."""

    def check(self, path: str) -> None:
        """Refuses what zips nothing."""
        for names in self.zipped():
            if len(names) < 2 or not all(isinstance(name, str) for name in names):
                raise UserError(
                    f"{path}.zip={self.zip} does not say what advances together",
                    "two names or more, or several lists of them",
                    f"'{path}.zip=[seed,data.split_seed]'",
                )

    def zipped(self) -> list[list[str]]:
        """Returns the lists of names that advance together."""
        if all(isinstance(entry, list) for entry in self.zip):
            return [list(entry) for entry in self.zip]
        return [list(self.zip)]


@option("sweep", "seeds")
@dataclass
class SeedsSettings(SweepSettings):
    """The same experiment with several seeds."""

    n: int = number(5, at_least=1, at_most=MOST_JOBS, unit="seeds, from 0")


@option("sweep", "search")
@dataclass
class SearchSettings(SweepSettings):
    """A search by Optuna. Its space is every setting with several values: an interval, a range or a list."""

    finish: str = choice("best", "all", "best")
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
