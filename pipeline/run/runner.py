"""Runs the stages of a plan: calls, times and records each."""

import functools
import inspect
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.console import Console
from pipeline.planning.job import OnEpoch, PrunedError
from pipeline.redaction import redact, redact_file
from pipeline.run.binding import BoundStage
from pipeline.run.model_files import write_model_files
from pipeline.run.records import metric_name, own_record, recorded
from pipeline.run.reporter import RunReporter
from pipeline.run_folder.summary import StageOutcome, Summary
from pipeline.system import machine, pulse, signals
from pipeline.tracking.run_copy import RESULTS
from pipeline.tracking.tracker import Tracker
from stages.errors import UserError
from stages.exporters import fresh_process
from stages.results import Dataset, Exported, Model, Record
from stages.reuse import Reuse, reuse_of
from stages.safe_places import on_safe_place
from stages.settings.results import EvaluateSettings, ExportSettings
from stages.storage.atomic import atomic_write


@dataclass
class StageRunner:
    """Runs stages, and records each as it ends.

    folder: the run's. cache: what runs share, and what may be deleted.
    summary: filled as stages end, so that it is right wherever one raises.
    """

    folder: Path
    cache: Path
    tracker: Tracker
    console: Console
    summary: Summary
    on_epoch: OnEpoch | None = None

    def __post_init__(self) -> None:
        self._reporter = RunReporter(self.tracker, self.console, self.summary, self.on_epoch)
        self._results: dict[str, Any] = {}
        self._records: list[Record] = []
        self._on_exit: list[Callable[[], object]] = []

    def run(self, stages: Sequence[BoundStage]) -> None:
        """Runs `stages` in order.

        Raises:
            PrunedError: where `on_epoch` ends the run.
        """
        self.summary.stages.update({stage.planned.name: StageOutcome("skipped") for stage in stages})
        on_safe_place(_visit_safe_place)
        try:
            for index, stage in enumerate(stages):
                if stage.planned.is_needed:
                    if stage.planned.name == "evaluate" and _reloads(stages[index + 1 :]):
                        fresh_process.prestart()
                    result = self._timed(stage, stages[index + 1 :])
                    self._record(stage, result)
                    self._results[stage.planned.makes] = result
        finally:
            fresh_process.end_prestarted()
        _visit_safe_place()
        for leave in self._on_exit:
            with signals.interruptible():
                leave()

    def _timed(self, stage: BoundStage, later: Sequence[BoundStage]) -> Any:
        """Returns the result of a stage, which the stages `later` can take; sets its outcome in the summary."""
        name = stage.planned.name
        provided = {"reporter": self._reporter, "folder": self.folder, "cache": self.cache}
        self._reporter.begin(name)
        began = time.perf_counter()
        outcome = "failed"
        self.console.doing(f"stage {name}")
        try:
            _visit_safe_place()
            with signals.interruptible():
                result = _result(stage, self._results, provided)
            own_record(name, result)
            _check_result(stage, result, later)
            _check_examples(result, later)
            _check_formats(result, self._results, later)
            outcome = "ran" if stage.planned.saved is None else "reused"
        except PrunedError:
            outcome = "ran"
            raise
        finally:
            self.summary.stages[name] = StageOutcome(outcome, time.perf_counter() - began)
            self.console.end_progress()
        return result

    def _record(self, stage: BoundStage, result: Any) -> None:
        name = stage.planned.name
        values = recorded(name, result, self.folder, self._records)
        for line in values.warnings:
            self._reporter.warn_once(f"{name}: {line}")
        self._reporter.metrics(values.metrics, step=0)
        if values.weights is not None:
            self._reporter.weights(values.weights)
        self.tracker.params({metric_name(param): value for param, value in values.params.items()})
        for path, place in values.files:
            redact_file(path)
            self.tracker.artifact(path, str(redact(place)))
        self.summary.add_facts(values.summary)
        for dataset in values.datasets:
            self.tracker.dataset(dataset)
        self._record_models(values.models)
        self._on_exit += values.on_exit
        if isinstance(record := getattr(result, "record", None), Record):
            self._records.append(record)
        self.summary.metrics[f"{name}/seconds"] = self.summary.stages[name].seconds
        self._warn_of_unused_gpus(values.summary.get("devices"))

    def _record_models(self, models: Sequence[Exported]) -> None:
        """Records exported models with their files."""
        if not models:
            return
        for model in models:
            files = {model.format: model.path, **model.others}
            self.summary.exported |= {name: str(path) for name, path in files.items()}
        datasets = [result for result in self._results.values() if isinstance(result, Dataset)]
        if self.summary.folder:  # a worker that only assists has none
            self.tracker.artifact(write_model_files(self.summary, models, datasets[-1] if datasets else None))
        for model in models:
            if model.format == "saved_model":
                self.tracker.model(model)

    def _warn_of_unused_gpus(self, devices: Sequence[str] | None) -> None:
        if devices and machine.gpus() and not any("GPU" in device for device in devices):
            self.console.warn(
                f"this machine has {len(machine.gpus())} GPU(s), and none is used; TensorFlow may need the extra gpu"
            )


def _reloads(later: Sequence[BoundStage]) -> bool:
    """Return whether one of the stages `later` exports, and reloads its files in a fresh process."""
    exports = [stage.settings for stage in later if stage.planned.is_needed and stage.planned.saved is None]
    return any(isinstance(settings, ExportSettings) and settings.reload == "process" for settings in exports)


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
    from stages.distribution.collectives import others_needed  # with TensorFlow, which is imported by now

    with others_needed():
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


def _check_formats(result: object, results: Mapping[str, Any], later: Sequence[BoundStage]) -> None:
    """Raises UserError where a stage has made a network that a format of a later export cannot hold."""
    dataset = next((value for value in reversed(list(results.values())) if isinstance(value, Dataset)), None)
    if not isinstance(result, Model) or dataset is None:
        return
    for stage in later:
        if isinstance(stage.settings, ExportSettings):
            from stages.export import check_formats

            check_formats(result, dataset, stage.settings)


def _accepts_none(function: Callable[..., Any], name: str) -> bool:
    annotation = str(inspect.signature(function).parameters[name].annotation)
    return "None" in annotation or "Optional" in annotation
