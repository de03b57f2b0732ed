"""Record the facts about a run: settings, code, packages and machine before the stages, and results after them."""

import json
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module

from omegaconf import OmegaConf

from pipeline.config.names import split_override
from pipeline.console import Console
from pipeline.decide.decision import Decision, Fork, Reuse
from pipeline.execute.claim import recorded_overrides
from pipeline.execute.facts import NOTE, begun_tags, run_description, run_name
from pipeline.execute.surroundings import place_tags
from pipeline.provenance import code_state, source_digest
from pipeline.provenance.code_state import CodeState, command, versions
from pipeline.provenance.identity import WITHOUT_EFFECT, is_among
from pipeline.redaction import redact
from pipeline.runs.summary import UNITS, Summary, is_lower_better
from pipeline.system import machine
from pipeline.tracking.params import model_name, run_params
from pipeline.tracking.stored_run import RunSpec
from pipeline.tracking.tracker import Tracker, no_end
from pipeline.tracking.views import COMBINATION
from stages.errors import UserError
from stages.settings.results import EvaluateSettings, ExportSettings


def begin(
    decision: Decision,
    before: Summary | None,
    warn: Callable[[str], None],
    follower_end: Callable[[], str | None] = no_end,
) -> Tracker:
    """Write the first files to the claimed folder of the run and start its tracked run; return its tracker.

    The files come first, so that the same command finds the run whenever the process dies.

    Args:
        decision: What to do.
        before: The summary of the run that is resumed, if any. It is restored if this fails.
        warn: Gets a line about each problem with the store.
        follower_end: Returns how the follower of the run has ended; None while it works.

    Raises:
        UserError: If the folder or the store cannot be used. Nothing of a new run remains then.
    """
    experiment, run = decision.experiment, decision.folder
    source_digest.refuse_edited(decision.sources)
    code = decision.part.code if decision.part else code_state.code_state()
    try:
        code_state.unknown_to_git(experiment.outputs)
        if isinstance(decision.origin, Fork) and not run.can_start:
            checkpoints = import_module("stages.checkpoints.forks")  # needs TensorFlow, which has been imported by now
            forked = decision.origin.run
            name = forked.run_id[:8] if forked.run_id else forked.folder.name
            source = forked.folder / "checkpoints"
            checkpoints.start_from(source, run.checkpoints, experiment.fork_weights, name)
        decision.sources.write(run.path)
        run.write()
        tracker = Tracker(_spec(decision), warn, follower_end)
        tracker.begin(_tags(decision, code))
    except (UserError, OSError):
        with suppress(OSError):
            if before is not None:
                run.write(before)
            else:
                run.forget_records()  # so the folder is deleted when its claim ends
        raise
    if tracker.run_id not in (None, run.summary.run_id):
        run.summary.run_id = tracker.run_id
        run.write()
    if code and code.diff:
        tracker.text(code.diff, "code/diff.patch")
    return tracker


def _name(decision: Decision) -> str:
    """Return the name of the run in MLflow."""
    experiment = decision.experiment
    if decision.part is not None:
        return decision.part.name
    return run_name(recorded_overrides(experiment), experiment.choices, decision.folder.path)


def _tags(decision: Decision, code: CodeState | None) -> dict[str, str]:
    """Return the tags with which the run begins in MLflow."""
    experiment, part = decision.experiment, decision.part
    tags = begun_tags(experiment.tracking, code, recorded_overrides(experiment)) | place_tags()
    if experiment.debug is not None:
        tags["debug"] = experiment.debug.kind
    if part is not None and part.combination:
        tags[COMBINATION] = str(redact(part.combination))
    if isinstance(decision.origin, Reuse):
        tags["reused_run"] = decision.origin.run.run_id or str(decision.origin.run.folder)
    if isinstance(decision.origin, Fork):
        tags["forked_from"] = decision.origin.run.run_id or str(decision.origin.run.folder)
        tags["fork_weights"] = experiment.fork_weights
    return tags


def _spec(decision: Decision) -> RunSpec:
    experiment, part = decision.experiment, decision.part
    return RunSpec(
        settings=experiment.tracking,
        outputs=experiment.outputs,
        folder=decision.folder.path,
        experiment=part.experiment if part else experiment.name,
        name=_name(decision),
        parent=part.sweep_id if part else None,
        is_measured=experiment.tracking.system_metrics,
    )


def describe(decision: Decision, tracker: Tracker) -> None:
    """Record the configuration, code, packages and machine before the first stage."""
    experiment, run = decision.experiment, decision.folder
    resolved = OmegaConf.create(redact(OmegaConf.to_container(experiment.document, resolve=True)))
    config = run.write_config(OmegaConf.to_yaml(resolved))
    given = [split_override(text)[0] for text in recorded_overrides(experiment)]
    tracker.params(run_params(experiment.document, experiment.choices, given, WITHOUT_EFFECT))
    tags = {f"version.{name}": version for name, version in versions().items()}
    tracker.tags({**tags, "identity": run.summary.identity or "", "code": run.summary.code or ""})
    tracker.artifact(config)
    tracker.artifact(run.path / source_digest.NAME, "code")
    surroundings = {"machine": machine.facts(), "versions": versions()}
    tracker.text(json.dumps(surroundings, indent=2), "environment/environment.json")
    tracker.text(code_state.packages(), "environment/packages.txt")


def register(decision: Decision, tracker: Tracker, console: Console) -> None:
    """Record that the exported model is to be registered (`export.register`), and which alias may move to it."""
    experiment, summary = decision.experiment, decision.folder.summary
    settings = experiment.of("export", ExportSettings)
    exports = any(stage.is_needed for stage in decision.plan if stage.name == "export")
    if settings is None or settings.register is None or not exports:
        return
    if experiment.debug is not None:
        console.log(f"the model is not registered as {settings.register}, because this is a debug run")
        return
    evaluated = experiment.of("evaluate", EvaluateSettings) or EvaluateSettings
    alias = settings.alias
    if alias is not None and (known := summary.facts.known_test_images):
        problem = f"the model was trained on {known} of its test examples"
        console.warn(f"the alias {alias} of {settings.register} does not move to this model: {problem}")
        alias = None
    tracker.register(settings.register, alias, settings.promote_if, evaluated.confidence)


def record_results(decision: Decision, summary: Summary, tracker: Tracker) -> None:
    """Record the description of a run that ends, the durations of its stages, and the view of all runs.

    Args:
        decision: The run.
        summary: Its summary, with its final status.
        tracker: Records it.
    """
    experiment, part = decision.experiment, decision.part
    model = model_name(part.experiment if part else summary.name, _name(decision))
    tracker.tags({NOTE: run_description(summary, command(summary.overrides), experiment.tracking.note, model)})
    seconds = {name: stage.seconds for name, stage in summary.stages.items() if stage.status != "skipped"}
    seconds["start"] = summary.start_seconds  # the last metrics, so a run's page begins with its scores
    tracker.metrics({f"{name}/seconds": value for name, value in seconds.items()})
    if part is None and experiment.debug is None and summary.status == "FINISHED":
        _record_view(summary, tracker)


def _record_view(summary: Summary, tracker: Tracker) -> None:
    """Record the view of all runs of the experiment, with a column for each setting that this run was given."""
    primary = summary.primary
    given = [split_override(text)[0] for text in summary.overrides]
    settings = ["model", "data", *(name for name in given if not is_among(name, WITHOUT_EFFECT))]
    rates = [f"train/{unit}_per_second" for unit in UNITS]
    wanted = dict.fromkeys((f"val/best_{primary}", f"test/{primary}", "val/best_loss", *rates))
    if metrics := [name for name in wanted if name in summary.metrics]:
        tracker.view("All runs", settings, metrics, is_lower_better(metrics[0], summary.task))
