"""Schemas of the configuration for Hydra: names, types, defaults and ranges."""

import importlib
import pkgutil
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pipeline.config import cluster  # noqa: F401  # it registers its schemas
from stages import settings
from stages.errors import UserError
from stages.settings import ranges
from stages.settings.ranges import choice, number, option

MOST_JOBS = 100_000
"""Maximum number of jobs in a sweep, because all are composed before the first one runs, and of trials in a search."""

LONGEST_NAME = 200
"""Maximum number of bytes in a folder's name, which leaves room for a suffix."""

SQLITE = "sqlite:///"

MLFLOW_RUN = "pipeline.tracking.mlflow_run.MlflowRun"


@option("tracking", "tracking")
@dataclass
class TrackingSettings:
    """Settings for recording runs in MLflow."""

    kind: str = choice("local", "local", "server", "off")
    """`local`: SQLite in `outputs`; `server`: an MLflow server or database at `uri`; `off`: not recorded in MLflow."""
    uri: str | None = None
    _target_: str = MLFLOW_RUN
    """The class that records a run: `MlflowRun`, or your subclass of `pipeline.tracking.stored_run.StoredRun`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Settings of a custom class, such as `+tracking.options.project=digits`."""
    note: str | None = None
    """A note in Markdown, shown at the top of the run's description."""
    tags: dict[str, str] = field(default_factory=dict)
    """Tags of the run, or of every run of a sweep, such as `tracking.tags.team=vision`."""
    system_metrics: bool = True
    """Whether MLflow records the usage of CPUs, memory, disk, network and GPUs every ten seconds."""

    def __post_init__(self) -> None:
        """Make a relative path of SQLite absolute, because later commands may run in a different folder."""
        if self.kind == "server" and (self.uri or "").startswith(SQLITE):
            self.uri = f"{SQLITE}{Path.cwd() / str(self.uri).removeprefix(SQLITE)}"

    def check(self, path: str) -> None:
        schemes = ("http://", "https://", SQLITE, "postgresql", "mysql", "mssql")
        if self.kind == "server" and not ((self.uri or "").startswith(schemes) and _has_port(str(self.uri))):
            is_host = re.fullmatch(r"[\w.-]+:\d{1,4}", self.uri or "")
            address = f"http://{self.uri}" if is_host else "http://127.0.0.1:5000"
            raise UserError(
                f"{path}.uri={self.uri} is not the address of an MLflow server or database",
                "http(s)://host:port or a database URI",
                f"{path}.uri={address}",
            )


def _has_port(uri: str) -> bool:
    """Return whether the port of an HTTP address is valid, if it has one; other addresses are not checked."""
    try:
        return not uri.startswith("http") or urlsplit(uri).port != 0
    except ValueError:
        return False


@option("debug", "none")
@dataclass
class DebugSettings:
    """No debug run."""

    kind: str = choice("none", "none")


@option("debug", "fast")
@dataclass
class FastSettings(DebugSettings):
    """A few steps of everything, in one epoch."""

    kind: str = choice("fast", "fast")
    steps: int = number(
        2, at_least=1, at_most=1_000_000, unit="maximum number of steps of training, validation and evaluation"
    )


@option("debug", "overfit")
@dataclass
class OverfitSettings(DebugSettings):
    """Training on the same batch at every step, without augmentation and dropout."""

    kind: str = choice("overfit", "overfit")
    steps: int = number(1000, at_least=10, at_most=1_000_000, unit="maximum number of steps on the batch")
    loss: float = number(0.01, above=0, unit="loss below which the batch counts as learned")


@option("debug", "profile")
@dataclass
class ProfileSettings(DebugSettings):
    """Two short epochs; the profiler traces steps of the second one."""

    kind: str = choice("profile", "profile")
    steps: int = number(50, at_least=1, at_most=1_000_000, unit="maximum number of steps per epoch")
    traced: int = number(20, at_least=1, at_most=10_000, unit="steps of the second epoch to trace")


@dataclass
class TopSettings:
    """Top-level settings, which do not belong to a group."""

    name: str | None = None
    """Name of the experiment, in MLflow and under `outputs/runs`; null: the names of the data set (or its file or
    folder) and of the model."""
    seed: int = number(42, at_least=0, at_most=2**31 - 1)
    """Seed of the initial weights, the order of examples, augmentation and dropout; not of the splits
    (`data.split_seed`)."""
    deterministic: bool = False
    """Whether TensorFlow uses only operations that return the same bits each time (slower on GPUs)."""
    dry_run: bool = False
    """Whether to print the plan and stop."""
    outputs: str | None = None
    """Folder of all results; null: `outputs` in the working directory."""
    job_timeout_seconds: float | None = number(
        None, at_least=10, unit="seconds after which a job saves and ends; the same command resumes it"
    )
    hang_seconds: float | None = number(
        300.0, at_least=10, unit="seconds without progress after which an idle job or cluster member is ended"
    )
    resume: str = "auto"
    """`auto`: resume the last run of this experiment if it has not finished; `never`: start a new run; any other value:
    the run to resume, by its folder or the beginning of its id."""
    fork: str | None = None
    """Start a new run, with other settings, from the weights of this run (its folder or the beginning of its id)."""
    fork_weights: str = choice("best", "best", "last")
    """`best`: the weights that the forked run reported and exported; `last`: the weights of its last step, with
    the optimizer's state."""
    from_: str | None = None
    """The first stage of a new run that reuses the results of `run`."""
    run: str | None = None
    """With `from`: the run whose results are reused, by its folder, the beginning of its id, or its model in MLflow's
    registry (`models:/<name>@<alias>`)."""
    pipeline: dict[str, str | None] = field(default_factory=dict)
    """Maps each stage, in order, to the name of its result; null leaves the stage out."""

    def check(self, path: str) -> None:
        if self.fork is not None and self.run is not None:
            problem = f"fork={self.fork} cannot be combined with run={self.run}"
            raise UserError(problem, "either fork, to continue training, or run, to reuse results", "fork=null")
        if (self.from_ is None) != (self.run is None):
            raise UserError(
                f"from={self.from_} requires run" if self.run is None else f"run={self.run} requires from",
                "both the first stage to run and the run whose results it uses",
                f"from={self.from_ or 'evaluate'} run={self.run or '<run id>'}",
            )
        if self.name in ("runs", "sweeps", "Default"):
            problem = f"name={self.name} is reserved: `outputs` has a folder, or MLflow an experiment, of that name"
            raise UserError(problem, "a different name", f"name=my_{self.name.lower()}")
        if self.name is not None and (
            not re.fullmatch(r"\w[\w .=+-]*", self.name) or len(self.name.encode()) > LONGEST_NAME
        ):
            short = re.sub(r"\W+", "_", self.name).strip("_")[: LONGEST_NAME // 4]
            raise UserError(
                f"name={self.name} cannot be the name of a folder",
                f"at most {LONGEST_NAME} bytes of letters, digits, spaces and _ . = + -, "
                "starting with a letter, digit or _",
                f"name={short or 'mine'}",
            )


def top_level_key(field_name: str) -> str:
    """Return the key for a field of `TopSettings`: `from` for `from_`, because `from` is a keyword of Python."""
    return field_name.removesuffix("_")


GROUPS = ("data", "task", "precision", "optimizer", "schedule", "tracking", "cluster", "sweep", "debug")
"""Groups that are not stages; stages refer to some of them by interpolation."""


SCHEMAS = ranges.SCHEMAS
"""For each group, the schemas that its options start from, by name."""

for _module in pkgutil.iter_modules(settings.__path__, f"{settings.__name__}."):
    importlib.import_module(_module.name)  # it registers the schemas that it defines


@option("sweep", "sweep")
@dataclass
class SweepSettings:
    """Settings of a sweep; they are not part of its jobs."""

    over: dict[str, Any] = field(default_factory=dict)
    """Maps settings and groups to their values: a list, or the syntax of the command line, such as `range(0,5)`. Values
    on the command line replace the values of the same name; other names multiply the jobs."""
    zip: list[Any] = field(default_factory=list)
    """Settings whose values advance together, or several lists of such settings."""
    exclude: list[dict[str, Any]] = field(default_factory=list)
    """Combinations to leave out, such as `{strategy: mirrored, precision: float16}`; a list of values means any of
    them."""
    n_jobs: int = number(1, at_least=1, at_most=256, unit="jobs to run at the same time")
    devices_per_job: int | None = number(
        None,
        at_least=0,
        unit="GPUs per job, which no other job uses; null: an equal share, or one that several jobs use; 0: none",
    )
    retries: int = number(0, at_least=0, at_most=100, unit="times to run a job again after it failed or died")
    finish: str = choice("all", "all", "best")
    """Jobs that run the stages after `train`: `all`, or only the `best`, once, after the others have ended."""

    def zipped(self) -> list[list[str]]:
        """Return the lists of names that advance together."""
        lists = self.zip if all(isinstance(entry, list) for entry in self.zip) else [self.zip]
        return [list(map(str, names)) for names in lists]


@option("sweep", "seeds")
@dataclass
class SeedsSettings(SweepSettings):
    """The same experiment with several seeds."""

    n: int = number(5, at_least=1, at_most=MOST_JOBS, unit="number of seeds, from 0")


@option("sweep", "search")
@dataclass
class SearchSettings(SweepSettings):
    """A search with Optuna over every setting that has several values: an interval, a range or a list."""

    finish: str = choice("best", "all", "best")
    sampler: str = choice("tpe", "random", "tpe", "grid", "cmaes", "nsga2")
    trials: int = number(
        20, at_least=1, at_most=MOST_JOBS, unit="trials in total, including those of an interrupted search"
    )
    metric: Any = None
    """The full name of the metric to optimize, or a list for several goals; null: the metric of the best epoch,
    `train.monitor`."""
    direction: Any = None
    """`maximize` or `minimize`, one per metric; null: derived from the metric's name."""
    pruner: str = choice("median", "median", "halving", "none")
    """Ends losing trials early: by the `median` of the others at the same epoch, by successive `halving`, or `none`."""
    startup_trials: int | None = number(None, at_least=1, unit="random trials before any is chosen or pruned")
    """null: a quarter of `trials`, at most 10."""
    min_epochs: int = number(1, at_least=1, unit="epochs of a trial before it may be pruned")
    population: int = number(10, at_least=2, unit="trials per generation of nsga2")
    seed: int = number(0, at_least=0, at_most=2**31 - 1)
    """Seed of the sampler. The runs use the top-level `seed`."""

    def check(self, path: str) -> None:
        """Refuse settings that only a grid supports."""
        for name in ("zip", "exclude"):
            if getattr(self, name):
                raise UserError(
                    f"{path}.{name} is not supported in a search, which draws each setting separately",
                    f"an empty {path}.{name}, or a sweep over a grid",
                    f"{path}.{name}=[]",
                )
