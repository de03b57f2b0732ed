"""Runs a job in this process, from the first file in its folder to the store's last status."""

import json
import os
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipeline.config.names import split_override
from pipeline.console import Console
from pipeline.exit_codes import DONE, FAILED
from pipeline.planning.earlier import other_run, reused_run
from pipeline.planning.job import Job, PrunedError, claimed, first_summary, recorded_overrides
from pipeline.planning.plan import PlannedStage
from pipeline.provenance import code_state, source_digest
from pipeline.provenance.code_state import CodeState, command, versions
from pipeline.provenance.identity import WITHOUT_EFFECT, is_among
from pipeline.redaction import redact, redact_file
from pipeline.run.child import code_of
from pipeline.run.engine import OPEN_PORTS, Task
from pipeline.run.facts import NOTE, begun_tags, run_description, run_name, show_next, show_summary, show_times
from pipeline.run.reporter import RunReporter
from pipeline.run.runner import StageRunner, bind
from pipeline.run_folder.summary import NAME, PRUNED, UNITS, Summary, is_lower_better, one_line
from pipeline.system import machine, signals
from pipeline.system.environment import imports_kept, light_imports
from pipeline.system.signals import Interrupted
from pipeline.system.streams import no_room
from pipeline.tracking import store_process
from pipeline.tracking.params import model_name, run_params
from pipeline.tracking.pending import mark_killed, record_end
from pipeline.tracking.store import Store
from pipeline.tracking.store_process import StoreClient
from pipeline.tracking.stored_run import RunSpec, open_run
from pipeline.tracking.tracker import Tracker, open_tracker
from pipeline.tracking.views import COMBINATION
from stages.checkpoints.names import START, checkpoint_files
from stages.errors import UserError
from stages.reuse import KNOWN_IMAGES
from stages.settings.model import ModelSettings
from stages.settings.results import EvaluateSettings, ExportSettings
from stages.storage.atomic import atomic_write

LINGER_SECONDS = 7.0
"""Grace period, in seconds, of a server that is asked to end, as its chief may be saving."""


@dataclass
class Run:
    """A job that has begun. code: the state of the repository, if there is one."""

    job: Job
    folder: Path
    summary: Summary
    tracker: Tracker
    code: CodeState | None


def work(job: Job, plan: Sequence[PlannedStage], console: Console, task: Task | None = None) -> int:
    """Run the stages of `job` in this process and return its exit code.

    Args:
        task: that of this process in a cluster; only the chief records.
    """
    if task is not None and not task.is_chief:
        return assist(job, plan, console, task)
    code = DONE
    with ExitStack() as resources, signals.listening(), signals.uninterrupted():
        if (limit := job.experiment.job_timeout_seconds) is not None:
            signals.time_out(job.started + limit, limit)
        job = resources.enter_context(claimed(job))
        folder = job.run_folder
        store = Store(job.experiment.tracking, job.experiment.outputs)
        assert job.lock is not None
        served = StoreClient(job.store) if job.store else store_process.start(store, folder, job.lock)
        if served is not None:
            resources.callback(served.close)
        signals.on_forced_exit(lambda request: mark_killed(folder, store, request, console, served is None))
        with console.working("starting TensorFlow and MLflow"), _importing():
            with signals.interruptible(signals.BEFORE_RUN_SECONDS):
                stages = bind(plan, job.experiment, other_run(job.experiment))
            signals.beat()
            run = begin(job, console, served)
        try:
            signals.check()  # raised here, where there is a run to end
            console.open_log(folder / "pipeline.log")
            describe(run)
            run.summary.begin_stages(job.started)
            if task is not None and task.meet is not None:
                console.warn(OPEN_PORTS)
                task.meet(console.log)
            cache = job.experiment.outputs / "cache"
            reporter = RunReporter(run.tracker, console, run.summary, job.on_epoch, job.turn)
            StageRunner(folder, cache, reporter).run(stages)
            if not job.only_trains:
                register(run, console)
            run.summary.status = "FINISHED"
        except PrunedError as pruned:
            run.summary.status = "FINISHED"  # it is over, and the stages after training have not run
            run.summary.facts[PRUNED] = pruned.epoch
            run.tracker.tags({PRUNED: str(pruned.epoch)})
            console.log(f"pruned after epoch {pruned.epoch}: other trials had better results by then")
        except BaseException as error:
            with signals.ending():
                code = fail(error, run, console)
        with signals.ending(code):
            return end(run, code, console)


def assist(job: Job, plan: Sequence[PlannedStage], console: Console, task: Task) -> int:
    """Run the stages as a member other than the chief, without keeping results; return the exit code."""
    summary = Summary(None, "RUNNING", job.experiment.name, "", {})

    def run(scratch: Path) -> int:
        interruptible = signals.interruptible(signals.BEFORE_RUN_SECONDS)
        with console.working("starting TensorFlow"), _importing(), interruptible:
            stages = [] if task.serves else bind(plan, job.experiment)
            servers = import_module("stages.strategy")
        signals.check()
        if task.meet is not None:
            task.meet(console.log)
        if task.serves:
            model = job.experiment.of("model", ModelSettings)
            return _serve(servers, task, model is not None and model.precision.tf32)
        StageRunner(scratch, job.experiment.outputs / "cache", RunReporter(Tracker(), console, summary)).run(stages)
        return DONE

    with tempfile.TemporaryDirectory(prefix=task.name) as scratch, signals.listening(), signals.uninterrupted():
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
    except Interrupted as interrupted:
        with signals.ending(interrupted.exit_code):
            serving.wait(LINGER_SECONDS)
        raise
    return DONE


def begin(job: Job, console: Console, served: StoreClient | None = None) -> Run:
    """Write the first files to the run's folder, which is claimed, and begin the tracked run.

    The files come first, so that the same command finds the run whenever the process dies.

    Args:
        served: the store, where another process talks to it.

    Raises:
        UserError: where the folder or the store cannot be used; nothing of a new run is left.
    """
    experiment, folder = job.experiment, job.run_folder
    code = source_digest.sources(experiment)
    source_digest.refuse_edited(code)
    state = job.sweep.code if job.sweep else code_state.code_state()
    summary = first_summary(job, code.digest)
    try:
        code_state.unknown_to_git(experiment.outputs)
        if job.forked is not None:
            checkpoints = import_module("stages.checkpoints.forks")  # with TensorFlow, which is imported by now
            before = Path(job.forked.folder)
            name = job.forked.run_id[:8] if job.forked.run_id else before.name
            checkpoints.start_from(before / "checkpoints", folder / "checkpoints", experiment.fork_weights, name)
        code.write(folder)
        summary.write(folder)
        tracker = open_tracker(_spec(job, folder, state), console.warn, served.open_run if served else open_run)
    except (UserError, OSError):
        if job.resumed is not None:  # a new run goes with its claim
            with suppress(OSError):
                job.resumed.write(folder)  # as it was
        raise
    if tracker.run_id not in (None, summary.run_id):
        summary.run_id = tracker.run_id
        summary.write(folder)
    return Run(job, folder, summary, tracker, state)


def _name(job: Job, folder: Path) -> str:
    return job.run_name or run_name(recorded_overrides(job), job.experiment.choices, folder)


def _spec(job: Job, folder: Path, code: CodeState | None) -> RunSpec:
    experiment = job.experiment
    tags = begun_tags(experiment.tracking, code, recorded_overrides(job)) | dict(job.tags)
    if (reused := reused_run(experiment)) is not None:
        tags["reused_run"] = reused.run_id or reused.folder
    if experiment.debug is not None:
        tags["debug"] = experiment.debug.kind
    if job.combination:
        tags[COMBINATION] = str(redact(job.combination))
    if job.forked is not None:
        tags["forked_from"] = job.forked.run_id or job.forked.folder
        tags["fork_weights"] = experiment.fork_weights
    return RunSpec(
        settings=experiment.tracking,
        outputs=experiment.outputs,
        folder=folder,
        experiment=job.sweep.experiment if job.sweep else experiment.name,
        name=_name(job, folder),
        parent=job.sweep.run_id if job.sweep else None,
        tags=tags,
        is_measured=experiment.tracking.system_metrics,
    )


def describe(run: Run) -> None:
    """Record the facts before the first stage: configuration, code, packages, machine."""
    experiment, tracker = run.job.experiment, run.tracker
    resolved = OmegaConf.create(redact(OmegaConf.to_container(experiment.document, resolve=True)))
    atomic_write(run.folder / "config.yaml", OmegaConf.to_yaml(resolved))
    given = [split_override(text)[0] for text in recorded_overrides(run.job)]
    tracker.params(run_params(experiment.document, experiment.choices, given, WITHOUT_EFFECT))
    tags = {f"version.{name}": version for name, version in versions().items()}
    tracker.tags({**tags, "identity": run.summary.identity or "", "code": run.summary.code or ""})
    tracker.artifact(run.folder / "config.yaml")
    tracker.artifact(run.folder / source_digest.NAME, "code")
    surroundings = {"machine": machine.facts(), "versions": versions()}
    tracker.text(json.dumps(surroundings, indent=2), "environment/environment.json")
    tracker.text(code_state.packages(), "environment/packages.txt")
    if run.code and run.code.diff:
        tracker.text(run.code.diff, "code/diff.patch")


def register(run: Run, console: Console) -> None:
    """Record that the model is to be registered: `export.register`; its alias, if its test metrics can be believed."""
    experiment = run.job.experiment
    settings = experiment.of("export", ExportSettings)
    if settings is None or settings.register is None:
        return
    if experiment.debug is not None:
        console.log(f"the model is not registered as {settings.register}, because this is a debug run")
        return
    evaluated = experiment.of("evaluate", EvaluateSettings) or EvaluateSettings
    alias = settings.alias
    if alias is not None and (known := run.summary.facts.get(KNOWN_IMAGES)):
        problem = f"the model was trained on {known} of its test examples"
        console.warn(f"the alias {alias} of {settings.register} does not move to this model: {problem}")
        alias = None
    run.tracker.register(settings.register, alias, settings.promote_if, evaluated.confidence)


def fail(error: BaseException, run: Run, console: Console) -> int:
    """Set the summary's status and error from what ended the stages early; return the exit code."""
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
        (console.log if os.environ.get("HYDRA_FULL_ERROR") == "1" else console.log_only)(text)
        summary.error += f" (traceback in {run.folder / 'pipeline.log'})"
    return FAILED


def end(run: Run, code: int, console: Console) -> int:
    """Write the summary and end the tracked run; return the exit code.

    The order is important: once the summary has the status, nothing of the run is repeated, whenever the process dies;
    the store's status comes last, when it has everything else.
    """
    summary, tracker, turn, experiment = run.summary, run.tracker, run.job.turn, run.job.experiment
    started = run.job.started + turn.waited
    summary.take_time(started)
    if (peak := machine.peak_memory_mib()) is not None:
        summary.metrics["memory/peak_mib"] = peak
        tracker.metrics({"memory/peak_mib": peak})
    summary.ending = summary.status == "FINISHED"
    try:
        summary.write(run.folder)
    except OSError as error:
        console.error(f"{run.folder / NAME} cannot be written ({error.strerror})")
        code = code or FAILED
    if summary.status == "FINISHED":
        keep_last_checkpoint(run.folder)
    redact_file(run.folder)  # files that stages and callbacks have written, but not recorded
    show_summary(summary, tracker.links, console)
    if summary.error:
        console.error(f"{summary.failed_stage}: {summary.error}")
    model = model_name(run.job.sweep.experiment if run.job.sweep else summary.name, _name(run.job, run.folder))
    tracker.tags({NOTE: run_description(summary, command(summary.overrides), experiment.tracking.note, model)})
    seconds = {name: stage.seconds for name, stage in summary.stages.items() if stage.status != "skipped"}
    seconds["start"] = summary.start_seconds  # last of all metrics, so that a run's page begins with its scores
    tracker.metrics({f"{name}/seconds": value for name, value in seconds.items()})
    show_runs(run)
    record_end(tracker, run.folder, summary)
    if code == DONE:
        turn.has_finished()
    tracker.flush(console.log if summary.status == "FINISHED" else None)
    for line in tracker.notes:
        console.log(line)
    tracker.close()
    summary.ending = False
    summary.take_time(started)  # again, as the store may have taken long
    with suppress(OSError):
        summary.write(run.folder)
    show_times(summary, console)
    if run.job.sweep is None and run.job.experiment.debug is None:
        show_next(summary, run.job.experiment.outputs, console)
    console.close()
    return code


def show_runs(run: Run) -> None:
    """Record the view of all runs of the experiment, with the settings that were given for this one."""
    summary, primary = run.summary, run.summary.primary
    if run.job.sweep is not None or run.job.experiment.debug is not None or summary.status != "FINISHED":
        return
    given = [split_override(text)[0] for text in summary.overrides]
    settings = ["model", "data", *(name for name in given if not is_among(name, WITHOUT_EFFECT))]
    rates = [f"train/{unit}_per_second" for unit in UNITS]
    wanted = dict.fromkeys((f"val/best_{primary}", f"test/{primary}", "val/best_loss", *rates))
    if metrics := [name for name in wanted if name in summary.metrics]:
        run.tracker.view("All runs", settings, metrics, is_lower_better(metrics[0], summary.task))


def keep_last_checkpoint(folder: Path) -> None:
    """Delete the checkpoints that a finished run in `folder` no longer needs: earlier ones, and the start of a fork.

    `fork=` starts from the last checkpoint. A fork that has written none keeps its start.
    """
    by_step = checkpoint_files(folder / "checkpoints")
    unused = [*by_step[:-1], folder / "checkpoints" / START] if by_step else []
    for path in unused:
        with suppress(OSError):  # a leftover does no harm
            path.unlink(missing_ok=True)
