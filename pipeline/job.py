"""One job from its configuration to its exit code: plan, record, run, summary."""

import json
import tempfile
import time
import traceback
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from omegaconf import OmegaConf

from pipeline import provenance
from pipeline.cluster import Task
from pipeline.config import Experiment
from pipeline.console import Console
from pipeline.plan import PlannedStage, make_plan
from pipeline.rules import check_rules
from pipeline.runner import bind, failed_stage, one_line, run_stages
from pipeline.secrets import redact
from pipeline.signals import Interrupted, as_exceptions, deferred, ignored
from pipeline.summary import Summary
from pipeline.tracking.params import of_configuration
from pipeline.tracking.tracker import NullTracker, Tracker
from stages.errors import UserError

DONE, FAILED, WRONG_CONFIGURATION, SWEEP_FAILED = 0, 1, 2, 3


@dataclass(frozen=True)
class Job:
    """One run to be made.

    folder: of the run; None: a new one under `outputs/runs`.
    parent: the id of the sweep's run, and `mlflow_experiment` its experiment; None where the job is no sweep's.
    """

    experiment: Experiment
    overrides: tuple[str, ...] = ()
    folder: Path | None = None
    parent: str | None = None
    mlflow_experiment: str | None = None


def prepare(experiment: Experiment) -> tuple[PlannedStage, ...]:
    """Returns the plan of an experiment that can work.

    Raises:
        UserError: before TensorFlow is imported and before anything is recorded.
    """
    check_rules(experiment)
    return make_plan(experiment)


def work(job: Job, plan: Sequence[PlannedStage], console: Console, task: Task | None = None) -> int:
    """Runs the stages of `job` in this process and returns its exit code.

    Args:
        task: the place of this process in a cluster; only the chief records.
    """
    if task is not None and not task.is_chief:
        return assist(job, plan, console, task)
    run: _Run | None = None
    code, began = DONE, time.monotonic()
    with as_exceptions():
        try:
            with console.working("starting TensorFlow and MLflow"):
                stages = bind(plan, job.experiment)
                with deferred():  # what came meanwhile is raised here, when there is a run to end
                    run = _begin(job)
            began = time.monotonic()
            console.open_log(run.folder / "pipeline.log")
            _describe(job, run)
            run_stages(stages, run.folder, run.tracker, console, run.summary)
            run.summary.status = "FINISHED"
        except BaseException as error:
            if run is None and isinstance(error, Interrupted):
                return error.exit_code
            if run is None:
                raise
            code = _failed(error, run, console)
        with ignored():
            run.summary.seconds = time.monotonic() - began
            return _end(run, code, console)


def assist(job: Job, plan: Sequence[PlannedStage], console: Console, task: Task) -> int:
    """Does another member's part in `job`, and returns the exit code: the same stages, of which nothing is kept."""
    if task.serves:
        import_module("stages.cluster").serve(task.cluster["chief"][0])
        return DONE
    with console.working("starting TensorFlow"):
        stages = bind(plan, job.experiment)
    summary = Summary(None, "RUNNING", job.experiment.name, "", {})
    with tempfile.TemporaryDirectory(prefix=task.name) as scratch:
        try:
            run_stages(stages, Path(scratch), NullTracker(), console, summary)
        except Exception as error:
            console.error(f"{failed_stage(summary)}: {one_line(error)}")
            if not isinstance(error, UserError):
                console.error(traceback.format_exc())
            return FAILED
    return DONE


@dataclass(frozen=True)
class _Run:
    """A job that has begun."""

    tracker: Tracker
    folder: Path
    summary: Summary
    code: provenance.CodeState | None


def _begin(job: Job) -> _Run:
    """Starts the tracked run, and makes its folder."""
    experiment, tracker = job.experiment, NullTracker()  # type: Experiment, Tracker
    short, started = uuid.uuid4().hex[:8], time.strftime("%Y%m%d-%H%M%S")
    code = provenance.code_state() if experiment.tracking.kind != "off" else None
    if experiment.tracking.kind != "off":
        from pipeline.tracking.mlflow_tracker import MlflowTracker  # seconds to import

        name = job.folder.name if job.folder else f"{experiment.name} {started}"
        tags = {**experiment.tags, **_origin(code)}
        where = job.mlflow_experiment or experiment.name
        tracker = MlflowTracker.start(experiment.tracking, experiment.outputs, where, name, tags, job.parent)
        short = (tracker.run_id or short)[:8]
    folder = job.folder or experiment.outputs / "runs" / experiment.name / f"{started}-{short}"
    summary = Summary(
        run_id=tracker.run_id,
        status="RUNNING",
        name=experiment.name,
        folder=str(folder),
        choices={key: value for key, value in experiment.choices.items() if "/" not in key},
        overrides=list(job.overrides),
        versions=provenance.versions(),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        summary.write(folder)
    except OSError:
        tracker.end("FAILED")
        raise
    return _Run(tracker, folder, summary, code)


def _origin(code: provenance.CodeState | None) -> dict[str, str]:
    state = {"git.commit": code.commit} if code else {}
    if code and code.dirty is not None:
        state["git.dirty"] = str(code.dirty).lower()
    return {"command": provenance.command(), **state}


def _describe(job: Job, run: _Run) -> None:
    """Records all that is known before the first stage: configuration, code, packages, machine."""
    document, tracker = job.experiment.document, run.tracker
    resolved = OmegaConf.create(redact(OmegaConf.to_container(document, resolve=True)))
    (run.folder / "config.yaml").write_text(OmegaConf.to_yaml(resolved))
    chosen = {f"choice/{group}": option for group, option in job.experiment.choices.items() if "/" not in group}
    tracker.params({**of_configuration(document), **chosen})
    tracker.tags({f"version.{name}": version for name, version in provenance.versions().items()})
    tracker.artifact(run.folder / "config.yaml")
    tracker.text(json.dumps(provenance.environment(), indent=2), "environment/environment.json")
    tracker.text(provenance.packages(), "environment/packages.txt")
    if run.code and run.code.diff:
        tracker.text(run.code.diff, "code/diff.patch")


def _failed(error: BaseException, run: _Run, console: Console) -> int:
    """Notes what went wrong, and returns the exit code."""
    summary = run.summary
    if isinstance(error, Interrupted):
        summary.status, summary.error = "KILLED", f"stopped by {error}"
        return error.exit_code
    summary.status, summary.error = "FAILED", str(redact(one_line(error)))
    if not isinstance(error, UserError):
        console.log_only("".join(traceback.format_exception(error)))
        summary.error += f" (traceback in {run.folder / 'pipeline.log'})"
    return FAILED


def _end(run: _Run, code: int, console: Console) -> int:
    """Writes the summary, then ends the tracked run, which may fail; returns the exit code."""
    summary, tracker, stage = run.summary, run.tracker, failed_stage(run.summary) or "recording"
    summary.write(run.folder)
    console.summary(summary, tracker.how_to_open())
    if summary.error:
        console.error(f"{stage}: {summary.error}")
    try:
        if summary.error:
            tracker.tags({"failed_stage": stage, "error": summary.error})
        for name in ("summary.json", "pipeline.log"):
            if (run.folder / name).exists():
                tracker.artifact(run.folder / name)
        tracker.end(summary.status)
    except Exception as error:  # the store has gone; what the run came to stands in its folder
        console.error(f"recording: {one_line(error)}")
        code = code or FAILED
    console.close()
    return code


def end_lost(folder: Path, experiment: Experiment, status: str) -> str | None:
    """Ends a run whose process died before it could, and returns what to say of it; None where it has ended itself."""
    try:
        summary = Summary.read(folder)
    except FileNotFoundError:
        return None
    if summary.status != "RUNNING":
        return None
    summary.status, summary.error = status, "its process was killed or did not answer"
    summary.write(folder)
    if summary.run_id is not None:
        from pipeline.tracking.mlflow_tracker import MlflowTracker

        try:
            MlflowTracker.end_lost(experiment.tracking, experiment.outputs, summary.run_id, status, summary.error)
        except Exception as error:
            return f"recording: {one_line(error)}"
    return f"the run is {status}: {summary.error}"


def exit_code(codes: Sequence[int]) -> int:
    """Returns the exit code of a sweep whose jobs gave `codes`: that of an interruption, else 3 if any failed."""
    interrupted = [code for code in codes if code in (130, 143)]
    return interrupted[0] if interrupted else SWEEP_FAILED if any(codes) else DONE
