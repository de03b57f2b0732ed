"""One run in MLflow: by its client alone, known by its id.

Everything here may be done twice: what was sent, and not noted as sent before the process died, is sent again.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset as MlflowDataset
from mlflow.entities import DatasetInput, InputTag, LoggedModelOutput, Metric, Param, RunTag
from mlflow.exceptions import MlflowException, RestException
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT, MLFLOW_PARENT_RUN_ID
from sqlalchemy.exc import SQLAlchemyError

from pipeline.redaction import redact
from pipeline.tracking.journal import Entry
from pipeline.tracking.params import model_name
from pipeline.tracking.registry import Registration, register
from pipeline.tracking.saved_model import mlflow_model
from pipeline.tracking.store import experiment_id, how_to_open, open_client, store_uri, was_replaced
from pipeline.tracking.stored_run import StoredRun
from pipeline.tracking.tracker import RunSpec
from stages.results import Exported

PER_BATCH = 100
"""Parameters, or tags, of one request: MLflow's own limit."""

FOLDER = "folder"
"""The tag by which a run is found again whose id was not noted before its process died."""

REPLACES = "replaces_run"
"""The tag with the id of the run that was lost, of one that was filled again from its journal."""

SCORES = ("test/", "val/best_", "train/best_", "export/max_abs_diff")
"""Metrics of the weights that a run exports."""

OF_MODEL = (
    "choice/data", "choice/model", "choice/precision", "choice/strategy", "data.", "data/", "normalize", "augment.",
    "model.", "model/", "optimizer.", "schedule.", "train.", "seed",
)  # fmt: skip
"""Parameters of a run that say what its model is, and how it was trained."""

TOO_LARGE = 413


class MlflowRun(StoredRun):
    """The run of `spec` in MLflow, which is filled again where its store has lost it."""

    errors = (MlflowException, SQLAlchemyError, ImportError, OSError, UnicodeError)

    def reopen(self, run_id: str | None) -> None:
        spec = self.spec
        client = open_client(spec.settings, spec.outputs)
        experiment = experiment_id(client, spec.settings, spec.outputs, spec.experiment)
        run = client.get_run(run_id) if run_id and _lifecycle(spec, client, run_id) == "active" else None
        run = run or _by_folder(spec, client, experiment)
        self.is_new = run is None
        if run is None:
            tags = {**redact(dict(spec.tags)), FOLDER: spec.key}
            tags |= {MLFLOW_PARENT_RUN_ID: spec.parent} if spec.parent else {}
            tags |= {REPLACES: run_id} if run_id else {}
            plain = {str(name): str(value) for name, value in tags.items()}
            run = client.create_run(experiment, tags=plain, run_name=spec.name)
        self._client = client
        self.run_id = str(run.info.run_id)
        self._experiment = str(run.info.experiment_id)

    @property
    def open_with(self) -> str:
        return how_to_open(self.spec.settings, self.spec.outputs, self._experiment, self.run_id)

    def is_lost(self) -> bool:
        replaced = was_replaced(self.spec.settings, self.spec.outputs)
        return replaced or _lifecycle(self.spec, self._client, self.run_id) != "active"

    def send(self, entry: Entry) -> None:
        if was_replaced(self.spec.settings, self.spec.outputs):  # SQLite would write into the deleted file
            raise FileNotFoundError("the file of the store was replaced")
        super().send(entry)

    def refuses(self, error: Exception) -> bool:
        if isinstance(error, RestException) and error.get_http_status_code() == TOO_LARGE:
            return True
        if isinstance(error, UnicodeError) or isinstance(error.__cause__, UnicodeError):
            return True  # a file's name that is not UTF-8, which no server takes
        if isinstance(error, MlflowException):
            return error.error_code in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST")
        return super().refuses(error)

    def params(self, values: Mapping[str, str]) -> None:
        self._log_all("params", [Param(name, text) for name, text in values.items()])

    def tags(self, values: Mapping[str, str]) -> None:
        self._log_all("tags", [RunTag(name, value) for name, value in values.items()])

    def _log_all(self, kind: str, entries: Sequence[Param | RunTag]) -> None:
        for start in range(0, len(entries), PER_BATCH):
            self._client.log_batch(self.run_id, **{kind: entries[start : start + PER_BATCH]})

    def forget(self, names: Sequence[str]) -> None:
        there = self._client.get_run(self.run_id).data.tags
        for name in names:
            if name in there:
                self._client.delete_tag(self.run_id, name)

    def metrics(self, values: Mapping[str, float], step: int, time: int) -> None:
        """See `StoredRun`: MLflow keeps points that are equal in their time, too, once.

        Its pages list metrics in the order in which they came first: those of the validation lead.
        """
        ordered = sorted(values.items(), key=lambda item: not item[0].startswith("val/"))
        self._client.log_batch(self.run_id, [Metric(name, value, time, step) for name, value in ordered])

    def artifact(self, path: str, folder: str) -> None:
        for file, place in _files_in(self.spec.folder / path, folder):
            self._client.log_artifact(self.run_id, str(file), place or None)

    def text(self, content: str, name: str) -> None:
        self._client.log_text(self.run_id, content, name)

    def dataset(self, name: str, digest: str, sizes: Mapping[str, int]) -> None:
        source = json.dumps({"tags": {"data": name}})
        entity = MlflowDataset(
            name=name, digest=digest, source_type="code", source=source, profile=json.dumps(dict(sizes))
        )
        tags = [InputTag(MLFLOW_DATASET_CONTEXT, "train, val, test")]
        self._client.log_inputs(self.run_id, [DatasetInput(entity, tags)])

    def model(self, path: str, image_shape: Sequence[int], class_names: Sequence[str]) -> None:
        place = self.spec.folder / path
        exported = Exported(place, tuple(image_shape), tuple(class_names), 0.0)  # type: ignore[arg-type]
        begun = self._client.search_logged_models([self._experiment], f"source_run_id = '{self.run_id}'")
        logged = begun[0] if begun else self._create_model()
        if str(logged.status) != "READY":
            with mlflow_model(exported, self.spec.folder, self.run_id, logged.model_id) as folder:
                for file, inside in _files_in(folder, ""):
                    self._client.log_model_artifact(logged.model_id, str(file), inside or None)
            self._client.finalize_logged_model(logged.model_id, "READY")
        run = self._client.get_run(self.run_id)
        if logged.model_id not in [output.model_id for output in (run.outputs.model_outputs if run.outputs else [])]:
            self._client.log_outputs(self.run_id, [LoggedModelOutput(logged.model_id, step=0)])
        self._client.log_batch(self.run_id, _scores_of_model(run, logged.model_id))
        self.tags({"model_uri": f"models:/{logged.model_id}"})

    def register(self, name: str, alias: str | None, promote_if: str, confidence: float) -> None:
        begun = self._client.search_logged_models([self._experiment], f"source_run_id = '{self.run_id}'")
        if not begun:
            self.notes.append(f"nothing is registered as {name}: the run has no SavedModel in MLflow")
            return
        wanted = Registration(store_uri(self.spec.settings, self.spec.outputs), name, alias, promote_if, confidence)
        lines = register(self._client, self.run_id, begun[0].model_id, wanted, self.spec.folder)
        self.tags({"registered_as": lines[0]})
        self.notes += lines

    def _create_model(self) -> Any:
        params = self._client.get_run(self.run_id).data.params
        return self._client.create_logged_model(
            self._experiment,
            name=model_name(self.spec.experiment),
            source_run_id=self.run_id,
            params={name: text for name, text in params.items() if name.startswith(OF_MODEL)},
            model_type="tf2-module",
        )

    def status(self, status: str, time: int) -> None:
        if status == "RUNNING":
            self._client.update_run(self.run_id, status)
        else:
            self._client.set_terminated(self.run_id, status, time)


def _scores_of_model(run: Any, model_id: str) -> list[Metric]:
    """Returns the points that a run has of its exported weights, as points of the model on the run's data set.

    Of a run MLflow keeps points that are equal, in their time too, once: none is recorded twice.
    """
    inputs = run.inputs.dataset_inputs if run.inputs else []
    name, digest = (inputs[0].dataset.name, inputs[0].dataset.digest) if inputs else (None, None)
    return [
        Metric(point.key, point.value, point.timestamp, point.step, model_id, name, digest, run.info.run_id)
        for point in run.data._metric_objs
        if point.key.startswith(SCORES) and math.isfinite(point.value)
    ]


def lifecycle(spec: RunSpec, run_id: str) -> str:
    """Returns whether the store has the run: `active`, `deleted` (in MLflow's pages) or `missing`."""
    return _lifecycle(spec, open_client(spec.settings, spec.outputs), run_id)


def _by_folder(spec: RunSpec, client: Any, experiment: str) -> Any:
    quoted = spec.key.replace("'", "")  # a name that a folder may have holds none
    runs = client.search_runs([experiment], f"tags.{FOLDER} = '{quoted}'", max_results=1)
    return runs[0] if runs else None


def _lifecycle(spec: RunSpec, client: Any, run_id: str) -> str:
    try:
        return str(client.get_run(run_id).info.lifecycle_stage)
    except MlflowException as error:
        over_http = (spec.settings.uri or "").startswith("http")
        is_mlflow = isinstance(error, RestException) or not over_http  # a proxy may say 404, too
        if is_mlflow and error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return "missing"
        raise


def _files_in(path: Path, place: str) -> list[tuple[Path, str]]:
    """Returns the file `path`, or every file below it, with the artifact folder that it belongs in, one a request."""
    if not path.is_dir():
        return [(path, place)]
    files = sorted(file for file in path.rglob("*") if file.is_file())
    places = [str(Path(place) / file.parent.relative_to(path)) for file in files]
    return [(file, "" if inside == "." else inside) for file, inside in zip(files, places, strict=True)]
