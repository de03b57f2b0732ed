"""Runs the stages of a plan: calls, times and records each."""

import dataclasses
import functools
import inspect
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from pipeline.checks.own_settings import typed
from pipeline.config.experiment import Experiment
from pipeline.console import Console
from pipeline.planning.job import OnEpoch, PrunedError
from pipeline.planning.plan import PlannedStage
from pipeline.redaction.mask import redact, redact_file
from pipeline.run.model_files import write_model_files
from pipeline.run.records import Recorded, clean_metrics, metric_name, recorded
from pipeline.run_folder.finding import folder_of
from pipeline.run_folder.summary import StageOutcome, Summary
from pipeline.source_code.annotations import as_dataclass
from pipeline.system import machine, pulse, signals
from pipeline.system.environment import quiet_stderr
from pipeline.tracking.run_copy import RESULTS
from pipeline.tracking.tracker import Tracker
from pipeline.tracking.weights import local_weights, run_of_model
from stages.errors import UserError
from stages.reporter import Stop
from stages.results import Dataset, Record
from stages.reuse import Reuse, reuse_of
from stages.safe_places import on_safe_place, safe_place
from stages.settings.model import ModelSettings
from stages.settings.results import EvaluateSettings
from stages.storage.atomic import atomic_write


@dataclasses.dataclass(frozen=True)
class BoundStage:
    """A stage with its function imported and its settings typed."""

    planned: PlannedStage
    function: Callable[..., Any]
    settings: Any


class RunReporter:
    """The `stages.reporter.Reporter` of a run."""

    def __init__(self, tracker: Tracker, console: Console, summary: Summary, on_epoch: OnEpoch | None = None) -> None:
        self._on_epoch = on_epoch
        self._tracker = tracker
        self._console = console
        self._summary = summary
        self._stage = ""
        self._owners: dict[str, str] = {}
        self._warned: set[str] = set()

    def begin(self, stage: str) -> None:
        """Makes `stage` the one that reports from now on."""
        self._stage = stage
        self._owners.setdefault(f"{stage}/seconds", "the runner")

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        metrics, no_numbers, warnings = clean_metrics(values)
        for line in warnings:
            self.warn_once(f"{self._stage}: {line}")
        for name, value in no_numbers.items():
            self.warn_once(f"{self._stage}: the metric {name} is a {type(value).__name__}, not a number: not recorded")
        by_name = {self._own_name(name): value for name, value in metrics.items()}
        with signals.uninterrupted():
            self._summary.metrics.update(by_name)
            self._tracker.metrics(by_name, int(step))
        if self._on_epoch is not None and step > 0:
            self._on_epoch(by_name, int(step))
        if step > 0:
            pulse.epoch(int(step), by_name)

    def weights(self, chosen: Mapping[str, Any]) -> None:
        """Records the epoch whose weights the run evaluates and exports."""
        with signals.uninterrupted():
            self._summary.weights = dict(chosen)
            self._tracker.tags({f"weights.{name}": str(value) for name, value in chosen.items()})

    def warn_once(self, line: str) -> None:
        if line not in self._warned:
            self._warned.add(line)
            self.warn(line)

    def _own_name(self, name: str) -> str:
        """Returns the name under which the stage records its metric, which does not overwrite another stage's."""
        owner = self._owners.setdefault(name, self._stage)
        if owner == self._stage:
            return name
        self.warn_once(f"{self._stage}: {name} is a metric of {owner}; this one is recorded as {self._stage}/{name}")
        self._owners.setdefault(f"{self._stage}/{name}", self._stage)
        return f"{self._stage}/{name}"

    def progress(self, done: int, total: int, images_per_second: float | None, note: str) -> None:
        with signals.uninterrupted():
            self._console.progress(done, total, images_per_second, note)
        safe_place()

    def doing(self, activity: str) -> None:
        self._console.doing(activity)

    def log(self, line: str) -> None:
        with signals.uninterrupted():
            self._console.log(line)

    def warn(self, line: str) -> None:
        with signals.uninterrupted():
            self._console.warn(line)

    def resumed(self, step: int) -> None:
        with signals.uninterrupted():
            self._summary.resumed_from_step = step
            self._tracker.tags({"resumed_from_step": str(step)})
            self._console.log(f"resuming training after step {step}")

    def is_secret(self, name: str, value: object) -> bool:
        return bool(redact({name: value}) != {name: value})

    def stopping(self) -> AbstractContextManager[Stop]:
        return signals.stopping()


def bind(plan: Sequence[PlannedStage], experiment: Experiment) -> list[BoundStage]:
    """Imports all stages, and with them TensorFlow, and binds their settings.

    Raises:
        UserError: where a stage cannot be imported, or its settings are not of the type that it declares.
    """
    bound = []
    with quiet_stderr():
        for planned in plan:
            function = planned.load()
            name = planned.name
            settings = _typed(function, experiment.groups[name], experiment.settings[name], experiment.document)
            bound.append(BoundStage(planned, function, settings))
    return bound


def run_stages(
    stages: Sequence[BoundStage],
    folder: Path,
    cache: Path,
    tracker: Tracker,
    console: Console,
    summary: Summary,
    on_epoch: OnEpoch | None = None,
) -> None:
    """Runs `stages` in order. `summary` is filled as they end, so that it is right wherever a stage raises.

    Args:
        folder: the run's. cache: what runs share, and what may be deleted.

    Raises:
        PrunedError: where `on_epoch` ends the run.
    """
    reporter = RunReporter(tracker, console, summary, on_epoch)
    provided = {"reporter": reporter, "folder": folder, "cache": cache}
    results: dict[str, Any] = {}
    records: list[Record] = []
    on_exit: list[Callable[[], object]] = []
    summary.stages.update({stage.planned.name: StageOutcome("skipped") for stage in stages})
    on_safe_place(_visit_safe_place)
    for index, stage in enumerate(stages):
        name = stage.planned.name
        if not stage.planned.is_needed:
            continue
        reporter.begin(name)
        began = time.perf_counter()
        console.doing(name)
        try:
            _visit_safe_place()
            with signals.interruptible():
                result = _result(stage, results, provided)
            _check_result(stage, result, stages[index + 1 :])
            _check_examples(result, stages[index + 1 :])
        except BaseException as error:
            how = "ran" if isinstance(error, PrunedError) else "failed"
            summary.stages[name] = StageOutcome(how, time.perf_counter() - began)
            raise
        finally:
            console.end_progress()
        seconds = time.perf_counter() - began
        summary.stages[name] = StageOutcome("ran" if stage.planned.saved is None else "reused", seconds)
        record_of_stage = recorded(name, stage.planned.makes, result, folder, records)
        _record(record_of_stage, name, reporter, tracker, summary)
        _record_models(record_of_stage, list(results.values()), tracker, summary)
        on_exit += record_of_stage.on_exit
        if isinstance(record := getattr(result, "record", None), Record):
            records.append(record)
        summary.metrics[f"{name}/seconds"] = seconds
        devices = record_of_stage.summary.get("devices")
        if devices and machine.gpus() and not any("GPU" in device for device in devices):
            console.warn(
                f"this machine has {len(machine.gpus())} GPU(s), and none is used; TensorFlow may need the extra gpu"
            )
        results[stage.planned.makes] = result
    _visit_safe_place()
    for leave in on_exit:
        with signals.interruptible():
            leave()


def _visit_safe_place() -> None:
    pulse.beat()
    signals.check()


def _result(stage: BoundStage, results: Mapping[str, Any], provided: Mapping[str, Any]) -> Any:
    """Returns the result of a stage: that of an earlier run, which is kept in this run, too, or else its own, saved."""
    reuse = reuse_of(stage.function)
    saved = stage.planned.saved
    inputs = {name: results[name] for name in stage.planned.inputs}
    provided = {"settings": stage.settings, **provided}
    kept = Path(provided["folder"]) / RESULTS / stage.planned.name
    if saved is not None:
        if reuse is None:
            raise UserError(f"{stage.planned.target} cannot restore a result any more", "a stage with `allow_reuse`")
        result = reuse.restore(**_accepted(reuse.restore, {**inputs, **provided, "saved": saved}))
        atomic_write(kept, lambda partial: shutil.copytree(saved, partial))
        return result
    result = stage.function(**_accepted(stage.function, {**provided, **inputs}))
    if reuse is not None:
        kept.parent.mkdir(exist_ok=True)
        atomic_write(kept, lambda partial: _save(reuse, result, partial, inputs))
    return result


def _save(reuse: Reuse, result: Any, folder: Path, inputs: Mapping[str, Any]) -> None:
    folder.mkdir()
    save = functools.partial(reuse.save, result, folder)
    save(**_accepted(save, inputs))


def _accepted(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of `arguments` that `function` takes."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in parameters}


def _check_result(stage: BoundStage, result: Any, later: Sequence[BoundStage]) -> None:
    """Raises UserError if `stage` returned None and a later stage takes its result, but does not accept None."""
    makes = stage.planned.makes
    if result is not None:
        return
    for later_stage in later:
        if makes in later_stage.planned.inputs and not _accepts_none(later_stage.function, makes):
            raise UserError(
                f"it returned None, and the stage {later_stage.planned.name} takes its result `{makes}`",
                f"`return <the {makes}>`, or a parameter `{makes}: … | None` there",
            )
        if later_stage.planned.makes == makes:
            return


def _check_examples(result: object, later: Sequence[BoundStage]) -> None:
    """Raises UserError where a stage has made a data set whose test split the other run was not tested on."""
    if not isinstance(result, Dataset):
        return
    for stage in later:
        if isinstance(stage.settings, EvaluateSettings) and stage.settings.against is not None:
            from stages.evaluation.against import check_other, check_same_examples

            against = stage.settings.against
            check_same_examples(check_other(Path(against), against), against, result.test, result.class_names)


def _accepts_none(function: Callable[..., Any], name: str) -> bool:
    annotation = str(inspect.signature(function).parameters[name].annotation)
    return "None" in annotation or "Optional" in annotation


def _record(recorded_values: Recorded, stage: str, reporter: RunReporter, tracker: Tracker, summary: Summary) -> None:
    for line in recorded_values.warnings:
        reporter.warn_once(f"{stage}: {line}")
    reporter.metrics(recorded_values.metrics, step=0)
    if recorded_values.weights is not None:
        reporter.weights(recorded_values.weights)
    tracker.params({metric_name(name): value for name, value in recorded_values.params.items()})
    for path, place in recorded_values.files:
        redact_file(path)
        tracker.artifact(path, str(redact(place)))
    summary.add_facts(recorded_values.summary)
    for dataset in recorded_values.datasets:
        tracker.dataset(dataset)


def _record_models(recorded_values: Recorded, results: Sequence[Any], tracker: Tracker, summary: Summary) -> None:
    """Records exported models with their files.

    Args:
        results: of the stages before.
    """
    models = recorded_values.models
    if not models:
        return
    for model in models:
        files = {model.format: model.path, **model.others}
        summary.exported |= {name: str(path) for name, path in files.items()}
    dataset = next((result for result in reversed(results) if isinstance(result, Dataset)), None)
    if summary.folder:  # a worker that only assists has none
        tracker.artifact(write_model_files(summary, models, dataset))
    for model in models:
        if model.format == "saved_model":
            tracker.model(model)


def _typed(function: Callable[..., Any], group: str, settings: Any, document: DictConfig) -> Any:
    """Returns settings as the dataclass that `function` declares, if they have no schema."""
    annotation = getattr(function, "__annotations__", {}).get("settings")
    if isinstance(annotation, str):  # in a module with `from __future__ import annotations`
        annotation = eval(annotation, vars(sys.modules[function.__module__]))
    declared = as_dataclass(annotation)
    return typed(declared, group, settings, document) if isinstance(settings, Mapping) and declared else settings


def with_local_weights(stages: Sequence[BoundStage], experiment: Experiment) -> list[BoundStage]:
    """Returns `stages` with local folders in place of `runs:/<run id>` and `models:/…`.

    Raises:
        UserError: where MLflow does not answer, or has no such model.
    """
    return [
        dataclasses.replace(stage, settings=dataclasses.replace(stage.settings, weights=str(folder)))
        if isinstance(stage.settings, ModelSettings) and (folder := _local_weights(stage.settings, experiment))
        else stage
        for stage in stages
    ]


def _local_weights(settings: ModelSettings, experiment: Experiment) -> Path | None:
    """Returns the folder of tracked weights: the run's own where it is here, as it knows what they were trained on."""
    folder = local_weights(settings, experiment)
    if folder is None:
        return None
    run = folder_of(run_of_model(settings.weights, experiment.tracking, experiment.outputs), experiment.outputs)
    own = run / "export" / "saved_model" if run is not None else folder
    return own if own.is_dir() else folder


def with_other_run(stages: Sequence[BoundStage], folder: Path | None) -> list[BoundStage]:
    """Returns bound stages with the folder in place of what the user has typed; None: compared by another process."""
    return [
        dataclasses.replace(
            stage, settings=dataclasses.replace(stage.settings, against=str(folder) if folder is not None else None)
        )
        if isinstance(stage.settings, EvaluateSettings)
        else stage
        for stage in stages
    ]
