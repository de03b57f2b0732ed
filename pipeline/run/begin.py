"""Begins the run of this process: the first files in its folder, and what is recorded before the stages."""

import json
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from omegaconf import OmegaConf

from pipeline.config.keys import split_override
from pipeline.config.schemas import TrackingSettings
from pipeline.console import Console
from pipeline.planning.earlier import reused_run
from pipeline.planning.job import Job
from pipeline.provenance import source_digest
from pipeline.provenance.code_state import CodeState, code_state, command, source_tags, unknown_to_git
from pipeline.provenance.identity import identity, is_among
from pipeline.provenance.versions import environment, packages, versions
from pipeline.redaction import redact, redact_overrides
from pipeline.run.facts import NOTE, begun_description
from pipeline.run.naming import CHOOSES_A_RUN, run_name
from pipeline.run_folder.summary import NAME, Summary
from pipeline.system import machine
from pipeline.tracking.params import of_configuration
from pipeline.tracking.system_metrics import SystemMetrics
from pipeline.tracking.tracker import RunSpec, Tracker, open_tracker
from stages.errors import UserError
from stages.storage.atomic import atomic_write

THREADS = "threads"
"""Fact of a run: the number of threads with which it has begun, on which the last bits of sums depend."""


@dataclass(frozen=True)
class Run:
    """A job that has begun. code: the state of the repository, if there is one. note: the user's own remark.

    sampled: the use of the machine, where it is recorded.
    """

    tracker: Tracker
    folder: Path
    summary: Summary
    code: CodeState | None
    note: str | None = None
    sampled: SystemMetrics | None = None


def begin(job: Job, console: Console) -> Run:
    """Writes the first files to the run's folder, which is claimed, and begins the tracked run.

    The files come first, so that the same command finds the run whenever the process dies.

    Raises:
        UserError: where the folder or the store cannot be used; nothing of a new run is left.
    """
    experiment = job.experiment
    code = source_digest.sources(experiment)
    state = code_state(untracked=experiment.tracking.untracked)
    folder = job.folder
    assert folder is not None
    summary = _first_summary(job, folder, code.digest)
    _warn_of_other_threads(job, summary, console)
    try:
        unknown_to_git(experiment.outputs)
        if job.forked is not None:
            _copy_weights(job.forked, folder, experiment.fork_weights)
        code.write(folder)
        summary.write(folder)
        tracker = open_tracker(_spec(job, folder, state), console.warn)
    except (UserError, OSError) as error:  # after a signal the store may have the run, which is kept
        with suppress(OSError):
            if job.resumed is not None:
                job.resumed.write(folder)  # as it was
            else:
                (folder / NAME).unlink(missing_ok=True)  # no run; a new folder goes with its claim
        if isinstance(error, OSError):
            raise UserError(f"no run can be begun in {folder} ({error.strerror})", "room to write in") from error
        raise
    if summary.run_id != tracker.run_id:
        summary.run_id = tracker.run_id
        summary.write(folder)
    sampled = SystemMetrics(tracker, console.warn) if experiment.tracking.system_metrics else None
    return Run(tracker, folder, summary, state, experiment.tracking.note, sampled)


def _first_summary(job: Job, folder: Path, code: str) -> Summary:
    experiment = job.experiment
    resumed = job.resumed
    return Summary(
        run_id=resumed.run_id if resumed else None,
        status="RUNNING",
        name=experiment.name,
        folder=str(folder),
        choices=experiment.choices,
        overrides=redact_overrides(
            [text for text in job.overrides if not is_among(split_override(text)[0], CHOOSES_A_RUN)]
        ),
        versions=versions(),
        identity=(resumed.identity if resumed else None) or identity(experiment),
        code=code,
        facts={"seed": experiment.seed, THREADS: _threads(resumed), **job.tags},
    )


def _threads(resumed: Summary | None) -> int:
    """Returns the number of threads with which a run has begun."""
    before = resumed.facts.get(THREADS) if resumed is not None else None
    return before if isinstance(before, int) else machine.compute_threads()


def _warn_of_other_threads(job: Job, summary: Summary, console: Console) -> None:
    """Warns where a deterministic run resumes with another number of threads, which decides the last bits of sums."""
    before, now = summary.facts[THREADS], machine.compute_threads()
    if job.resumed is not None and job.experiment.deterministic and before != now and not machine.gpus():
        console.warn(
            f"this run began with {before} thread(s) and resumes with {now}: deterministic=true gives the same numbers "
            f"to the bit for one number of threads. Try: TF_NUM_INTRAOP_THREADS={before} before the same command"
        )


def _copy_weights(run: Summary, folder: Path, weights: str) -> None:
    checkpoints = import_module("stages.checkpoints.files")  # with TensorFlow, which is imported by now
    name = run.run_id[:8] if run.run_id else Path(run.folder).name
    checkpoints.start_from(Path(run.folder) / "checkpoints", folder / "checkpoints", weights, name)


def begun_tags(tracking: TrackingSettings, code: CodeState | None) -> dict[str, str]:
    """Returns the tags with which a run or a sweep begins: the user's, its command, its code, its description."""
    typed = command()
    description = {NOTE: begun_description(typed, tracking.note)}
    return {**tracking.tags, "command": typed, **source_tags(code), **description}


def _spec(job: Job, folder: Path, code: CodeState | None) -> RunSpec:
    experiment = job.experiment
    overrides = redact_overrides(list(job.overrides))
    tags = begun_tags(experiment.tracking, code) | dict(job.tags)
    if (reused := reused_run(experiment)) is not None:
        tags["reused_run"] = reused.run_id or reused.folder
    if experiment.debug is not None:
        tags["debug"] = experiment.debug.kind
    if job.forked is not None:
        tags["forked_from"] = job.forked.run_id or job.forked.folder
        tags["fork_weights"] = experiment.fork_weights
    return RunSpec(
        settings=experiment.tracking,
        outputs=experiment.outputs,
        folder=folder,
        experiment=job.sweep.experiment if job.sweep else experiment.name,
        name=job.run_name or run_name(overrides, experiment.choices, folder),
        parent=job.sweep.run_id if job.sweep else None,
        tags=tags,
    )


def describe(job: Job, run: Run) -> None:
    """Records the facts before the first stage: configuration, code, packages, machine."""
    document = job.experiment.document
    tracker = run.tracker
    resolved = OmegaConf.create(redact(OmegaConf.to_container(document, resolve=True)))
    atomic_write(run.folder / "config.yaml", OmegaConf.to_yaml(resolved))
    choices = {f"choice/{group}": option for group, option in job.experiment.choices.items()}
    tracker.params({**of_configuration(document), **choices})
    tracker.tags({f"version.{name}": version for name, version in versions().items()})
    tracker.tags({"identity": run.summary.identity or "", "code": run.summary.code or ""})
    tracker.artifact(run.folder / "config.yaml")
    tracker.artifact(run.folder / source_digest.NAME, "code")
    tracker.text(json.dumps(environment(), indent=2), "environment/environment.json")
    tracker.text(packages(), "environment/packages.txt")
    if run.code and run.code.diff:
        tracker.text(run.code.diff, "code/diff.patch")
