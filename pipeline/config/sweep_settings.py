"""Settings of a sweep: what varies, and how its jobs run. None of them is part of a job."""

from dataclasses import dataclass, field
from typing import Any

from stages.errors import UserError
from stages.settings.ranges import choice, number

MOST_JOBS = 100_000
"""Of a sweep: each is composed and checked before the first one runs."""


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
    refused: str = choice("fail", "fail", "skip")
    """Effect of a combination that a rule refuses: `fail` the sweep before it starts, or `skip` and list it."""
    n_jobs: int = number(1, at_least=1, at_most=256, unit="jobs that run at the same time")
    devices_per_job: int | None = number(
        None, at_least=0, unit="GPUs that each job sees and no other uses; null: its share of all; 0: none"
    )
    retries: int = number(0, at_least=0, at_most=100, unit="times that a job which failed or died is run again")

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


@dataclass
class SeedsSettings(SweepSettings):
    """The same experiment with several seeds."""

    n: int = number(5, at_least=1, at_most=MOST_JOBS, unit="seeds, from 0")
