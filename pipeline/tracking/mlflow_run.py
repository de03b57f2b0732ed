"""One run in MLflow, recorded with `MlflowClient` only, and its SavedModel as an MLflow model.

Each call may be repeated: if the process dies after sending an entry and before noting it, the entry is sent again.
"""

import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelOutput, Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from sqlalchemy.exc import SQLAlchemyError

from pipeline.internals.mlflow import default_store
from pipeline.internals.mlflow_monitor import Monitor
from pipeline.tracking import views
from pipeline.tracking.mlflow_model import column_schema, tensor_schema, write_model
from pipeline.tracking.params import CARD, model_name, shape_of
from pipeline.tracking.store import Store, is_duplicate
from pipeline.tracking.stored_run import StoredRun
from stages.evaluation.predictions import CLASSES, compare_predictions, metadata_of
from stages.evaluation.predictions import NAME as PREDICTIONS
from stages.evaluation.test_set import is_same_test_set
from stages.settings.places import regular_file, regular_folder

PER_BATCH = 100
"""Maximum number of parameters or tags per request: MLflow's limit."""

PARENT = "mlflow.parentRunId"
DATASET_CONTEXT = "mlflow.data.context"
"""MLflow's own tags, of a run and of its data set."""

FOLDER = "folder"
"""The tag that identifies a run if its process died before its id was noted."""

REPLACES = "replaces_run"
"""The tag of a run that was recorded again from its journal, with the id of the lost run that it replaces."""

SCORES = ("test/", "val/best_", "train/best_", "export/max_abs_diff")
"""Prefixes of the metrics that describe the exported weights."""


class MlflowRun(StoredRun):
    """The run of `spec` in MLflow. If the store has lost the run, it is recorded again."""

    errors = (MlflowException, SQLAlchemyError, ImportError, OSError, UnicodeError)
    _monitor: Monitor | None = None

    def open(self, run_id: str | None) -> None:
        spec = self.spec
        self._store = Store(spec.settings, spec.outputs)
        self._client = client = self._store.client()
        experiment = self._store.experiment_id(client, spec.experiment)
        run = _active(client, run_id) if run_id else None
        run = run or _by_folder(client, experiment, spec.key)
        if run is None:
            tags = {FOLDER: spec.key}
            tags |= {PARENT: spec.parent} if spec.parent else {}
            tags |= {REPLACES: run_id} if run_id else {}
            run = client.create_run(experiment, tags=tags, run_name=spec.name)
        self._refuse_outside(str(run.info.artifact_uri))
        self.run_id = str(run.info.run_id)
        self._experiment = str(run.info.experiment_id)
        self.open_with = self._store.open_with(self._experiment, self.run_id, spec.has_jobs)
        self.links = self._store.links(self._experiment, self.run_id, spec.has_jobs) if spec.parent is None else {}

    def _refuse_outside(self, address: str) -> None:
        """Refuse a database in `outputs` that would write artifacts to a different folder.

        Such a database may come from somebody else.
        """
        outputs, place = self.spec.outputs, os.path.normpath(unquote(urlsplit(address).path))
        if self.spec.settings.kind == "local" and not Path(place).is_relative_to(os.path.normpath(outputs.absolute())):
            raise MlflowException(f"its artifacts would be written to {address}, outside of {outputs}")

    def refuses(self, error: Exception) -> bool:
        if isinstance(error, UnicodeError) or isinstance(error.__cause__, UnicodeError):
            return True  # a file name that is not UTF-8, which no server accepts
        if isinstance(error, MlflowException):
            is_deleted = "'active' state" in str(error)  # the run was deleted; the next command records it again
            return error.error_code in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST") and not is_deleted
        return super().refuses(error)

    def is_race(self, error: Exception) -> bool:
        return isinstance(error, MlflowException) and error.error_code == "BAD_REQUEST" and is_duplicate(error)

    def params(self, values: Mapping[str, str]) -> None:
        self._log_all("params", [Param(name, text) for name, text in values.items()])

    def tags(self, values: Mapping[str, str]) -> None:
        self._log_all("tags", [RunTag(name, value) for name, value in values.items()])

    def _log_all(self, kind: str, entries: Sequence[Param | RunTag]) -> None:
        for start in range(0, len(entries), PER_BATCH):
            self._client.log_batch(self.run_id, **{kind: entries[start : start + PER_BATCH]})

    def metrics(self, values: Mapping[str, float], step: int, time: int) -> None:
        """See `StoredRun`. MLflow stores a repeated point only once, as its time is also equal.

        Its pages list metrics in the order in which they were first recorded, so validation metrics are sent first.
        """
        ordered = sorted(values.items(), key=lambda item: not item[0].startswith("val/"))
        self._client.log_batch(self.run_id, [Metric(name, value, time, step) for name, value in ordered])

    def artifact(self, path: str, folder: str) -> None:
        place = self.spec.folder / path
        (regular_folder if place.is_dir() else regular_file)(place)
        log = self._client.log_artifacts if place.is_dir() else self._client.log_artifact
        log(self.run_id, str(place), folder or None)

    def text(self, content: str, name: str) -> None:
        self._client.log_text(self.run_id, content, name)

    def dataset(self, name: str, digest: str, sizes: Mapping[str, int]) -> None:
        source = json.dumps({"tags": {"data": name}})
        entity = Dataset(name=name, digest=digest, source_type="code", source=source, profile=json.dumps(dict(sizes)))
        tags = [InputTag(DATASET_CONTEXT, "train, val, test")]
        self._client.log_inputs(self.run_id, [DatasetInput(entity, tags)])

    def model(
        self,
        path: str,
        image_shape: Sequence[int],
        class_names: Sequence[str],
        columns: Mapping[str, str] | None = None,
        answers: Mapping[str, str] | None = None,
    ) -> None:
        logged = self._logged_model() or self._client.create_logged_model(
            self._experiment,
            name=model_name(self.spec.experiment, self.spec.name),
            source_run_id=self.run_id,
            params=self._client.get_run(self.run_id).data.params,
            model_type="tf2-module",
        )
        if str(logged.status) != "READY":
            with tempfile.TemporaryDirectory() as folder:
                model = Model(run_id=self.run_id, model_id=logged.model_id)
                signature = ModelSignature(
                    tensor_schema(*image_shape), tensor_schema(*shape_of(answers, len(class_names)))
                )
                if columns:
                    signature = ModelSignature(column_schema(columns), column_schema(answers) if answers else None)
                write_model(model, signature, class_names, self.spec.folder / path, Path(folder))
                self._client.log_model_artifacts(logged.model_id, folder)
            self._client.finalize_logged_model(logged.model_id, "READY")
        run = self._client.get_run(self.run_id)
        if logged.model_id not in [output.model_id for output in (run.outputs.model_outputs if run.outputs else [])]:
            self._client.log_outputs(self.run_id, [LoggedModelOutput(logged.model_id, step=0)])
        self._client.log_batch(self.run_id, _scores_of_model(run, logged.model_id))
        self.tags({"model_uri": f"models:/{logged.model_id}"})

    def view(
        self,
        name: str,
        settings: Sequence[str],
        metrics: Sequence[str],
        is_lower_better: bool,
        combinations: Sequence[str] | None = None,
    ) -> None:
        parent = None if combinations is None else self.run_id
        view = views.View(name, settings, metrics, is_lower_better, combinations or (), parent)
        tags = self._client.get_experiment(self._experiment).tags
        if (tag := views.changed_tag(view, tags, int(time() * 1000))) is None:
            return
        try:
            self._client.set_experiment_tag(self._experiment, *tag)
        except MlflowException as error:
            if error.error_code != "PERMISSION_DENIED":
                raise
            self.notes.append(f"MLflow does not allow you to edit the experiment, so the view {name!r} was not saved")

    def register(self, name: str, alias: str | None, promote_if: str, confidence: float) -> None:
        logged = self._logged_model()
        if logged is None:
            self.notes.append(f"no version of {name} was registered: the run has no SavedModel in MLflow")
            return
        registry = Registry(self._client, self._store.uri, self.spec.folder, name)
        lines = [registry.register(self.run_id, logged.model_id)]
        if alias is not None:
            lines.append(registry.decide(alias, promote_if, confidence))
        self.tags({"registered_as": lines[0]})
        self.notes += lines

    def _logged_model(self) -> Any:
        """Return the model that was created for this run; None if there is none."""
        models = self._client.search_logged_models([self._experiment], f"source_run_id = '{self.run_id}'")
        return models[0] if models else None

    def status(self, status: str, time: int) -> None:
        if status == "RUNNING":
            self._client.update_run(self.run_id, status)
            if self.spec.is_measured and self._monitor is None:
                self._monitor = Monitor(self.run_id, resume_logging=True, tracking_uri=self._store.uri)
                self._monitor.start()
            return
        if self._monitor is not None:
            self._monitor.finish()
            self._monitor = None
        self._client.set_terminated(self.run_id, status, time)

    def close(self) -> None:
        if self._monitor is not None:
            self._monitor.stop()


def _scores_of_model(run: Any, model_id: str) -> list[Metric]:
    """Return the scores of a run's exported weights as metrics of its model on the run's data set.

    MLflow stores a repeated point only once, as its time is also equal, so recording them again changes nothing.
    """
    inputs = run.inputs.dataset_inputs if run.inputs else []
    name, digest = (inputs[0].dataset.name, inputs[0].dataset.digest) if inputs else (None, None)
    return [
        Metric(point.key, point.value, point.timestamp, point.step, model_id, name, digest, run.info.run_id)
        for point in run.data.to_proto().metrics
        if point.key.startswith(SCORES) and math.isfinite(point.value)
    ]


def _active(client: Any, run_id: str) -> Any:
    """Return the run; None if the store does not have it, or it was deleted in MLflow's pages."""
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None
    return run if run.info.lifecycle_stage == "active" else None


def _by_folder(client: Any, experiment: str, key: str) -> Any:
    runs = client.search_runs([experiment], f"tags.{FOLDER} = '{key}'", max_results=1)
    return runs[0] if runs else None


LONGEST_DESCRIPTION = 5000
"""Maximum number of characters of a version's description in MLflow's database."""


@dataclass
class Registry:
    """The versions of a registered model."""

    client: MlflowClient
    uri: str
    """The address of the store."""
    folder: Path
    """The folder of the run whose model becomes a version, with its card and its predictions."""
    name: str
    """The name of the registered model."""
    version: str = ""
    """The number of the version, once it is registered."""

    def register(self, run_id: str, model_id: str) -> str:
        """Register a logged model as a version, unless it already is one; return a sentence with the version."""
        name, source = self.name, f"models:/{model_id}"
        with suppress(MlflowException):  # the name exists already; the next request reports any other error
            self.client.create_registered_model(name)
        versions = self.client.search_model_versions(f"name = '{name}'")
        version = next((version for version in versions if version.source == source), None)
        if version is None:
            card = self.folder / "export" / CARD
            without_front_matter = card.read_text().rpartition("---\n\n")[2] if card.is_file() else ""
            text = without_front_matter[:LONGEST_DESCRIPTION]
            with default_store(self.uri):
                version = self.client.create_model_version(
                    name, source, run_id, description=text, model_id=model_id, await_creation_for=0
                )
        self.version = str(version.version)
        return f"registered as {name}, version {self.version}: models:/{name}/{self.version}"

    def decide(self, alias: str, promote_if: str, confidence: float) -> str:
        """Move `alias` to the version if `promote_if` is fulfilled; return a sentence with the decision and the reason.

        The decision is stored and made only once: if the entry is sent again, a later run or a user may have moved the
        alias, and it stays there.
        """
        tag = f"promotion.{alias}"
        verdict = self.client.get_model_version(self.name, self.version).tags.get(tag)
        if verdict is None:
            verdict = self._promote(alias, promote_if, confidence)
            self.client.set_model_version_tag(self.name, self.version, tag, verdict)
        return str(verdict)

    def _promote(self, alias: str, promote_if: str, confidence: float) -> str:
        """Move the alias to this version if it is better than the version that has the alias now.

        The comparison is repeated if another run has moved the alias during it. MLflow has no conditional update, so if
        two runs move the alias within the same milliseconds, neither may notice the other.
        """
        holder, reason = self._holder(alias), "there was none"
        if holder == self.version:
            return f"{alias} of {self.name} is version {holder}"
        if holder is not None:
            is_better, reason = True, "export.promote_if=always"
            if promote_if != "always":
                run_id = self.client.get_model_version(self.name, holder).run_id
                is_better, reason = self.compared_with(run_id, promote_if, confidence)
            if not is_better:
                return f"{alias} of {self.name} stays version {holder}: {reason}"
        if self._holder(alias) != holder:
            return self._promote(alias, promote_if, confidence)
        self.client.set_registered_model_alias(self.name, alias, self.version)
        before = f" (before: version {holder})" if holder is not None else ""
        return f"{alias} of {self.name} is now version {self.version}{before}: {reason}"

    def _holder(self, alias: str) -> str | None:
        """Return the version that has the alias."""
        version = self.client.get_registered_model(self.name).aliases.get(alias)
        return None if version is None else str(version)

    def compared_with(self, run_id: str | None, promote_if: str, confidence: float) -> tuple[bool, str]:
        """Return whether this run's model is better than the model of another run, and why or why not."""
        with tempfile.TemporaryDirectory() as temporary:
            try:
                if not run_id or PREDICTIONS not in {entry.path for entry in self.client.list_artifacts(run_id)}:
                    raise FileNotFoundError(f"the run of the alias has no {PREDICTIONS}")
                self.client.download_artifacts(run_id, PREDICTIONS, temporary)
                ours, theirs = metadata_of(self.folder), metadata_of(Path(temporary))
                if ours[CLASSES] != theirs[CLASSES]:
                    return False, "it predicts something else"
                if not is_same_test_set(ours, theirs):
                    return False, "it was tested on other examples, so the two cannot be compared"
                against = compare_predictions(self.folder / PREDICTIONS, Path(temporary) / PREDICTIONS, confidence)
            except (FileNotFoundError, KeyError, pa.ArrowException) as error:
                return False, f"the predictions of one of the two cannot be read ({error})"
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
                return False, "the store no longer has its run, so the two cannot be compared"
        is_better = against.is_better and (promote_if == "higher" or against.excludes_zero)
        return is_better, f"{against.metric} {against.change}"
