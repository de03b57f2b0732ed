"""A sweep: jobs checked together, run one after another, each in a fresh process, under one parent run."""

import re
import sys
import time
import traceback
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from pipeline import environment, provenance
from pipeline.compare import compare, write
from pipeline.config import Experiment, read
from pipeline.console import Console
from pipeline.end import PATIENCE_SECONDS, end_lost, send_rest
from pipeline.job import DONE, FAILED, STOPPED, WRONG_CONFIGURATION, Job, exit_code, prepare
from pipeline.launch import run_job
from pipeline.paths import shorter
from pipeline.processes import become_independent, process_context
from pipeline.rules import server_answers
from pipeline.runs import has_finished, identity, locked
from pipeline.secrets import redact
from pipeline.signals import Interrupted, as_exceptions, deferred, ignored
from pipeline.sources import Sources, sources
from pipeline.sweeps import unfinished, write_index
from pipeline.tracking.tracker import NullTracker, Tracker
from stages.errors import UserError

SERVER_PATIENCE_SECONDS = 600.0
"""How long a sweep waits for a tracking server that has gone; a job that begins without it is refused."""


@dataclass(frozen=True)
class Composed:
    """One job as Hydra composed it.

    Attributes:
        document: the configuration without Hydra's node.
        choices: the options taken. overrides: as given. config_dirs: folders of configuration that the user has added.
    """

    document: DictConfig
    choices: Mapping[str, str]
    overrides: tuple[str, ...]
    config_dirs: tuple[Path, ...] = ()


def run_sweep(composed: Sequence[Composed]) -> int:
    """Runs the jobs and returns the sweep's exit code: 0, 3 where some failed, 130 or 143 where it was stopped.

    Where the last sweep of the same jobs has not finished, it is gone on with: jobs that have finished stay as they
    are, one that was interrupted continues.

    Raises:
        UserError: where any of the jobs is wrong; none has been started then. Settings without a schema are known
            only to the stage that declares them: each job checks those itself.
    """
    experiments = [_checked(job, index, len(composed)) for index, job in enumerate(composed)]
    first, console = experiments[0], Console()
    labels = job_labels([job.overrides for job in composed])
    if first.dry_run:
        console.say(f"{len(composed)} jobs")
        for label, experiment in zip(labels, experiments, strict=True):
            console.say(f"\n{label}")
            console.plan(experiment, prepare(experiment))
        return DONE
    names = [f"{number}_{slug(str(redact(label)))}" for number, label in enumerate(labels, 1)]
    code = [sources(experiment) for experiment in experiments]
    index: list[dict[str, Any]] = [
        {"folder": name, "overrides": redact(list(job.overrides)), "identity": identity(experiment), "code": own.digest}
        for name, job, experiment, own in zip(names, composed, experiments, code, strict=True)
    ]
    everything = Sources({name: content for own in code for name, content in own.files.items()})
    folder = unfinished(index, first, everything, console.say)
    goes_on = folder is not None
    if folder is None:
        folder = first.outputs / "sweeps" / f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}"
        folder.mkdir(parents=True)
    console.say(f"sweep {folder.name}: {len(composed)} jobs{', gone on with' if goes_on else ''}")
    with locked(folder):
        everything.write(folder)
        write_index(index, folder)
        return _run(folder, index, composed, experiments, labels, console)


def _run(
    folder: Path,
    index: list[dict[str, Any]],
    composed: Sequence[Composed],
    experiments: Sequence[Experiment],
    labels: Sequence[str],
    console: Console,
) -> int:
    """Runs the jobs of a sweep that have not finished."""
    first, parent = experiments[0], NullTracker()  # type: Experiment, Tracker
    codes: list[int] = []
    with as_exceptions():
        try:
            with deferred():  # what came meanwhile is raised here, when there is a run to end
                parent = _parent_run(first, folder, len(composed), console)
            for number, (job, experiment, label) in enumerate(zip(composed, experiments, labels, strict=True), 1):
                place = folder / index[number - 1]["folder"]
                if has_finished(place):
                    console.say(f"\njob {number}/{len(composed)}  {label}: has finished", style="bold")
                    send_rest(place, experiment, console)
                    codes.append(DONE)
                else:
                    _wait_for_server(experiment, console)
                    console.say(f"\njob {number}/{len(composed)}  {label}", style="bold")
                    codes.append(_run_one(Job(experiment, job.overrides, place, parent.run_id, first.name), console))
                    if codes[-1] != DONE:
                        console.error(f"job {number}/{len(composed)}  {label}: exit code {codes[-1]}")
                index[number - 1]["exit_code"] = codes[-1]
                write_index(index, folder)
                if codes[-1] in STOPPED:
                    break
        except Interrupted as interrupted:
            codes.append(interrupted.exit_code)
        with ignored():
            status = _finish(folder, parent, codes, console)
            write_index(index, folder, status)  # last of all: before it, the same command goes on with this sweep
            return exit_code(codes)


def job_labels(overrides: Sequence[Sequence[str]]) -> list[str]:
    """Returns what tells each job from the others: the overrides that not all of them share."""
    shared = set.intersection(*(set(job) for job in overrides)) if overrides else set()
    return [" ".join(given for given in job if given not in shared) or "the only job" for job in overrides]


def slug(label: str) -> str:
    """Returns `label` as a part of a file name."""
    return re.sub(r"[^\w=.,+-]+", "_", label.replace(" ", ","))[:100]


def _checked(job: Composed, index: int, jobs: int) -> Experiment:
    try:
        experiment = read(job.document, job.choices, job.config_dirs)
        prepare(experiment)
    except UserError as error:
        raise error.within(f"job {index + 1} of {jobs} ({' '.join(job.overrides)})") from error
    return experiment


def _parent_run(experiment: Experiment, folder: Path, jobs: int, console: Console) -> Tracker:
    if experiment.tracking.kind == "off":
        return NullTracker()
    from pipeline.tracking.journaled import JournaledTracker

    tags = {**experiment.tags, "sweep": folder.name, "jobs": str(jobs)}
    name = f"sweep {folder.name}"
    return JournaledTracker.begin(
        experiment.tracking, experiment.outputs, folder, experiment.name, name, tags, None, console.warn
    )


def _wait_for_server(experiment: Experiment, console: Console) -> None:
    """Waits for a tracking server that has gone since the sweep began: a job cannot begin without it."""
    deadline = time.monotonic() + SERVER_PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            return server_answers(experiment)
        except UserError as error:
            console.warn(f"{error.problem}; the next job waits for it")
            time.sleep(10)
    return None


def _run_one(job: Job, console: Console) -> int:
    """Runs a job in a process of its own and returns its exit code; a signal ends it."""
    process = process_context().Process(target=_work, args=(job,))  # type: ignore[attr-defined]
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
    assert job.folder is not None
    end_lost(job.folder, job.experiment, "KILLED" if stopped else "FAILED", console)
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


def _finish(folder: Path, parent: Tracker, codes: Sequence[int], console: Console) -> str:
    """Prints and writes the comparison, then ends the tracked run; returns its status."""
    comparison = compare(folder)
    console.say()
    console.table(comparison.table())
    paths = write(comparison, folder)
    console.say(f"comparison  {shorter(folder / 'comparison.md')}")
    for label, line in zip(("open", ""), (parent.how_to_open() or "").splitlines(), strict=False):
        console.say(f"{label:11} {line}")
    code = exit_code(codes)
    if code != DONE:
        console.say(f"{'continue':11} {provenance.command()}")
    for path in paths:
        parent.artifact(path)
    parent.tags({"failed": str(sum(code != DONE for code in codes))})
    status = "KILLED" if code in STOPPED else "FAILED" if code else "FINISHED"
    parent.status(status)
    parent.close(PATIENCE_SECONDS)
    return status
