"""Run the stages of a plan: import them, bind their settings, and call, time and record each stage."""

import dataclasses
import functools
import inspect
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.checks.registry import as_declared
from pipeline.config.experiment import Experiment
from pipeline.decide.decision import Decision
from pipeline.decide.job import PrunedError
from pipeline.decide.plan import PlannedStage
from pipeline.execute.example import input_example, request_example
from pipeline.execute.facts import model_card
from pipeline.execute.reporter import RunReporter, kind
from pipeline.redaction import redact, redact_file
from pipeline.runs.finding import Runs
from pipeline.runs.summary import StageOutcome
from pipeline.system import machine, signals
from pipeline.system.environment import quiet_stderr
from pipeline.targets import settings_class
from pipeline.tracking.models import RESULTS, model_folder, run_of_model
from pipeline.tracking.params import CARD, INPUT_EXAMPLE, REQUEST_EXAMPLE, metric_name
from pipeline.tracking.store import Store
from stages.declared import Declared, accepted, declared_by
from stages.errors import UserError
from stages.reporter import on_safe_place
from stages.results import Dataset, Exported, Record, as_number
from stages.settings.model import ModelSettings
from stages.storage.atomic import atomic_write

DATASET = "dataset"
"""The name of the result that a custom stage may return as arrays."""


@dataclass(frozen=True)
class BoundStage:
    """A stage with its imported function and its settings, as an instance of the class that the function declares."""

    planned: PlannedStage
    function: Callable[..., Any]
    settings: Any

    @property
    def declared(self) -> Declared:
        return declared_by(self.function)

    @property
    def runs(self) -> bool:
        """Whether the stage computes its result in this run."""
        return self.planned.is_needed and self.planned.saved is None


def bind(decision: Decision) -> list[BoundStage]:
    """Import all stages, and with them TensorFlow, and bind their settings.

    If `model.weights` names weights in MLflow, it is replaced by the folder that contains them.

    Raises:
        UserError: If a stage cannot be imported, its settings do not have the type that it declares, or MLflow
            does not have the weights that they name.
    """
    experiment, bound = decision.experiment, list[BoundStage]()
    with quiet_stderr():
        for planned in decision.plan:
            function = planned.load()
            settings = experiment.settings[planned.name]
            declared = settings_class(function) if isinstance(settings, Mapping) else None
            if declared is not None:
                settings = as_declared(declared, experiment.groups[planned.name], settings, experiment.document)
            if isinstance(settings, ModelSettings) and settings.is_tracked:
                settings = dataclasses.replace(settings, weights=str(_local_weights(settings, experiment)))
            bound.append(BoundStage(planned, function, settings))
    for later in bound:
        if later.planned.saved is not None and (adapt := later.declared.adapt) is not None:
            bound = [replace(stage, settings=adapt(stage.settings, later.planned.saved)) for stage in bound]
    return bound


def _local_weights(settings: ModelSettings, experiment: Experiment) -> Path:
    """Return the folder of tracked weights.

    If the run that trained them is on this machine, this is the folder of its export, which also has a record of the
    training data.
    """
    store = Store(experiment.tracking, experiment.outputs)
    folder = model_folder(settings.weights, store, "model.weights", "model.weights=<one of them>")
    run = Runs(experiment.outputs).folder_of_id(run_of_model(settings.weights, store))
    own = run / "export" / "saved_model" if run is not None else folder
    return own if own.is_dir() else folder


def own_record(stage: str, result: Any) -> Record | None:
    """Return the record in the result of a stage; None if the stage returns nothing.

    Raises:
        UserError: If the result is neither a Record, nor an object with one, nor a mapping from names to numbers.
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
    """Runs stages and records each one when it ends. If a stage raises an error, the summary is still complete."""

    def __init__(self, folder: Path, cache: Path, reporter: RunReporter) -> None:
        """Create a runner.

        Args:
            folder: The folder of the run.
            cache: The folder of files that several runs share. It may be deleted at any time.
            reporter: Receives the progress and the metrics of the stages.
        """
        self.folder, self.cache, self.reporter = folder, cache, reporter
        self.tracker, self.console, self.summary = reporter.tracker, reporter.console, reporter.summary
        self._results: dict[str, Any] = {}
        self._records: list[Record] = []
        self._on_exit: list[Callable[[], object]] = []

    def run(self, stages: Sequence[BoundStage]) -> None:
        """Run `stages` in order.

        Raises:
            PrunedError: If the search prunes the run.
        """
        # Imported here because it imports TensorFlow, which `bind` has already done by now.
        from stages.checkpoints.attributes import leave_out_secrets
        from stages.networks.precision import DEFAULTS, full_float32, keras_defaults

        self.summary.stages.update({stage.planned.name: StageOutcome("skipped") for stage in stages})
        on_safe_place(signals.check)
        leave_out_secrets(lambda name, value: bool(redact({name: value}) != {name: value}))
        with full_float32(), keras_defaults() as others:
            for name, value in others.items():
                self.console.log(f"keras.config.{name} is {value} in this process; the run uses {DEFAULTS[name]}")
            self._run(stages)

    def _run(self, stages: Sequence[BoundStage]) -> None:
        try:
            for index, stage in enumerate(stages):
                if stage.planned.is_needed:
                    self._run_one(stage, stages[index + 1 :])
        finally:
            for stage in stages:
                if stage.declared.clean_up is not None:
                    stage.declared.clean_up()
        signals.check()
        for leave in self._on_exit:
            leave()

    def _run_one(self, stage: BoundStage, later: Sequence[BoundStage]) -> None:
        planned, turn = stage.planned, self.reporter.turn
        if planned.trains and planned.is_custom:
            turn.wait()  # the built-in stage waits at its first progress, after it has traced its network
        for other in (stage, *later):
            start_early = other.declared.start_early
            if start_early is not None and other.runs and self._results.keys() >= {*other.planned.inputs}:
                start_early(other.settings)
        result = self._timed(stage, later)
        self._record(stage, result)
        self._results[planned.makes] = result
        if planned.trains:
            turn.wait()  # for a stage that did not wait because nothing was left to train
            turn.has_trained()

    def _timed(self, stage: BoundStage, later: Sequence[BoundStage]) -> Any:
        """Return the result of a stage, and set its outcome in the summary.

        Args:
            stage: The stage.
            later: The stages after it, which check that they can use the result.
        """
        name = stage.planned.name
        provided = {"reporter": self.reporter, "folder": self.folder, "cache": self.cache}
        self.reporter.stage, self.reporter.is_training = name, stage.planned.trains
        began, waited = time.perf_counter(), self.reporter.turn.waited
        outcome = "failed"
        self.console.doing(f"stage {name}")
        try:
            signals.check()
            result = self._result(stage, provided)
            own_record(name, result)
            if isinstance(result, Dataset) and not self._has_data:
                self._refuse_other_data(result)
            self._check_later(stage.planned.makes, result, later)
            outcome = "ran" if stage.planned.saved is None else "reused"
        except PrunedError:
            outcome = "ran"
            raise
        finally:
            seconds = time.perf_counter() - began - (self.reporter.turn.waited - waited)
            self.summary.stages[name] = StageOutcome(outcome, seconds)
            self.console.end_progress()
        return result

    @property
    def _has_data(self) -> bool:
        """Whether a stage has loaded the data set of the run."""
        return any(isinstance(result, Dataset) for result in self._results.values())

    def _result(self, stage: BoundStage, provided: Mapping[str, Any]) -> Any:
        """Return the result of a stage, computed now or restored from an earlier run; save it in the run's folder."""
        from stages.collectives import others_needed  # imports TensorFlow, which `bind` has already done by now

        declared, saved = stage.declared, stage.planned.saved
        inputs = {name: self._results[name] for name in stage.planned.inputs}
        provided = {"settings": stage.settings, **provided}
        kept = self.folder / RESULTS / stage.planned.name
        if saved is not None:
            assert declared.restore is not None
            result = declared.restore(**accepted(declared.restore, {**inputs, **provided, "saved": saved}))
            atomic_write(kept, lambda partial: shutil.copytree(saved, partial))
            return result
        with others_needed():
            result = stage.function(**accepted(stage.function, {**provided, **inputs}))
        if stage.planned.makes == DATASET and not self._has_data and not dataclasses.is_dataclass(result):
            from stages.load.arrays import dataset_of_result

            result = dataset_of_result(result, stage.settings, self.reporter, self.folder)
        if declared.save is not None:
            kept.parent.mkdir(exist_ok=True)
            atomic_write(kept, lambda partial: _save(stage, result, partial, inputs))
        return result

    def _check_later(self, makes: str, result: Any, later: Sequence[BoundStage]) -> None:
        """Let the stages `later` check the new result, named `makes`. They raise an error if they cannot use it."""
        results = {**self._results, makes: result}
        for stage in later:
            check = stage.declared.check
            if check is None:
                continue
            parameters = inspect.signature(check).parameters
            required = {name for name, entry in parameters.items() if entry.default is entry.empty} - {"settings"}
            if makes in parameters and required <= results.keys():
                check(**accepted(check, {**results, "settings": stage.settings}))

    def _refuse_other_data(self, dataset: Dataset) -> None:
        """Refuse data that has changed since the run began, before a stage replaces files from the old data."""
        before = self.summary.facts.fingerprint
        if before is None:
            self.summary.facts.fingerprint = dataset.fingerprint
        elif before != dataset.fingerprint:
            problem = f"{dataset.name} has changed since the run began: its fingerprint was {before}"
            raise UserError(problem, "the unchanged data, or a new run", "resume=never")
        self.summary.write(self.folder)  # now, as a killed run cannot do it later

    def _record(self, stage: BoundStage, result: Any) -> None:
        """Record the result of a stage and its `implied_record`, unless an earlier stage has already recorded them."""
        name = stage.planned.name
        for record in (own_record(name, result), getattr(result, "implied_record", None)):
            if isinstance(record, Record) and not any(record is before for before in self._records):
                self._records.append(record)
                self._add(name, record)
                if record.metrics and stage.planned.is_custom:
                    self.summary.facts.custom_metrics[name] = [metric_name(str(one)) for one in record.metrics]
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
        """Record a file or folder. If it does not exist, the store refuses it, and the run lists it at its end."""
        if not path.parts:  # it would record and redact the whole working directory
            raise UserError(f"Record.files['{place}'] contains an empty path", "the path of a file or a folder")
        if not path.is_absolute():
            path = path.absolute() if path.exists() else self.folder / path
        redact_file(path)
        self.tracker.artifact(path, str(redact(place.strip("/"))))

    def _record_models(self, models: Sequence[Exported]) -> None:
        """Record exported models with a model card and an example input."""
        for model in models:
            files = {model.format: model.path, **model.others}
            self.summary.exported |= {name: str(path) for name, path in files.items()}
        if models and self.summary.folder.name:  # a member that only assists has no folder
            export = self.summary.folder / "export"
            export.mkdir(exist_ok=True)
            data = [result for result in self._results.values() if isinstance(result, Dataset)][-1:]
            for dataset in data:
                atomic_write(export / INPUT_EXAMPLE, json.dumps({"inputs": input_example(dataset)}))
                if dataset.reading.get("date_format"):
                    atomic_write(export / REQUEST_EXAMPLE, json.dumps({"inputs": request_example(dataset)}))
            atomic_write(export / CARD, str(redact(model_card(self.summary, models[0], *data))))
            self.tracker.artifact(export / CARD)
        for model in models:
            if model.format == "saved_model":
                self.tracker.model(model)


def _save(stage: BoundStage, result: Any, folder: Path, inputs: Mapping[str, Any]) -> None:
    save = stage.declared.save
    assert save is not None
    folder.mkdir()
    save(result, folder, **accepted(functools.partial(save, result, folder), inputs))
