"""Ends the run of this process: what went wrong, the summary, the records after the stages, the store's status."""

import os
import traceback
from contextlib import suppress
from pathlib import Path

from pipeline.config.experiment import Experiment
from pipeline.console import Console
from pipeline.exit_codes import FAILED
from pipeline.planning.job import PrunedError
from pipeline.provenance.code_state import command
from pipeline.redaction import redact, redact_file
from pipeline.run.begin import Run
from pipeline.run.facts import NOTE, run_description, show_summary, show_times
from pipeline.run_folder.settle import flush, record_end
from pipeline.run_folder.summary import NAME, PRUNED, Summary, one_line
from pipeline.system import machine
from pipeline.system.signal_listener import Interrupted
from pipeline.system.streams import no_room
from pipeline.tracking.run_copy import RESULTS
from pipeline.tracking.tracker import Patience
from stages.checkpoints.names import START, checkpoint_files
from stages.errors import UserError
from stages.reuse import KNOWN_IMAGES
from stages.settings.results import EvaluateSettings, ExportSettings

SHORTEST_SECONDS = 0.05
"""Seconds below which a stage has no time of its own in MLflow, where every one is a chart; `summary.json` has all."""


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
    tracker.tags({NOTE: run_description(summary, command(), run.note)})
    tracker.metrics(_stage_seconds(summary))
    record_end(tracker, run.folder, summary)
    flush(tracker, summary.status == "FINISHED", console)
    if tracker.no_room is not None:
        console.error(f"recording: {tracker.no_room}")
        code = code or FAILED
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
