"""Execute a decision: the story of a run, from the claim of its folder to its last status."""

import os
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from pipeline.console import Console
from pipeline.decide.decision import Decision
from pipeline.decide.job import PrunedError
from pipeline.execute.child import code_of
from pipeline.execute.claim import claimed
from pipeline.execute.facts import show_next, show_summary, show_times
from pipeline.execute.link import Link
from pipeline.execute.records import begin, describe, record_results, register
from pipeline.execute.reporter import RunReporter
from pipeline.execute.stages import StageRunner, bind
from pipeline.execute.task import OPEN_PORTS, Task
from pipeline.exit_codes import DONE, FAILED, STOPPED, TIMED_OUT
from pipeline.redaction import redact, redact_file
from pipeline.runs.folder import LOG, RunFolder
from pipeline.runs.summary import NAME, Summary, one_line
from pipeline.system import machine, signals
from pipeline.system.environment import imports_kept, light_imports
from pipeline.system.signals import Interrupted, Request
from pipeline.system.streams import no_room
from pipeline.tracking.ending import record_end
from pipeline.tracking.follower import Follower
from pipeline.tracking.store import Store
from pipeline.tracking.tracker import Tracker
from stages.errors import UserError
from stages.settings.model import ModelSettings

LINGER_SECONDS = 7.0
"""Grace period, in seconds, of a server that is asked to end, as its chief may be saving."""


@dataclass(frozen=True)
class Outcome:
    """The end of the stages of a run."""

    code: int
    """The exit code of the process."""
    status: str = "FINISHED"
    error: str | None = None


def execute(
    decision: Decision,
    console: Console,
    link: Link | None = None,
    task: Task | None = None,
    is_supervised: bool = False,
    started: float | None = None,
) -> int:
    """Run the stages of `decision` in this process and return the exit code.

    The order is important. The folder is claimed before anything slow happens, so that the same command finds the run
    whenever the process dies. The summary has its final status before the store does, so that a run that has finished
    is never repeated.

    Args:
        decision: What to do.
        console: Prints the progress and the results.
        link: The connections of a job to its sweep.
        task: The role of this process in a cluster. Only the chief records.
        is_supervised: Whether another process has locked the folder for this one.
        started: When the user began to wait, in seconds of `time.monotonic()`; None: now.
    """
    if task is not None and not task.is_chief:
        return assist(decision, console, task)
    link, started = link or Link(), time.monotonic() if started is None else started
    experiment, run = decision.experiment, decision.folder
    with signals.listening(), signals.allow(signals.RUN_SECONDS), ExitStack() as resources:
        if (limit := experiment.job_timeout_seconds) is not None:
            signals.time_out(started + limit, limit)
        before = resources.enter_context(claimed(decision, is_supervised))
        follower = resources.enter_context(followed(decision, link))
        signals.on_forced_exit(lambda request: _mark(run.path, request, console))
        with console.working("starting TensorFlow and MLflow"), _importing():
            with signals.allow(signals.BEFORE_RUN_SECONDS):
                stages = bind(decision)
            signals.beat()
            tracker = begin(decision, before, console.warn, follower.ended)
        try:
            signals.check()  # raised here, where there is a run to end
            console.open_log(run.path / LOG)
            describe(decision, tracker)
            run.summary.begin_stages(started)
            if task is not None and task.meet is not None:
                console.warn(OPEN_PORTS)
                task.meet(console.log)
            reporter = RunReporter(tracker, console, run.summary, decision.job.on_epoch, link.turn)
            StageRunner(run.path, experiment.outputs / "cache", reporter).run(stages)
            register(decision, tracker, console)
            outcome = Outcome(DONE)
        except PrunedError as pruned:
            outcome = Outcome(DONE)  # it is over, although the stages after training have not run
            run.summary.facts.pruned_after_epoch = pruned.epoch
            tracker.tags({"pruned_after_epoch": str(pruned.epoch)})
            console.log(f"pruned after epoch {pruned.epoch}: other trials had better results by then")
        except BaseException as error:
            with signals.ending():
                outcome = _failed(error, run, console)
        with signals.ending():
            return finish(decision, outcome, tracker, console, link, started)


def finish(decision: Decision, outcome: Outcome, tracker: Tracker, console: Console, link: Link, started: float) -> int:
    """End the run: record its results, write its summary, print it, send its records; return the exit code.

    Once the summary has the status, nothing of the run is repeated, whenever the process dies. So the results are in
    the journal before. The store gets the status last, when it has everything else.
    """
    run, code = decision.folder, outcome.code
    summary, began = run.summary, started + link.turn.waited
    summary.take_time(began)
    if (peak := machine.peak_memory_mib()) is not None:
        summary.metrics["memory/peak_mib"] = peak
        tracker.metrics({"memory/peak_mib": peak})
    final = replace(summary, status=outcome.status, error=outcome.error or summary.error)
    record_results(decision, final, tracker)
    try:
        run.end(outcome.status, outcome.error)
    except OSError as error:
        console.error(f"{run.path / NAME} cannot be written ({error.strerror})")
        code = code or FAILED
    signals.ended(code)
    if summary.status == "FINISHED":
        run.keep_last_checkpoint()
    redact_file(run.path)  # files that stages and callbacks have written, but not recorded
    show_summary(summary, tracker.links, console)
    if summary.error:
        console.error(f"{summary.failed_stage}: {summary.error}")
    record_end(tracker, run)
    if code == DONE:
        link.turn.has_finished()
    tracker.flush(console.log if summary.status == "FINISHED" else None)
    for line in tracker.notes:
        console.log(line)
    tracker.close()
    summary.ending, summary.run_id = False, summary.run_id or tracker.run_id
    summary.take_time(began)  # again, as the store may have taken long
    with suppress(OSError):
        run.write()
    show_times(summary, console)
    if decision.part is None and decision.experiment.debug is None:
        show_next(summary, decision.experiment.outputs, console)
    console.close()
    return code


@contextmanager
def followed(decision: Decision, link: Link) -> Iterator[Follower]:
    """Have a process send the records of the run to MLflow within the block, unless another process has one do so."""
    experiment = decision.experiment
    with closing(Follower(None if link.is_followed else experiment.tracking)) as follower:
        follower.follow(decision.folder.path, Store(experiment.tracking, experiment.outputs))
        yield follower


def _mark(folder: Path, request: Request, console: Console) -> None:
    """End the run before its process is ended by force; its follower records that afterwards."""
    status = "KILLED" if request.exit_code in (TIMED_OUT, *STOPPED) else "FAILED"
    reason = f"forcibly stopped by {request.reason}"
    run = RunFolder(folder)  # from the file, as the main thread may be changing its own summary
    with suppress(OSError, UserError):
        if not run.has_begun:
            run.forget()
        elif run.end(status, reason):
            console.error(f"the run ended as {status}: {reason}")


def _failed(error: BaseException, run: RunFolder, console: Console) -> Outcome:
    """Return the outcome of a run whose stages were ended early by `error`."""
    if isinstance(error, Interrupted):
        status = "FAILED" if error.exit_code == FAILED else "KILLED"
        return Outcome(error.exit_code, status, f"stopped by {error}")
    error = no_room(error) or error
    text = str(redact(one_line(error)))
    if not isinstance(error, UserError):
        trace = "".join(traceback.format_exception(error))
        (console.log if os.environ.get("HYDRA_FULL_ERROR") == "1" else console.log_only)(trace)
        text += f" (traceback in {run.path / LOG})"
    return Outcome(FAILED, "FAILED", text)


def assist(decision: Decision, console: Console, task: Task) -> int:
    """Run the stages as a member other than the chief, without keeping results; return the exit code."""
    experiment = decision.experiment
    summary = Summary(None, "RUNNING", experiment.name, Path(), {})

    def run(scratch: Path) -> int:
        with console.working("starting TensorFlow"), _importing(), signals.allow(signals.BEFORE_RUN_SECONDS):
            stages = [] if task.serves else bind(decision)
            servers = import_module("stages.strategy")
        signals.check()
        if task.meet is not None:
            task.meet(console.log)
        if task.serves:
            model = experiment.of("model", ModelSettings)
            return _serve(servers, task, model is not None and model.precision.tf32)
        StageRunner(scratch, experiment.outputs / "cache", RunReporter(Tracker(), console, summary)).run(stages)
        return DONE

    allowed = signals.allow(signals.RUN_SECONDS)
    with signals.listening(), allowed, tempfile.TemporaryDirectory(prefix=task.name) as scratch:
        signals.on_forced_exit(lambda request: console.error(f"this process was stopped by {request.reason}"))
        return code_of(lambda: run(Path(scratch)), console)


def _importing() -> AbstractContextManager[None]:
    """Return what is around the imports. In a notebook's process, what lives there now may become garbage later."""
    return imports_kept() if signals.owns_process() else light_imports()


def _serve(servers: Any, task: Task, tf32: bool) -> int:
    """Serve the chief of a parameter-server cluster until it ends or a signal arrives."""
    serving = servers.Serving(task.cluster["chief"][0], tf32)
    try:
        signals.until(serving.is_over)
    except Interrupted:
        with signals.ending():
            serving.wait(LINGER_SECONDS)
        raise
    return DONE
