"""Begins and ends the run of this process: its folder, its records before and after the stages."""

import json
import os
import traceback
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from omegaconf import OmegaConf

from pipeline.config.experiment import Experiment
from pipeline.config.keys import split_override
from pipeline.config.schemas import TrackingSettings
from pipeline.console import Console
from pipeline.exit_codes import FAILED
from pipeline.planning.job import Job, PrunedError
from pipeline.planning.reuse import reused_run
from pipeline.provenance import source_digest
from pipeline.provenance.code_state import CodeState, code_state, command, source_tags, unknown_to_git
from pipeline.provenance.identity import identity, is_among
from pipeline.provenance.versions import environment, packages, versions
from pipeline.redaction import redact, redact_file, redact_overrides
from pipeline.run.description import NOTE, of_begun, of_run
from pipeline.run.naming import CHOOSES_A_RUN, run_name
from pipeline.run.report import show_summary, show_times
from pipeline.run_folder.lock import warn_of_local_locks
from pipeline.run_folder.settle import flush, record_end
from pipeline.run_folder.summary import NAME, Summary, one_line
from pipeline.system import machine
from pipeline.system.disk import no_room
from pipeline.system.signal_listener import Interrupted
from pipeline.tracking.params import of_configuration
from pipeline.tracking.run_copy import RESULTS
from pipeline.tracking.system_metrics import SystemMetrics
from pipeline.tracking.tracker import Patience, RunSpec, Tracker, open_tracker
from stages.checkpoints.names import START, checkpoint_files
from stages.errors import UserError
from stages.reuse import KNOWN_IMAGES
from stages.settings.results import EvaluateSettings, ExportSettings
from stages.storage.atomic import atomic_write

SHORTEST_SECONDS = 0.05
"""Seconds below which a stage has no time of its own in MLflow, where every one is a chart; `summary.json` has all."""


THREADS = "threads"
"""Fact of a run: the number of threads with which it has begun, on which the last bits of sums depend."""

PRUNED = "pruned_after_epoch"
"""In the facts of a summary, and as a tag: the last epoch of a trial that was ended early."""


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
        warn_of_local_locks(experiment.outputs, console.warn)
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
    description = {NOTE: of_begun(typed, tracking.note)}
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


def register(experiment: Experiment, run: Run, console: Console) -> None:
    """Records that the model is to be registered: `export.register`; its alias, if its test metrics can be believed."""
    settings = experiment.of("export", ExportSettings)
    if settings is None or settings.register is None:
        return
    if experiment.debug is not None:
        console.log(f"{settings.register} gets no version: this is a debug run")
        return
    evaluated = experiment.of("evaluate", EvaluateSettings) or EvaluateSettings
    alias = settings.alias
    if alias is not None and (known := run.summary.facts.get(KNOWN_IMAGES)):
        console.warn(f"{alias} of {settings.register} stays: the model was trained on {known} of its test images")
        alias = None
    run.tracker.register(settings.register, alias, settings.promote_if, evaluated.confidence)


def share_results(experiment: Experiment, run: Run) -> None:
    """Records what the stages have saved, where a later run may begin with it on another machine."""
    if experiment.tracking.kind == "server" and experiment.debug is None and (run.folder / RESULTS).is_dir():
        run.tracker.artifact(run.folder / RESULTS, RESULTS)


def fail(error: BaseException, run: Run, console: Console) -> int:
    """Sets the summary's status and error from what ended the stages early; returns the exit code."""
    summary = run.summary
    if isinstance(error, Interrupted):
        summary.status = "FAILED" if error.exit_code == FAILED else "KILLED"
        summary.error = f"stopped by {error}"
        return error.exit_code
    error = no_room(error) or error
    summary.status = "FAILED"
    summary.error = str(redact(one_line(error)))
    if not isinstance(error, UserError):
        text = "".join(traceback.format_exception(error))
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            console.log(text)
        else:
            console.log_only(text)
        summary.error += f" (traceback in {run.folder / 'pipeline.log'})"
    return FAILED


def note_pruned(run: Run, pruned: PrunedError, console: Console) -> None:
    """Notes that a search has ended this run early: it is over, and the stages after training have not run."""
    run.summary.status = "FINISHED"
    run.summary.facts[PRUNED] = pruned.epoch
    run.tracker.tags({PRUNED: str(pruned.epoch)})
    console.log(f"pruned after epoch {pruned.epoch}: other trials do better")


def end(run: Run, code: int, console: Console, started: float) -> int:
    """Writes the summary and ends the tracked run; returns the exit code.

    The order is important: once the summary has the status, nothing of the run is repeated, whenever the process dies;
    the store's status comes last, when it has everything else.

    Args:
        started: when the user began to wait, in seconds of `time.monotonic()`.
    """
    summary = run.summary
    tracker = run.tracker
    if run.sampled is not None:
        run.sampled.stop()
    summary.run_id = tracker.run_id  # another id where the store had lost the run
    summary.take_time(started)
    if (peak := machine.peak_memory_mib()) is not None:
        summary.metrics["memory/peak_mib"] = peak
        tracker.metrics({"memory/peak_mib": peak})
    if not _written(summary, run.folder, console):
        code = code or FAILED
    if summary.status == "FINISHED":
        keep_last_checkpoint(run.folder)
    redact_file(run.folder)  # files that stages and callbacks have written, but not recorded
    show_summary(summary, tracker.how_to_open(), console)
    if summary.error:
        console.error(f"{summary.failed_stage or 'recording'}: {summary.error}")
    tracker.tags({NOTE: of_run(summary, command(), run.note)})
    tracker.metrics(_stage_seconds(summary))
    record_end(tracker, run.folder, summary)
    flush(tracker, summary.status == "FINISHED", console)
    for line in tracker.notes:
        console.log(line)
    if summary.run_id != tracker.run_id:
        summary.run_id = tracker.run_id
        if _written(summary, run.folder, console):
            tracker.artifact(run.folder / NAME)
            tracker.flush(Patience.of_stopped())
    tracker.close()
    summary.take_time(started)  # again, as the store may have taken long
    with suppress(OSError):
        summary.write(run.folder)
    show_times(summary, console)
    console.close()
    return code


def _stage_seconds(summary: Summary) -> dict[str, float]:
    """Returns the times of the stages that took any, as metrics: last, so that a run's page begins with its scores."""
    seconds = {name: stage.seconds for name, stage in summary.stages.items() if stage.status != "skipped"}
    seconds["start"] = summary.start_seconds
    return {f"{name}/seconds": value for name, value in seconds.items() if value >= SHORTEST_SECONDS}


def keep_last_checkpoint(folder: Path) -> None:
    """Deletes the checkpoints that a finished run in `folder` no longer needs: earlier ones, and the start of a fork.

    `fork=` starts from the last checkpoint. A fork that has written none keeps its start.
    """
    by_step = checkpoint_files(folder / "checkpoints")
    unused = [*by_step[:-1], folder / "checkpoints" / START] if by_step else []
    for path in unused:
        with suppress(OSError):  # a leftover does no harm
            path.unlink(missing_ok=True)


def _written(summary: Summary, folder: Path, console: Console) -> bool:
    """Writes the summary; where the disk is full or lost, prints an error and returns False."""
    try:
        summary.write(folder)
    except OSError as error:
        console.error(f"{folder / NAME} cannot be written ({error.strerror})")
        return False
    return True
