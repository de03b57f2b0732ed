"""The work of one process on a job: the stages, with all that is recorded of them."""

import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

from pipeline.begin import Run, begin, describe
from pipeline.cluster import Task
from pipeline.console import Console
from pipeline.end import end, failed
from pipeline.job import DONE, FAILED, Job
from pipeline.plan import PlannedStage
from pipeline.runner import bind, failed_stage, one_line, run_stages
from pipeline.signals import Interrupted, as_exceptions, deferred, ignored
from pipeline.summary import Summary
from pipeline.tracking.tracker import NullTracker
from pipeline.tracking.weights import with_local_weights
from stages.errors import UserError


def work(job: Job, plan: Sequence[PlannedStage], console: Console, task: Task | None = None) -> int:
    """Runs the stages of `job` in this process and returns its exit code.

    Args:
        task: the place of this process in a cluster; only the chief records.
    """
    if task is not None and not task.is_chief:
        return assist(job, plan, console, task)
    code = DONE
    started = job.started if job.started is not None else time.monotonic()
    with ExitStack() as held, as_exceptions():
        run: Run | None = None
        try:
            with console.working("starting TensorFlow and MLflow"):
                stages = with_local_weights(bind(plan, job.experiment), job.experiment)
                with deferred():  # what came meanwhile is raised here, when there is a run to end
                    run = begin(job, console, held)
            console.open_log(run.folder / "pipeline.log")
            describe(job, run)
            run.summary.begin_stages(started)
            run.tracker.metrics({"start/seconds": run.summary.start_seconds})
            run_stages(stages, run.folder, job.experiment.outputs / "cache", run.tracker, console, run.summary)
            run.summary.status = "FINISHED"
        except BaseException as error:
            if run is None and isinstance(error, Interrupted):
                return error.exit_code
            if run is None:
                raise
            with ignored():
                code = failed(error, run, console)
        with ignored():
            return end(run, code, console, started)


def assist(job: Job, plan: Sequence[PlannedStage], console: Console, task: Task) -> int:
    """Does another member's part in `job`, and returns the exit code: the same stages, of which nothing is kept."""
    if task.serves:
        import_module("stages.cluster").serve(task.cluster["chief"][0])
        return DONE
    with console.working("starting TensorFlow"):
        stages = with_local_weights(bind(plan, job.experiment), job.experiment)
    summary = Summary(None, "RUNNING", job.experiment.name, "", {})
    with tempfile.TemporaryDirectory(prefix=task.name) as scratch, as_exceptions():
        try:
            run_stages(stages, Path(scratch), job.experiment.outputs / "cache", NullTracker(), console, summary)
        except Interrupted as interrupted:
            return interrupted.exit_code
        except Exception as error:
            console.error(f"{failed_stage(summary)}: {one_line(error)}")
            if not isinstance(error, UserError):
                console.error(traceback.format_exc())
            return FAILED
    return DONE
