"""Helpers for tests: compose experiments like the command does, and read the runs they start."""

import dataclasses
import functools
import os
import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from omegaconf import OmegaConf

from pipeline.checks.combinations import read_composed
from pipeline.command_line.arguments import read_arguments
from pipeline.command_line.compose import Composed, Composer
from pipeline.config.experiment import Experiment, read
from pipeline.console import Console
from pipeline.decide.decision import check
from pipeline.decide.job import Job
from pipeline.internals.hydra import parse
from pipeline.launch.run import run_job
from pipeline.redaction import redact
from pipeline.runs.summary import Summary
from stages.errors import UserError
from tests import commands

Patch = pytest.MonkeyPatch
Printed = pytest.CaptureFixture[str]

QUICK = ("train.epochs=2", "model.network.filters=[8,16]")
"""Settings of a run that takes about two seconds."""

BARE = ("pipeline.inspect=null", "pipeline.export=null")
"""Settings without the stages that take longer than such a run, for tests that do not need their results."""

TRAINED = (*BARE, "pipeline.evaluate=null")
"""Settings of a run that ends with its training."""

WITHOUT_LITERT = tuple(f"~export.formats.litert_{weights}" for weights in ("float32", "float16", "int8"))
"""Settings after `export=all` for tests of other formats; these three take the longest."""

SMALL = ("data=synthetic", "data.height=8", "data.width=8", "data.examples=300", "model=mlp", "train.epochs=2")
"""The smallest run that trains: two epochs of five steps, which take a second with `TRAINED`."""

LONG = (*SMALL, *TRAINED, "train.epochs=5000")
"""A long training of short epochs, for tests that stop it."""


@functools.cache
def _composer() -> Composer:
    """Return a composer that all experiments share, so each choice of options is composed only once."""
    return Composer(read_arguments([]))


def experiment(*overrides: str, outputs: Path | None = None) -> Experiment:
    """Return the experiment that `python -m pipeline <overrides>` would run."""
    composed = compose(*overrides, *([f"outputs={outputs}"] if outputs else []))
    return read(composed.document, composed.choices, overrides=overrides)


def compose(*overrides: str) -> Composed:
    """Return the composed configuration of `overrides`, without checking it."""
    if "--config-dir" in overrides:  # additional folders
        return Composer(read_arguments(overrides)).one()
    return _composer().compose([parse(one) for one in overrides])


def schema_nodes(node: Any, name: str = "") -> dict[str, type]:
    """Return the dataclass of each part of a configuration that has a schema, by its dotted name."""
    found = {}
    if OmegaConf.is_dict(node):
        schema = OmegaConf.get_type(node)
        if schema is not None and dataclasses.is_dataclass(schema):
            found[name] = schema
        for key in node:
            if not OmegaConf.is_interpolation(node, key) and not OmegaConf.is_missing(node, key):
                found |= schema_nodes(node[key], f"{name}.{key}".lstrip("."))
    return found


def command_error(words: Sequence[str]) -> UserError | None:
    """Return the error of a command line, including its flags."""
    try:
        check(read_composed(Composer(read_arguments(words)).one()))
    except UserError as error:
        return error
    except SystemExit:  # after `--version`
        return None
    return None


def assert_refused(words: Sequence[str], message: str = "", is_replaced: bool = False) -> UserError:
    """Assert that a command line is refused in one line, and that the suggestion in it passes the check.

    Args:
        words: The command line.
        message: A pattern that the error must match.
        is_replaced: Whether the suggestion replaces the last word; else it is added.
    """
    error = command_error(words)
    assert error is not None, words
    text = redact(str(error))
    assert text.isprintable()
    assert re.search(message, text), text
    if not error.fix or re.search(r"<[^>]+>|…|^python -m", error.fix):
        return error
    of_last_word = "unknown setting|does not exist yet|does not name an exporter|already exists"
    is_replaced |= re.search(of_last_word, error.problem) is not None
    is_unread = re.search("unknown flag|not an override|argument --", error.problem)
    kept = _readable(words, error) if is_unread else [*words]
    after = command_error([*(kept[:-1] if is_replaced and kept == [*words] else kept), *shlex.split(error.fix)])
    assert after is None or complaint(after) != complaint(error), f"{error}\n  then: {after}"
    return error


def _readable(words: Sequence[str], error: UserError) -> list[str]:
    """Return the words without the one that an error names and its value, such as the value of a flag."""
    return [
        word for word in words if re.match(r"[\w.]+=.|--?[a-z]", word) and word not in re.split("[ '/]", error.problem)
    ]


def complaint(error: UserError) -> str:
    """Return the problem of an error, without the values."""
    return re.sub(r"[\d.]+|=\S*", "", error.problem)[:60]


def ran(outputs: Path, *words: str) -> Summary:
    """Run an experiment in this process and return the summary of its run."""
    assert run_job(Job(experiment(*words, outputs=outputs)), Console()) == 0
    return last(outputs)


def last(outputs: Path) -> Summary:
    """Return the run in `outputs` that was written last."""
    path = max(outputs.glob("runs/*/*/summary.json"), key=lambda path: path.stat().st_mtime)
    return Summary.read(path.parent)


def killed_and_resumed(given: Sequence[str], folder: Path, cwd: Path = commands.ROOT, step: int = 5) -> Path:
    """Kill a run after `step` and repeat its command; return its `outputs` in `folder`.

    The function asserts that its weights, its metrics except times, and its predictions, if there are any, equal those
    of an uninterrupted run exactly. It resumes within an epoch if the steps before `step` are within one.
    """
    kill = "train.callbacks=[{_target_: tests.chaos.killer.Kill}]"
    every_step = ("train.checkpoint_every_steps=1", "train.steps_per_call=1")
    given = (*given, "tracking=off", "deterministic=true", *every_step, kill)
    weights, metrics, predictions = [], [], []
    for outputs in (folder / "whole", folder / "killed"):
        if outputs.name == "killed":
            fault = {**os.environ, "FAULT": f"step:{step}"}
            done = commands.run(*given, f"outputs={outputs}", cwd=cwd, env=fault)
            assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
        commands.succeed(*given, f"outputs={outputs}", cwd=cwd)
        run = only_folder(outputs)
        with np.load(run / "results" / "train" / "trained.npz") as arrays:
            weights.append({key: arrays[key] for key in arrays.files if arrays[key].dtype.kind == "f"})
        found = Summary.read(run).metrics.items()
        metrics.append({name: value for name, value in found if not re.search("second|_fraction|memory|_mib", name)})
        predictions.append([pq.read_table(path) for path in run.glob("predictions.parquet")])
    assert Summary.read(run).resumed_from_step in range(1, step + 1)  # what a thread has saved by then
    assert weights[0].keys() == weights[1].keys()
    for key, values in weights[0].items():
        np.testing.assert_array_equal(weights[1][key], values)
    assert metrics[1] == metrics[0]
    assert predictions[1] == predictions[0]
    return outputs


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write files with these texts into `folder`."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def write_run(folder: Path, status: str = "FINISHED", run_id: str | None = "abcdef12", **values: Any) -> Path:
    """Write only the summary of a run; return its folder."""
    folder.mkdir(parents=True)
    Summary(run_id, status, "tried", folder, {}, **values).write(folder)
    return folder


def tracked(outputs: Path) -> tuple[MlflowClient, list[Run]]:
    """Return the store of `outputs`, and the runs of the only experiment in it."""
    client = MlflowClient(f"sqlite:///{outputs / 'mlflow.db'}")
    [own] = client.search_experiments(filter_string="name != 'Default'")
    return client, client.search_runs([own.experiment_id])


def sweep_runs(outputs: Path) -> tuple[Run, list[Run]]:
    """Return the parent run of the only sweep in the store, and its child runs in order."""
    _, found = tracked(outputs)
    [parent] = [run for run in found if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in found if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert len(children) == len(found) - 1
    return parent, sorted(children, key=lambda run: run.info.start_time)


def only_run(outputs: Path) -> tuple[MlflowClient, Run]:
    """Return the store of `outputs`, and the only run in it."""
    client, [run] = tracked(outputs)
    return client, run


def only_folder(outputs: Path) -> Path:
    """Return the folder of the only run in `outputs`."""
    [folder] = (outputs / "runs").glob("*/*")
    return folder
