"""A sweep: jobs checked together, run one after another, each in a fresh process, under one parent run."""

import json
import re
import sys
import time
import traceback
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from pipeline import environment
from pipeline.compare import INDEX, compare, write
from pipeline.config import Experiment, read
from pipeline.console import Console
from pipeline.job import DONE, FAILED, SWEEP_FAILED, WRONG_CONFIGURATION, Job, exit_code, prepare
from pipeline.launch import run_job
from pipeline.paths import shorter
from pipeline.processes import become_independent, process_context
from pipeline.runner import one_line
from pipeline.secrets import redact
from pipeline.signals import Interrupted, as_exceptions, deferred, ignored
from pipeline.tracking.tracker import NullTracker, Tracker
from stages.errors import UserError


@dataclass(frozen=True)
class Composed:
    """One job as Hydra composed it: configuration without Hydra's node, options taken, overrides given."""

    document: DictConfig
    choices: Mapping[str, str]
    overrides: tuple[str, ...]


def run_sweep(composed: Sequence[Composed]) -> int:
    """Runs the jobs and returns the sweep's exit code: 0, 3 where some failed, 130 or 143 where it was stopped.

    Raises:
        UserError: where any of the jobs is wrong; none has been started then. Settings without a schema are known
            only to the stage that declares them: each job checks those itself.
    """
    experiments = [_checked(job, index, len(composed)) for index, job in enumerate(composed)]
    first, console = experiments[0], Console()
    labels = job_labels([job.overrides for job in composed])
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}"
    folder = first.outputs / "sweeps" / name
    console.say(f"sweep {name}: {len(composed)} jobs")
    if first.dry_run:
        for label, experiment in zip(labels, experiments, strict=True):
            console.say(f"\n{label}")
            console.plan(experiment, prepare(experiment))
        return DONE
    folder.mkdir(parents=True)
    names = [f"{number}_{slug(label)}" for number, label in enumerate(labels, 1)]
    index: list[dict[str, Any]] = [
        {"folder": place, "overrides": job.overrides} for place, job in zip(names, composed, strict=True)
    ]
    _write_index(index, folder)
    parent: Tracker = NullTracker()
    codes: list[int] = []
    with as_exceptions():
        try:
            with deferred():  # what came meanwhile is raised here, when there is a run to end
                parent = _parent_run(first, name, len(composed))
            jobs = [
                Job(experiment, job.overrides, folder / place, parent.run_id, first.name)
                for job, experiment, place in zip(composed, experiments, names, strict=True)
            ]
            for code in _run_all(jobs, labels, console):
                codes.append(code)
                index[len(codes) - 1]["exit_code"] = code
                _write_index(index, folder)
        except Interrupted as interrupted:
            codes.append(interrupted.exit_code)
        with ignored():
            return _finish(folder, parent, codes, console)


def job_labels(overrides: Sequence[Sequence[str]]) -> list[str]:
    """Returns what tells each job from the others: the overrides that not all of them share."""
    shared = set.intersection(*(set(job) for job in overrides)) if overrides else set()
    return [" ".join(given for given in job if given not in shared) or "the only job" for job in overrides]


def slug(label: str) -> str:
    """Returns `label` as a part of a file name."""
    return re.sub(r"[^\w=.,+-]+", "_", label.replace(" ", ","))[:100]


def _checked(job: Composed, index: int, jobs: int) -> Experiment:
    try:
        experiment = read(job.document, job.choices)
        prepare(experiment)
    except UserError as error:
        raise UserError(f"job {index + 1} of {jobs} ({' '.join(job.overrides)}): {error}") from error
    return experiment


def _parent_run(experiment: Experiment, name: str, jobs: int) -> Tracker:
    if experiment.tracking.kind == "off":
        return NullTracker()
    from pipeline.tracking.mlflow_tracker import MlflowTracker

    tags = {**experiment.tags, "sweep": name, "jobs": str(jobs)}
    return MlflowTracker.start(experiment.tracking, experiment.outputs, experiment.name, f"sweep {name}", tags)


def _run_all(jobs: Sequence[Job], labels: Sequence[str], console: Console) -> Iterator[int]:
    """Runs the jobs and yields their exit codes; a signal ends the running one and starts no more."""
    context = process_context()
    for number, (job, label) in enumerate(zip(jobs, labels, strict=True), 1):
        console.say(f"\njob {number}/{len(jobs)}  {label}", style="bold")
        code = _run_one(context, job)
        yield code
        if code != DONE:
            console.error(f"job {number}/{len(jobs)}  {label}: exit code {code}")
        if code in (130, 143):
            break


def _write_index(index: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Writes the list of jobs, with the exit codes so far, whole or not at all."""
    partial = folder / f".{INDEX}.partial"
    partial.write_text(json.dumps(redact(list(index)), indent=2))
    partial.replace(folder / INDEX)


def _run_one(context: BaseContext, job: Job) -> int:
    process = context.Process(target=_work, args=(job,))  # type: ignore[attr-defined]
    stopped: int | None = None
    try:
        with deferred():  # until its pid is known, it could not be told to end
            process.start()
        process.join()
    except Interrupted as interrupted:
        stopped = interrupted.exit_code
        process.terminate()  # it is in a group of its own, so the terminal did not tell it
        try:
            process.join()
        except Interrupted:  # a second signal: no more patience
            process.kill()
            process.join()
    code = process.exitcode
    if stopped is not None or code is None:
        return stopped or FAILED
    return 128 - code if code < 0 else code  # killed by signal n: as a shell says it


def _work(job: Job) -> None:
    """What a job's process does."""
    environment.prepare()
    become_independent()
    console = Console()
    try:
        code = run_job(job, console)
    except UserError as error:
        console.error(str(error))
        code = WRONG_CONFIGURATION
    except Exception:
        console.error(traceback.format_exc())
        code = FAILED
    sys.exit(code)


def _finish(folder: Path, parent: Tracker, codes: Sequence[int], console: Console) -> int:
    """Prints and writes the comparison, then ends the tracked run, which may fail; returns the exit code."""
    comparison = compare(folder)
    console.say()
    console.table(comparison.table())
    paths = write(comparison, folder)
    console.say(f"comparison  {shorter(folder / 'comparison.md')}")
    for label, line in zip(("open", ""), (parent.how_to_open() or "").splitlines(), strict=False):
        console.say(f"{label:11} {line}")
    code = exit_code(codes)
    try:
        parent.fail_lost_children()
        for path in paths:
            parent.artifact(path)
        parent.metrics({"sweep/jobs": len(comparison.jobs), "sweep/failed": sum(code != 0 for code in codes)})
        parent.end("KILLED" if code in (130, 143) else "FAILED" if code else "FINISHED")
    except Exception as error:  # the store has gone; what the sweep came to stands in its folder
        console.error(f"recording: {one_line(error)}")
        code = code or SWEEP_FAILED
    return code
