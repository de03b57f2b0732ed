"""One job from its configuration to its exit code: plan, record, run, summary."""

import json
import time
import traceback
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import OmegaConf

from pipeline import provenance
from pipeline.config import Experiment
from pipeline.console import Console
from pipeline.plan import PlannedStage, make_plan
from pipeline.rules import check_rules
from pipeline.runner import bind, failed_stage, one_line, run_stages
from pipeline.secrets import redact
from pipeline.signals import Interrupted, as_exceptions
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


def run_job(job: Job, console: Console) -> int:
    """Runs `job` and returns its exit code.

    Raises:
        UserError: where the configuration is wrong; nothing has been recorded then.
    """
    plan = prepare(job.experiment)
    console.plan(job.experiment, plan)
    if job.experiment.dry_run:
        return DONE
    with as_exceptions():
        try:
            with console.working("starting TensorFlow and MLflow"):
                stages = bind(plan, job.experiment)
                tracker, folder = _begin(job)
        except Interrupted as signal:
            return signal.exit_code
        summary = Summary(
            run_id=tracker.run_id,
            status="RUNNING",
            name=job.experiment.name,
            folder=str(folder),
            choices={key: value for key, value in job.experiment.choices.items() if "/" not in key},
            overrides=list(job.overrides),
            versions=provenance.versions(),
        )
        began = time.monotonic()
        code = DONE
        try:
            console.open_log(folder / "pipeline.log")
            _describe(job, tracker, folder)
            run_stages(stages, folder, tracker, console, summary)
            summary.status = "FINISHED"
        except BaseException as error:
            code = _failed(error, summary, console, folder)
        summary.seconds = time.monotonic() - began
        _end(summary, tracker, console, folder)
    return code


def _begin(job: Job) -> tuple[Tracker, Path]:
    """Starts the tracked run, and makes its folder."""
    experiment, tracker = job.experiment, NullTracker()  # type: Experiment, Tracker
    short = uuid.uuid4().hex[:8]
    started = time.strftime("%Y%m%d-%H%M%S")
    if experiment.tracking.kind != "off":
        from pipeline.tracking.mlflow_tracker import MlflowTracker  # seconds to import

        name = job.folder.name if job.folder else f"{experiment.name} {started}"
        tags = {**experiment.tags, **_origin()}
        where = job.mlflow_experiment or experiment.name
        tracker = MlflowTracker.start(experiment.tracking, experiment.outputs, where, name, tags, job.parent)
        short = (tracker.run_id or short)[:8]
    folder = job.folder or experiment.outputs / "runs" / experiment.name / f"{started}-{short}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        tracker.end("FAILED")
        raise
    return tracker, folder


def _origin() -> dict[str, str]:
    code = provenance.code_state()
    state = {"git.commit": code.commit, "git.dirty": str(code.dirty).lower()} if code else {}
    return {"command": provenance.command(), **state}


def _describe(job: Job, tracker: Tracker, folder: Path) -> None:
    """Records all that is known before the first stage: configuration, code, packages, machine."""
    document = job.experiment.document
    resolved = OmegaConf.create(redact(OmegaConf.to_container(document, resolve=True)))
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(resolved))
    chosen = {f"choice/{group}": option for group, option in job.experiment.choices.items() if "/" not in group}
    tracker.params({**of_configuration(document), **chosen})
    tracker.tags({f"version.{name}": version for name, version in provenance.versions().items()})
    tracker.artifact(folder / "config.yaml")
    tracker.text(json.dumps(provenance.environment(), indent=2), "environment/environment.json")
    tracker.text(provenance.packages(), "environment/packages.txt")
    code = provenance.code_state()
    if code and code.diff:
        tracker.text(code.diff, "code/diff.patch")


def _failed(error: BaseException, summary: Summary, console: Console, folder: Path) -> int:
    """Notes what went wrong, and returns the exit code."""
    if isinstance(error, Interrupted):
        summary.status, summary.error = "KILLED", f"stopped by {error}"
        return error.exit_code
    summary.status, summary.error = "FAILED", str(redact(one_line(error)))
    if not isinstance(error, UserError):
        console.log_only("".join(traceback.format_exception(error)))
        summary.error += f" (traceback in {folder / 'pipeline.log'})"
    return FAILED


def _end(summary: Summary, tracker: Tracker, console: Console, folder: Path) -> None:
    stage = failed_stage(summary) or "recording"
    console.summary(summary, tracker.how_to_open())
    if summary.error:
        console.error(f"{stage}: {summary.error}")
        tracker.tags({"failed_stage": stage, "error": summary.error})
    summary.write(folder)
    console.close()
    for name in ("summary.json", "pipeline.log"):
        tracker.artifact(folder / name)
    tracker.end(summary.status)


def exit_code(codes: Sequence[int]) -> int:
    """Returns the exit code of a sweep whose jobs gave `codes`: that of an interruption, else 3 if any failed."""
    interrupted = [code for code in codes if code in (130, 143)]
    return interrupted[0] if interrupted else SWEEP_FAILED if any(codes) else DONE
