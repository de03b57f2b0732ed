"""Jobs of one epoch on the digits: as a sweep, a search, commands one after another, and by Hydra's own launchers."""

import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.measuring import Figures, Samples, Way, interleave
from benchmarks.processes import cost, others_python, pipeline

JOBS = 8
TRIALS = 20
SETTINGS = ("train.epochs=1", "deterministic=true")
TIMES = ("seconds", "_per_second", "_milliseconds", "_fraction", "_bytes", "_mib")
"""Ends of the names of metrics that no two runs share."""


def launchers(rounds: int) -> Samples:
    """Measure the ways to run the same jobs, which all must give the same metrics to the bit, and searches."""
    ways: dict[str, Way] = {
        "sweep": with_jobs(partial(sweep, 1)),
        "sweep, two at a time": with_jobs(partial(sweep, 2)),
        "a process each": with_jobs(commands),
        "Hydra's basic launcher": with_jobs(partial(hydra, sys.executable, "hydra/launcher=basic")),
    }
    ways |= {f"search, {number} at a time": partial(search, number) for number in (1, 2)}
    if with_joblib := others_python("hydra_plugins/hydra_joblib_launcher"):
        joblib = partial(hydra, with_joblib, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
        ways["Hydra's joblib launcher, two at a time"] = with_jobs(joblib)
    return interleave(ways, rounds)


def sweep(n_jobs: int, outputs: Path) -> Figures:
    return pipeline(outputs, "sweep=seeds", f"sweep.n={JOBS}", f"sweep.n_jobs={n_jobs}", *SETTINGS)


def commands(outputs: Path) -> Figures:
    seconds = sum(pipeline(outputs, f"seed={seed}", *SETTINGS)["seconds"] for seed in range(JOBS))
    return {"seconds": seconds, "a run": seconds / JOBS}


def search(n_jobs: int) -> Figures:
    """Train the trials of a search over the learning rate, and evaluates and exports the best."""
    space = "optimizer.learning_rate=tag(log,interval(1e-4,1e-2))"
    given = ("sweep=tpe", f"sweep.trials={TRIALS}", "sweep.pruner=none", f"sweep.n_jobs={n_jobs}", space)
    with tempfile.TemporaryDirectory() as outputs:
        return {"a run": pipeline(Path(outputs), *given, *SETTINGS)["seconds"] / TRIALS}


def hydra(python: str, *arguments: str, outputs: Path) -> Figures:
    seeds = ",".join(map(str, range(JOBS)))
    app = "benchmarks.baselines.hydra_app"
    folders = (f"outputs={outputs}", f"hydra.sweep.dir={outputs}/hydra")
    return cost(python, "-m", app, "-m", *arguments, f"seed={seeds}", *folders)


def with_jobs(run: Callable[..., Figures]) -> Way:
    """Run `run` in an empty folder; add the seconds of a job that are not its training, by when each has ended.

    What a job trains is taken from the first one: all others build and trace while the one before is evaluated.
    """
    expected: dict[str, dict[str, float]] = {}

    def way() -> Figures:
        with tempfile.TemporaryDirectory() as outputs:
            figures = run(outputs=Path(outputs))
            paths = sorted(Path(outputs).glob("*/*/*/summary.json"), key=lambda path: path.stat().st_mtime)
            ends = [path.stat().st_mtime for path in paths]
            summaries = [json.loads(path.read_text()) for path in paths]
        assert len(summaries) == JOBS, f"{len(summaries)} of {JOBS} jobs have finished"
        for summary in summaries:
            seed = next(text for text in summary["overrides"] if text.startswith("seed="))
            metrics = {name: value for name, value in summary["metrics"].items() if not name.endswith(TIMES)}
            assert metrics == expected.setdefault(seed, metrics), f"{seed}: other metrics"
        training = summaries[0]["stages"]["train"]["seconds"]
        return {**figures, "over training": (ends[-1] - ends[0]) / (JOBS - 1) - training}

    return way
