"""How a run begins, or is taken up again: its folder, its record, what is known before the first stage."""

import json
import shutil
import time
import uuid
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from omegaconf import OmegaConf

from pipeline.config.experiment import Experiment
from pipeline.paths import shorter
from pipeline.redaction.mask import redact, redact_overrides
from pipeline.run import provenance, source_digest
from pipeline.run.console import Console
from pipeline.run.identity import identity
from pipeline.run.job import Job
from pipeline.run.lock import locked
from pipeline.run.origin import Origin
from pipeline.run.outputs import unknown_to_git
from pipeline.run.resume import has_finished
from pipeline.run.summary import Summary
from pipeline.tracking.params import of_configuration
from pipeline.tracking.tracker import NullTracker, Tracker
from stages.errors import UserError

OF_COMMAND = ("resume=", "fork=", "trust=")
"""Overrides that say which run is meant, and are no settings of it."""


@dataclass(frozen=True)
class Run:
    """A job that has begun."""

    tracker: Tracker
    folder: Path
    summary: Summary
    code: provenance.CodeState | None


def begin(job: Job, console: Console, held: ExitStack) -> Run:
    """Makes the run's folder, or takes it over, and starts the tracked run; `held` keeps others off until it closes.

    The folder comes first: whenever the process dies, the same command finds what there is.
    """
    experiment = job.experiment
    code = source_digest.sources(experiment)
    state = provenance.code_state(untracked=experiment.tracking.untracked)
    folder = job.folder or new_folder(experiment)
    is_new = not folder.exists()
    summary = Summary(
        run_id=job.resumed.run_id if job.resumed else None,
        status="RUNNING",
        name=experiment.name,
        folder=str(folder),
        choices={key: value for key, value in experiment.choices.items() if "/" not in key},
        overrides=redact_overrides(
            [one for one in job.overrides if not one.startswith(("resume=", "fork=", "fork_weights=", "trust="))]
        ),
        versions=provenance.versions(),
        identity=(job.resumed.identity if job.resumed else None) or identity(experiment),
        code=code.digest,
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unknown_to_git(experiment.outputs)
        held.enter_context(locked(folder))
        if job.resumed is not None and has_finished(folder):  # the process that was on it has ended it
            raise UserError(f"{shorter(folder)} has finished meanwhile", "a run that has not", "resume=never")
        if job.fork is not None and job.resumed is None:
            _start_from(job.fork, folder, experiment.fork_weights)
        code.write(folder)
        _origin_of(summary).write(folder)  # before the summary: by this it is found where that is damaged
        summary.write(folder)
        tracker = _tracker(job, folder, state, console)
    except BaseException as error:
        if is_new and isinstance(error, (UserError, OSError)):  # after a signal the store may know the run: it is kept
            shutil.rmtree(folder, ignore_errors=True)
        elif job.resumed is not None and isinstance(error, (UserError, OSError)):
            with suppress(OSError):
                job.resumed.write(folder)  # as it was
        if isinstance(error, OSError):
            raise UserError(f"no run can be begun in {folder} ({error.strerror})", "room to write in", "") from error
        raise
    run = Run(tracker, folder, summary, state)
    if summary.run_id != tracker.run_id:
        summary.run_id = tracker.run_id
        summary.write(folder)
    return run


def new_folder(experiment: Experiment) -> Path:
    """Returns the place of a new run."""
    started, short = time.strftime("%Y%m%d-%H%M%S"), uuid.uuid4().hex[:8]
    return experiment.outputs / "runs" / experiment.name / f"{started}-{short}"


def _origin_of(summary: Summary) -> Origin:
    return Origin(
        name=summary.name,
        identity=summary.identity,
        code=summary.code,
        choices=summary.choices,
        overrides=summary.overrides,
        versions=summary.versions,
    )


def _start_from(run: Summary, folder: Path, weights: str) -> None:
    checkpoints = import_module("stages.training.checkpoints")  # with TensorFlow, which is imported by now
    name = run.run_id[:8] if run.run_id else Path(run.folder).name
    checkpoints.start_from(Path(run.folder) / "checkpoints", folder / "checkpoints", weights, name)


def _tracker(job: Job, folder: Path, code: provenance.CodeState | None, console: Console) -> Tracker:
    experiment = job.experiment
    if experiment.tracking.kind == "off":
        return NullTracker()
    from pipeline.tracking.journaled import JournaledTracker  # seconds to import
    from pipeline.tracking.spec import RunSpec

    tags = {**experiment.tags, **_origin(code)}
    if job.fork is not None:
        tags["forked_from"] = job.fork.run_id or job.fork.folder
        tags["fork_weights"] = experiment.fork_weights
    where = job.mlflow_experiment or experiment.name
    spec = RunSpec(experiment.tracking, experiment.outputs, folder, where, folder.name, job.parent)
    return JournaledTracker.begin(spec, tags, console.warn)


def _origin(code: provenance.CodeState | None) -> dict[str, str]:
    state = {"git.commit": code.commit} if code else {}
    if code and code.dirty is not None:
        state["git.dirty"] = str(code.dirty).lower()
    return {"command": provenance.command(), **state}


def describe(job: Job, run: Run) -> None:
    """Records all that is known before the first stage: configuration, code, packages, machine."""
    document, tracker = job.experiment.document, run.tracker
    resolved = OmegaConf.create(redact(OmegaConf.to_container(document, resolve=True)))
    (run.folder / "config.yaml").write_text(OmegaConf.to_yaml(resolved))
    chosen = {f"choice/{group}": option for group, option in job.experiment.choices.items() if "/" not in group}
    tracker.params({**of_configuration(document), **chosen})
    tracker.tags({f"version.{name}": version for name, version in provenance.versions().items()})
    tracker.artifact(run.folder / "config.yaml")
    tracker.artifact(run.folder / source_digest.NAME, "code")
    tracker.text(json.dumps(provenance.environment(), indent=2), "environment/environment.json")
    tracker.text(provenance.packages(), "environment/packages.txt")
    if run.code and run.code.diff:
        tracker.text(run.code.diff, "code/diff.patch")
