"""Runs the stages of a job in this process, and records them."""

import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

from pipeline.console import Console
from pipeline.exit_codes import DONE, FAILED
from pipeline.planning.earlier import other_run
from pipeline.planning.job import Job, PrunedError, claimed
from pipeline.planning.plan import PlannedStage
from pipeline.run.begin import Run, begin, describe
from pipeline.run.binding import bind, resolve_local_weights, resolve_other_run
from pipeline.run.end import end, fail, note_pruned, register, share_results
from pipeline.run.engine import OPEN_PORTS, Task
from pipeline.run.runner import StageRunner
from pipeline.run_folder.settle import mark_killed
from pipeline.run_folder.summary import StageOutcome, Summary, one_line
from pipeline.system import pulse, signals
from pipeline.system.environment import imports_kept
from pipeline.system.signal_listener import Interrupted
from pipeline.tracking.tracker import Tracker
from stages.errors import UserError

LINGER_SECONDS = 7.0
"""Grace period, in seconds, of a server that is asked to end, as its chief may be saving."""


def work(job: Job, plan: Sequence[PlannedStage], console: Console, task: Task | None = None) -> int:
    """Runs the stages of `job` in this process and returns its exit code.

    Args:
        task: that of this process in a cluster; only the chief records.
    """
    if task is not None and not task.is_chief:
        return assist(job, plan, console, task)
    code = DONE
    with ExitStack() as resources, signals.listening(), signals.uninterrupted():
        run: Run | None = None
        if job.deadline is not None:
            signals.time_out(job.deadline, job.experiment.job_timeout_seconds or 0)
        try:
            job = resources.enter_context(claimed(job))
            folder = job.folder or Path()  # of a claimed job never None
            resources.enter_context(
                signals.on_forced_exit(lambda request: mark_killed(folder, job.experiment, request, console))
            )
            with console.working("starting TensorFlow and MLflow"), _importing():
                with signals.interruptible(signals.BEFORE_RUN_SECONDS):
                    stages = resolve_local_weights(bind(plan, job.experiment), job.experiment)
                    stages = resolve_other_run(stages, other_run(job.experiment))
                pulse.beat()
                run = begin(job, console)
            signals.check()  # raised here, where there is a run to end
            console.open_log(run.folder / "pipeline.log")
            describe(job, run)
            run.summary.begin_stages(job.started)
            if task is not None and task.meet is not None:
                console.warn(OPEN_PORTS)
                _wait_for_members(task.meet, console, run.summary)
            cache = job.experiment.outputs / "cache"
            StageRunner(run.folder, cache, run.tracker, console, run.summary, job.on_epoch).run(stages)
            share_results(job.experiment, run)
            register(job.experiment, run, console)
            run.summary.status = "FINISHED"
        except PrunedError as pruned:
            assert run is not None
            note_pruned(run, pruned, console)
        except BaseException as error:
            if run is None and isinstance(error, Interrupted):
                return error.exit_code
            if run is None:
                raise
            with signals.ending():
                code = fail(error, run, console)
        with signals.ending(code):
            return end(run, code, console, job.started)


def assist(job: Job, plan: Sequence[PlannedStage], console: Console, task: Task) -> int:
    """Runs the stages as a member other than the chief, without keeping results; returns the exit code."""
    summary = Summary(None, "RUNNING", job.experiment.name, "", {})
    last_words = signals.on_forced_exit(lambda request: console.error(f"this process is ended by {request.reason}"))
    with (
        tempfile.TemporaryDirectory(prefix=task.name) as scratch,
        signals.listening(),
        signals.uninterrupted(),
        last_words,
    ):
        try:
            interruptible = signals.interruptible(signals.BEFORE_RUN_SECONDS)
            with console.working("starting TensorFlow"), _importing(), interruptible:
                stages = [] if task.serves else resolve_local_weights(bind(plan, job.experiment), job.experiment)
                stages = resolve_other_run(stages, None)
                servers = import_module("stages.distribution.cluster_strategies")
            pulse.beat()
            if task.meet is not None:
                _wait_for_members(task.meet, console, summary)
            if task.serves:
                return _serve(servers, task)
            cache = job.experiment.outputs / "cache"
            StageRunner(Path(scratch), cache, Tracker(), console, summary).run(stages)
        except Interrupted as interrupted:
            if interrupted.exit_code == FAILED:
                console.error(f"this process is ended by {interrupted}")
            return interrupted.exit_code
        except Exception as error:
            console.error(f"{summary.failed_stage}: {one_line(error)}")
            if not isinstance(error, UserError):
                console.error(traceback.format_exc())
            return FAILED
    return DONE


def _importing() -> AbstractContextManager[None]:
    """Returns what is around the imports. In a notebook's process, what lives there now may become garbage later."""
    return imports_kept() if signals.owns_process() else nullcontext()


def _wait_for_members(meet: Callable[[Callable[[str], None]], None], console: Console, summary: Summary) -> None:
    """Waits for the other members; a missing one is recorded as the failure of a stage named `cluster`."""
    began = time.monotonic()
    try:
        meet(console.log)
    except BaseException:
        summary.stages["cluster"] = StageOutcome("failed", time.monotonic() - began)
        raise


def _serve(servers: Any, task: Task) -> int:
    """Serves the chief of a parameter-server cluster until it ends or a signal arrives."""
    serving = servers.Serving(task.cluster["chief"][0])

    def is_over() -> bool:
        pulse.beat()
        return bool(serving.is_over())

    try:
        signals.until(is_over)
    except Interrupted as interrupted:
        with signals.ending(interrupted.exit_code):
            serving.wait(LINGER_SECONDS)
        raise
    return DONE
