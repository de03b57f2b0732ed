"""Experiments and runs from Python, for notebooks and scripts."""

import os
import random
import signal
import subprocess
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from pipeline.command_line.arguments import COMMAND_LINE, read_arguments
from pipeline.command_line.compose import Composed, Composer
from pipeline.command_line.overrides import as_typed
from pipeline.config.debug import debugged
from pipeline.config.experiment import Experiment
from pipeline.decide.inherited import inherit_overrides
from pipeline.internals.tensorflow import has_used_tensorflow
from pipeline.paths import outputs_folder
from pipeline.runs.finding import Runs
from pipeline.runs.folder import RunFolder
from pipeline.runs.summary import Summary
from pipeline.system import environment
from pipeline.system.processes import was_forked_with_tensorflow
from pipeline.system.signals import Interrupted
from stages.errors import UserError
from stages.settings.strategy import StrategySettings

if TYPE_CHECKING:
    import pandas as pd

    from pipeline.comparison.comparison import Comparison

__all__ = ["Run", "compare", "compose", "open_run", "run_experiment", "search", "sweep"]


@dataclass(frozen=True)
class Run:
    """A run on disk, finished or not. Its properties read the files of the run at each access."""

    folder: Path

    @property
    def summary(self) -> Summary:
        """The contents of `summary.json`.

        Raises:
            UserError: If the folder does not contain a run.
        """
        return RunFolder(self.folder).summary

    @property
    def status(self) -> str:
        """`RUNNING`, `FINISHED`, `FAILED`, `KILLED`, or `INTERRUPTED` if it has not ended but no process runs it."""
        return RunFolder(self.folder).status

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of each metric. Values of the best epoch are named `val/best_…`."""
        return self.summary.metrics

    @cached_property
    def config(self) -> DictConfig:
        """The complete configuration, without secrets."""
        return RunFolder(self.folder).config

    @property
    def history(self) -> "pd.DataFrame":
        """The metrics of each epoch: one row per epoch, counted from 1."""
        import pandas as pd  # half a second to import

        return pd.DataFrame.from_dict(RunFolder(self.folder).epochs(), orient="index").rename_axis("epoch")

    def _repr_html_(self) -> str:
        """Return the results as a table with the learning curves, for notebooks."""
        from html import escape

        from pipeline.execute.facts import run_facts

        rows = [("run", f"{self.summary.run_id or 'not tracked'}  {self.status}"), *run_facts(self.summary)]
        cells = "".join(f"<tr><th>{escape(label)}</th><td>{escape(text)}</td></tr>" for label, text in rows)
        plots = [path.read_bytes() for path in (self.folder / "plots").glob("history.png") if path.is_file()]
        images = "".join(f'<img src="data:image/png;base64,{b64encode(plot).decode()}">' for plot in plots)
        return f'<table style="text-align: left">{cells}</table>{images}'

    def load_model(self) -> Any:
        """Return the exported SavedModel. For images, it maps raw pixels [N, H, W, C] to float32 [N, classes].

        Raises:
            UserError: If the run has not exported a SavedModel.
        """
        from pipeline.serving.models import load, saved_model

        return load(saved_model(str(self.folder), None, self.folder))


def compose(overrides: Iterable[str] = ()) -> Experiment:
    """Return the checked configuration of a run.

    Args:
        overrides: Settings as on the command line, such as `strategy=mirrored` or `train.epochs=5`.

    Raises:
        UserError: If a setting is wrong.

    Examples:
        >>> compose(["train.epochs=3"]).settings["train"].epochs
        3
    """
    return _read(_composed(overrides))


def run_experiment(overrides: Iterable[str] = ()) -> Run:
    """Run an experiment in this process, as `python -m pipeline <overrides>` does, and return the run.

    The function resumes the last interrupted run with the same settings, unless the overrides contain `resume=never`.
    The first run of a process fixes TensorFlow's devices and determinism.

    Args:
        overrides: Settings as on the command line.

    Raises:
        UserError: If a setting is wrong. Nothing is recorded.
        RuntimeError: If the run failed, with the message of its error.
        KeyboardInterrupt: After Ctrl-C. Any signal that stops the run is passed on to the process.
    """
    import numpy as np

    from pipeline.console import Console
    from pipeline.decide.job import Job
    from pipeline.exit_codes import DONE, STOPPED
    from pipeline.launch.run import run_job
    from pipeline.provenance.identity import identity

    environment.prepare()
    words = _listed(overrides)
    composed = _composed(words)
    experiment = _read(composed)
    if experiment.dry_run:
        raise UserError(
            "dry_run=true starts no run that could be returned", "compose(overrides), to only check the overrides"
        )
    settings = experiment.of("strategy", StrategySettings)
    if was_forked_with_tensorflow():
        raise UserError(
            "this process was forked after TensorFlow had been used, so TensorFlow would hang",
            "a spawned process",
            'multiprocessing.get_context("spawn")',
        )
    if has_used_tensorflow() and settings:  # which may have fixed a smaller number of devices than the run needs
        import_module("stages.strategy").refuse_more_devices(settings)
    runs = Runs(experiment.outputs)
    named = runs.find(experiment.resume) if experiment.resume not in ("auto", "never") else None
    token = COMMAND_LINE.set(("pipeline", *words))  # the run records it and passes it to its processes
    drawn = random.getstate(), np.random.get_state()
    try:
        code = run_job(Job(experiment), Console())
    except Interrupted as interrupted:  # before the run has begun
        code = interrupted.exit_code
    finally:  # a run seeds both generators; without this, the process would draw the same numbers after each run
        random.setstate(drawn[0])
        np.random.set_state(drawn[1])
        COMMAND_LINE.reset(token)
    if code in STOPPED:  # raised again for the handlers of the process, which are restored by now
        signal.raise_signal(code - 128)
    if code == 128 + signal.SIGINT:  # even if the process ignores the signal, as in the background of a shell
        raise KeyboardInterrupt
    # A run that is resumed by name keeps its first identity, and may have a different id in its store now.
    summary = RunFolder(named.folder).read() if named else runs.latest(experiment.name, identity(experiment))
    if code != DONE or summary is None:
        raise RuntimeError(summary.error if summary is not None and summary.error else f"exit code {code}")
    return Run(summary.folder)


def sweep(overrides: Iterable[str]) -> "Comparison":
    """Run a sweep and return the comparison of its jobs.

    The sweep runs in separate processes in the working directory, as with `python -m pipeline -m <overrides>`, and
    prints the same output.

    Args:
        overrides: Settings as on the command line. Settings with several values, such as `seed=1,2,3`, are varied.

    Raises:
        UserError: If a setting is wrong, before anything is recorded. With `dry_run=true`, after the plan is printed.
        RuntimeError: If the sweep is stopped, or if a job fails, with the message of the first error.

    Examples:
        >>> sweep(["precision=float32,mixed", "train.epochs=5"])  # doctest: +SKIP
    """
    from pipeline.sweep.outcome import REPORT_TO, received

    words = _listed(overrides)
    Composer(inherit_overrides(read_arguments(["-m", *words])))  # reports wrong settings without starting a process
    command = [sys.executable, "-m", "pipeline", "-m", *words]
    with tempfile.TemporaryFile("w+") as report:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), REPORT_TO: str(report.fileno())}
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "pass_fds": [report.fileno()]}
        with subprocess.Popen(command, text=True, env=env, **pipes) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
        report.seek(0)
        outcome = received(report.read(), process.returncode)
    if outcome.code:
        raise RuntimeError(outcome.error or f"exit code {outcome.code}")
    if outcome.folder is None:
        problem = "dry_run=true starts no jobs that could be compared"
        raise UserError(problem, "a sweep without dry_run", "dry_run=false")
    return compare(outcome.folder)


def search(overrides: Iterable[str]) -> "Comparison":
    """Run a search and return the comparison of its trials, like `sweep`. The default is `sweep=tpe`.

    Args:
        overrides: Settings as on the command line.

    Raises:
        UserError: As for `sweep`.
        RuntimeError: As for `sweep`.

    Examples:
        >>> search(["optimizer.learning_rate=interval(1e-4,1e-1)", "sweep.trials=20"])  # doctest: +SKIP
    """
    words = _listed(overrides)
    return sweep(words if any(word.startswith("sweep=") for word in words) else ["sweep=tpe", *words])


def compare(
    *what: str | Path,
    baseline: Mapping[str, Any] | None = None,
    columns: Iterable[str] = (),
    outputs: str | Path | None = None,
) -> "Comparison":
    """Compare runs, as `python -m pipeline compare` does. A notebook shows the result as a page.

    Args:
        what: A sweep, runs, or filters of runs. By default, the last sweep.
        baseline: Settings of the baseline, which the others are compared with. By default, the first.
        columns: Metrics to show instead of the standard ones.
        outputs: The folder with the runs. By default, `outputs` in the working directory.

    Raises:
        UserError: If an argument is not a sweep, a run or a filter.

    Examples:
        >>> compare("status=FINISHED", "model=mlp", columns=["test/loss"])  # doctest: +SKIP
    """
    from pipeline.sweep.select import compared

    texts = {name: value if isinstance(value, str) else as_typed(value) for name, value in (baseline or {}).items()}
    folder = outputs_folder(str(outputs or ""))
    return compared([str(word) for word in what], folder, texts or None, _listed(columns))[1]


def _listed(words: Iterable[str]) -> list[str]:
    """Return words as a list. A single text is one word."""
    return [words] if isinstance(words, str) else list(words)


def open_run(run: str | Path, outputs: str | Path | None = None) -> Run:
    """Return a run by its folder, the name of its folder, or the beginning of its id.

    Args:
        run: A folder, the name of a folder, or at least 4 digits of an id.
        outputs: The folder with the runs. By default, `outputs` in the working directory.

    Raises:
        UserError: If no run matches, or several do.
    """
    return Run(Runs(outputs_folder(str(outputs or ""))).find(str(run)).folder)


def _composed(overrides: Iterable[str]) -> Composed:
    words = _listed(overrides)
    arguments = read_arguments(words)
    composer = Composer(inherit_overrides(arguments))
    if composer.is_sweep:
        fix = "" if arguments.sweep else "sweep=none"  # with -m it would still be a sweep
        raise UserError(f"{' '.join(words)} defines several jobs", "the overrides of a single run", fix)
    return composer.one()


def _read(composed: Composed) -> Experiment:
    from pipeline.checks.combinations import read_composed
    from pipeline.decide.decision import check

    experiment = read_composed(composed)
    check(experiment)
    return debugged(experiment)
