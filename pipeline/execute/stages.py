"""Runs the stages of a plan: imports them, types their settings, calls, times and records each."""

import dataclasses
import functools
import inspect
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.checks.registry import typed
from pipeline.config.experiment import Experiment
from pipeline.decide.decision import Decision
from pipeline.decide.job import PrunedError
from pipeline.decide.plan import PlannedStage
from pipeline.execute.facts import model_card
from pipeline.execute.reporter import RunReporter, kind
from pipeline.redaction import redact, redact_file
from pipeline.run_folder.runs import Runs
from pipeline.run_folder.summary import FINGERPRINT, StageOutcome
from pipeline.system import machine, signals
from pipeline.system.environment import quiet_stderr
from pipeline.targets import settings_class
from pipeline.tracking.models import RESULTS, model_folder, run_of_model
from pipeline.tracking.params import CARD, INPUT_EXAMPLE, metric_name
from pipeline.tracking.store import Store
from stages.errors import UserError
from stages.exporters import fresh_process
from stages.reporter import on_safe_place
from stages.results import Dataset, Exported, Model, Record, as_number
from stages.reuse import Reuse, reuse_of
from stages.settings.model import ModelSettings
from stages.settings.results import EvaluateSettings, ExportSettings
from stages.settings.table import TableSettings
from stages.storage.atomic import atomic_write


@dataclass(frozen=True)
class BoundStage:
    """A stage with its function imported and its settings typed."""

    planned: PlannedStage
    function: Callable[..., Any]
    settings: Any


def bind(decision: Decision, compares: bool = True) -> list[BoundStage]:
    """Import all stages, and with them TensorFlow, and bind their settings: addresses in them become folders.

    Args:
        decision: What to do.
        compares: Whether this process compares the predictions with those of another run.

    Raises:
        UserError: If a stage cannot be imported, its settings are not of the type that it declares, or MLflow does
            not have the weights that they name.
    """
    plan, experiment = decision.plan, decision.experiment
    against = decision.compare_with if compares else None
    bound = []
    normalized = next((planned.saved for planned in plan if planned.name == "normalize"), None)
    with quiet_stderr():
        for planned in plan:
            function = planned.load()
            name = planned.name
            settings = experiment.settings[name]
            declared = settings_class(function) if isinstance(settings, Mapping) else None
            if declared is not None:
                settings = typed(declared, experiment.groups[name], settings, experiment.document)
            if isinstance(settings, ModelSettings) and settings.is_tracked:
                settings = dataclasses.replace(settings, weights=str(_local_weights(settings, experiment)))
            if isinstance(settings, EvaluateSettings):
                settings = dataclasses.replace(settings, against=str(against) if against is not None else None)
            if isinstance(settings, TableSettings) and normalized:
                from stages.normalize import with_kinds

                settings = with_kinds(settings, normalized)
            bound.append(BoundStage(planned, function, settings))
    return bound


def _local_weights(settings: ModelSettings, experiment: Experiment) -> Path:
    """Return the folder of tracked weights: the run's own where it is here, as it knows what they were trained on."""
    store = Store(experiment.tracking, experiment.outputs)
    folder = model_folder(settings.weights, store, "model.weights", "model.weights=<one of them>")
    run = Runs(experiment.outputs).folder_of_id(run_of_model(settings.weights, store))
    own = run / "export" / "saved_model" if run is not None else folder
    return own if own.is_dir() else folder


def own_record(stage: str, result: Any) -> Record | None:
    """Return the record of what a stage has returned; None for one that returns nothing.

    Raises:
        UserError: where the result is neither a Record, nor has one, nor is a mapping from names to numbers.
    """
    record = result if isinstance(result, Record) else getattr(result, "record", None)
    if isinstance(record, Record):
        return record
    if result is None or isinstance(getattr(result, "implied_record", None), Record):
        return None
    numbers = {str(name): as_number(value) for name, value in result.items()} if isinstance(result, Mapping) else {}
    if not isinstance(result, Mapping) or None in numbers.values():
        named = next((f"{name!r}, a {kind(result[name])}" for name, one in numbers.items() if one is None), "")
        raise UserError(
            f"the stage returned a {kind(result)}{f' with {named}' if named else ''}",
            "a Record, a dataclass whose field `record` is a Record, or a mapping from names to numbers",
            "return stages.results.Record(metrics={…}, params={…}, files={…})",
        )
    return Record(metrics={name if "/" in name else f"{stage}/{name}": number for name, number in numbers.items()})


class StageRunner:
    """Runs stages, and records each as it ends. Its reporter's summary is right wherever one raises."""

    def __init__(self, folder: Path, cache: Path, reporter: RunReporter) -> None:
        """Runs stages in `folder`, that of the run; `cache`: what runs share, and what may be deleted."""
        self.folder, self.cache, self.reporter = folder, cache, reporter
        self.tracker, self.console, self.summary = reporter.tracker, reporter.console, reporter.summary
        self._results: dict[str, Any] = {}
        self._records: list[Record] = []
        self._on_exit: list[Callable[[], object]] = []

    def run(self, stages: Sequence[BoundStage]) -> None:
        """Runs `stages` in order.

        Raises:
            PrunedError: where `on_epoch` ends the run.
        """
        # With TensorFlow, which is imported by now.
        from stages.networks.precision import DEFAULTS, full_float32, keras_defaults

        self.summary.stages.update({stage.planned.name: StageOutcome("skipped") for stage in stages})
        on_safe_place(signals.check)
        with full_float32(), keras_defaults() as others:
            for name, value in others.items():
                self.console.log(f"keras.config.{name} is {value} in this process; the run uses {DEFAULTS[name]}")
            self._run(stages)

    def _run(self, stages: Sequence[BoundStage]) -> None:
        try:
            for index, stage in enumerate(stages):
                if stage.planned.is_needed:
                    trains = stage.planned.name == "train"
                    if trains and not stage.planned.target.startswith("stages."):
                        self.reporter.turn.wait()  # the project's own builds and traces before
                    if stage.planned.name == "evaluate" and _reloads(stages[index + 1 :]):
                        fresh_process.prestart()  # imports TensorFlow meanwhile
                    result = self._timed(stage, stages[index + 1 :])
                    self._record(stage, result)
                    self._results[stage.planned.makes] = result
                    if trains:
                        self.reporter.turn.wait()  # where there was nothing left to train
                        self.reporter.turn.has_trained()
        finally:
            fresh_process.end()  # of a notebook's run that has failed before its export
        signals.check()
        for leave in self._on_exit:
            with signals.interruptible():
                leave()

    def _timed(self, stage: BoundStage, later: Sequence[BoundStage]) -> Any:
        """Return the result of a stage, which the stages `later` can take; sets its outcome in the summary."""
        name = stage.planned.name
        provided = {"reporter": self.reporter, "folder": self.folder, "cache": self.cache}
        self.reporter.stage = name
        began, waited = time.perf_counter(), self.reporter.turn.waited
        outcome = "failed"
        self.console.doing(f"stage {name}")
        try:
            signals.check()
            with signals.interruptible():
                result = _result(stage, self._results, provided)
            own_record(name, result)
            if name == "load" and isinstance(result, Dataset):
                self._refuse_other_data(result)
            _check_later(result, self._results, later)
            outcome = "ran" if stage.planned.saved is None else "reused"
        except PrunedError:
            outcome = "ran"
            raise
        finally:
            seconds = time.perf_counter() - began - (self.reporter.turn.waited - waited)
            self.summary.stages[name] = StageOutcome(outcome, seconds)
            self.console.end_progress()
        return result

    def _refuse_other_data(self, dataset: Dataset) -> None:
        """Refuses data with which the run has not begun, before a stage replaces what others have written of it."""
        before = self.summary.facts.setdefault(FINGERPRINT, dataset.fingerprint)
        if before != dataset.fingerprint:
            problem = f"{dataset.name} has changed since the run began: its fingerprint was {before}"
            raise UserError(problem, "the unchanged data, or a new run", "resume=never")
        self.summary.write(self.folder)  # a killed run has no later time for it

    def _record(self, stage: BoundStage, result: Any) -> None:
        """Record what a stage has made, and what its result implies; not what an earlier stage has recorded already."""
        name = stage.planned.name
        for record in (own_record(name, result), getattr(result, "implied_record", None)):
            if isinstance(record, Record) and not any(record is before for before in self._records):
                self._records.append(record)
                self._add(name, record)
                if record.metrics and not stage.planned.target.startswith("stages."):
                    self.summary.facts.setdefault("own", {})[name] = [metric_name(str(one)) for one in record.metrics]
        self.summary.metrics[f"{name}/seconds"] = self.summary.stages[name].seconds

    def _add(self, stage: str, record: Record) -> None:
        self.reporter.metrics(record.metrics, step=0)
        if record.weights is not None:
            self.reporter.weights(record.weights)
        params = {str(name): value for name, value in record.params.items()}
        self.tracker.params({name if "/" in name else f"{stage}/{name}": value for name, value in params.items()})
        for place, paths in record.files.items():
            for path in [paths] if isinstance(paths, (str, Path)) else paths:
                self._add_file(place, Path(path).expanduser())
        self.summary.add_facts(record.summary)
        for dataset in record.datasets:
            self.tracker.dataset(dataset)
        self._record_models(record.models)
        if record.on_exit:
            self._on_exit.append(record.on_exit)
        devices = record.summary.get("devices")
        if devices and machine.gpus() and not any("GPU" in device for device in devices):
            self.console.warn(
                f"this machine has {len(machine.gpus())} GPU(s), but the run does not use any. TensorFlow may lack GPU "
                "support: pip install '.[gpu]'"
            )

    def _add_file(self, place: str, path: Path) -> None:
        """Record a file or folder; one that does not exist is listed at the end, as the store refuses it."""
        if not path.parts:  # the working directory is not the run's to record, nor to redact
            raise UserError(f"Record.files['{place}'] contains an empty path", "the path of a file or a folder")
        if not path.is_absolute():
            path = path.absolute() if path.exists() else self.folder / path
        redact_file(path)
        self.tracker.artifact(path, str(redact(place.strip("/"))))

    def _record_models(self, models: Sequence[Exported]) -> None:
        """Records exported models, with a card and an example of their input beside them."""
        for model in models:
            files = {model.format: model.path, **model.others}
            self.summary.exported |= {name: str(path) for name, path in files.items()}
        if models and self.summary.folder:  # a worker that only assists has none
            export = Path(self.summary.folder) / "export"
            export.mkdir(exist_ok=True)
            data = [result for result in self._results.values() if isinstance(result, Dataset)][-1:]
            for dataset in data:
                example: Any = {name: column[:1].tolist() for name, column in dataset.test.features.items()}
                if dataset.images is not None:
                    example = dataset.test.images[:1].astype(np.float32).tolist()
                atomic_write(export / INPUT_EXAMPLE, json.dumps({"inputs": example}))
            atomic_write(export / CARD, str(redact(model_card(self.summary, models[0], *data))))
            self.tracker.artifact(export / CARD)
        for model in models:
            if model.format == "saved_model":
                self.tracker.model(model)


def _reloads(later: Sequence[BoundStage]) -> bool:
    """Return whether one of the stages `later` exports, and reloads its files in a fresh process."""
    exports = [stage.settings for stage in later if stage.planned.is_needed and stage.planned.saved is None]
    return any(isinstance(settings, ExportSettings) and settings.reload == "process" for settings in exports)


def _result(stage: BoundStage, results: Mapping[str, Any], provided: Mapping[str, Any]) -> Any:
    """Return the result of a stage: that of an earlier run, which is kept in this run, too, or else its own, saved."""
    reuse = reuse_of(stage.function)
    saved = stage.planned.saved
    inputs = {name: results[name] for name in stage.planned.inputs}
    provided = {"settings": stage.settings, **provided}
    kept = Path(provided["folder"]) / RESULTS / stage.planned.name
    if saved is not None:
        assert reuse is not None
        result = reuse.restore(**_accepted(reuse.restore, {**inputs, **provided, "saved": saved}))
        atomic_write(kept, lambda partial: shutil.copytree(saved, partial))
        return result
    from stages.collectives import others_needed  # with TensorFlow, which is imported by now

    with others_needed():
        result = stage.function(**_accepted(stage.function, {**provided, **inputs}))
    if stage.planned.name == "load" and not dataclasses.is_dataclass(result):
        from stages.load.arrays import dataset_of_result

        result = dataset_of_result(result, stage.settings, provided["reporter"], provided["folder"])
    if reuse is not None:
        kept.parent.mkdir(exist_ok=True)
        atomic_write(kept, lambda partial: _save(reuse, result, partial, inputs))
    return result


def _save(reuse: Reuse, result: Any, folder: Path, inputs: Mapping[str, Any]) -> None:
    folder.mkdir()
    reuse.save(result, folder, **_accepted(functools.partial(reuse.save, result, folder), inputs))


def _accepted(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `arguments` that `function` takes."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in parameters}


def _check_later(result: object, results: Mapping[str, Any], later: Sequence[BoundStage]) -> None:
    """Refuse what a later stage cannot use: other columns, another run's examples or metric, a network."""
    datasets = [value for value in (*results.values(), result) if isinstance(value, Dataset)]
    for stage in later if datasets else ():
        settings = stage.settings
        if isinstance(result, (Dataset, Model)) and isinstance(settings, EvaluateSettings):
            from stages.evaluation.by_column import check_settings

            check_settings(result.task, datasets[-1], settings)
            if settings.against is not None and isinstance(result, Model):
                from stages.evaluation.against import check_comparable

                check_comparable(settings.against, datasets[-1].test, result.task)
        if isinstance(result, Model) and isinstance(settings, ExportSettings):
            from stages.export import check_formats

            check_formats(result, datasets[-1], settings)
