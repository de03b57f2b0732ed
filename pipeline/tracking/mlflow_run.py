"""One run in MLflow: by its client alone, known by its id.

Everything here may be done twice: what was sent, and not noted as sent before the process died, is sent again.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset as MlflowDataset
from mlflow.entities import DatasetInput, InputTag, LoggedModelOutput, Metric, Param, RunTag
from mlflow.exceptions import MlflowException, RestException
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT, MLFLOW_PARENT_RUN_ID

from pipeline.redaction.mask import redact
from pipeline.tracking.health import Pulse
from pipeline.tracking.journal import Entry
from pipeline.tracking.saved_model import mlflow_model
from pipeline.tracking.spec import RunSpec
from pipeline.tracking.store import experiment_id, how_to_open, open_client, was_replaced
from stages.results import Exported

PER_BATCH = 100
"""Parameters, or tags, of one request: MLflow's own limit."""

FOLDER = "folder"
"""The tag by which a run is found again whose id was not noted before its process died."""

REPLACES = "replaces_run"
"""The tag with the id of the run that was lost, of one that was filled again from its journal."""

UPLOAD_BYTES_PER_SECOND = 500_000
"""A store that takes files more slowly than this is taken for one that does not answer."""


@dataclass
class Recorded:
    """What a store has of a run. points: of each metric, from the step to its value and its time in milliseconds.

    ended: when, in milliseconds.
    """

    points: dict[str, dict[int, tuple[float, int]]] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    datasets: set[str] = field(default_factory=set)
    status: str = "RUNNING"
    ended: int = 0


class MlflowRun:
    """The run of `spec` in its store; `run_id`: as it was noted, None for one that is begun, or begun and not noted.

    is_new: whether the store had no such run; tags: given to one that is begun.

    Raises:
        MlflowException, SQLAlchemyError, ImportError, OSError: where the store cannot be used.
    """

    def __init__(self, spec: RunSpec, run_id: str | None, tags: Mapping[str, str]) -> None:
        self.spec, self._tags = spec, dict(tags)
        self.known: Recorded | None = None
        """What the store has, while a journal is sent again; points of the same name and step are left out then."""
        self.allowance = 0.0
        """Seconds that the request under way may take by the size of its file."""
        self.reopen(run_id)

    def reopen(self, run_id: str | None) -> None:
        """Connects again, and finds the run, or begins one in its place."""
        spec = self.spec
        client: Any = Pulse(open_client(spec.settings, spec.outputs))
        experiment = experiment_id(client, spec.settings, spec.outputs, spec.experiment)
        found = client.get_run(run_id) if run_id and _lifecycle(spec, client, run_id) == "active" else None
        found = found or _by_folder(spec, client, experiment)
        self.is_new = found is None
        if found is None:
            given = {**redact(dict(self._tags)), FOLDER: spec.key}
            given |= {MLFLOW_PARENT_RUN_ID: spec.parent} if spec.parent else {}
            given |= {REPLACES: run_id} if run_id else {}
            plain = {str(name): str(value) for name, value in given.items()}
            found = client.create_run(experiment, tags=plain, run_name=spec.name)
        self._client, self.run_id, self._experiment = client, str(found.info.run_id), str(found.info.experiment_id)

    @property
    def open_with(self) -> str:
        return how_to_open(self.spec.settings, self.spec.outputs, self._experiment, self.run_id)

    @property
    def pulse(self) -> Pulse:
        return self._client

    def may_be_lost(self, refused: bool) -> bool:
        """Returns whether an entry failed because the store no longer has the run; raises if the store is away.

        Args:
            refused: whether the store answered that it does not take the entry.
        """
        return was_replaced(self.spec.settings, self.spec.outputs) or (refused and not self.is_there())

    def is_there(self) -> bool:
        """Returns whether the store still has the run, and still is the one that was opened; raises if it is away."""
        if was_replaced(self.spec.settings, self.spec.outputs):
            return False
        return _lifecycle(self.spec, self._client, self.run_id) == "active"

    def recorded(self) -> Recorded:
        """Returns what the store has of the run."""
        run = self._client.get_run(self.run_id)
        history = {name: self._client.get_metric_history(self.run_id, name) for name in run.data.metrics}
        points = {
            name: {point.step: (point.value, point.timestamp) for point in found} for name, found in history.items()
        }
        inputs = run.inputs.dataset_inputs if run.inputs else []
        return Recorded(points, dict(run.data.params), {given.dataset.digest for given in inputs}, *_end(run))

    def lacks(self, entries: Sequence[Entry]) -> bool:
        """Returns whether the store misses any of `entries`, as far as one request can tell.

        It shows the last point of each metric: a store that was replaced by an older one shows an older point.
        """
        run = self._client.get_run(self.run_id)
        last = {point.key: point.step for point in run.data._metric_objs}
        status = None
        for entry in entries:
            values = entry.given.get("values", {})
            if entry.call == "metrics" and any(last.get(name, -1) < entry.given["step"] for name in values):
                return True
            if entry.call == "params" and values.keys() - run.data.params.keys():
                return True
            if entry.call == "tags" and values.keys() - run.data.tags.keys() - {"error", "failed_stage"}:
                return True
            if entry.call == "status":
                status = entry.given["status"]
        return status is not None and run.info.status != status

    def send(self, entry: Entry) -> None:
        """Sends an entry of a journal."""
        self.allowance = 0.0
        getattr(self, entry.call)(**entry.given)

    def params(self, values: Mapping[str, str]) -> None:
        entries = [Param(name, text) for name, text in values.items()]
        for start in range(0, len(entries), PER_BATCH):
            self._client.log_batch(self.run_id, params=entries[start : start + PER_BATCH])

    def tags(self, values: Mapping[str, str]) -> None:
        entries = [RunTag(name, value) for name, value in values.items()]
        for start in range(0, len(entries), PER_BATCH):
            self._client.log_batch(self.run_id, tags=entries[start : start + PER_BATCH])

    def forget(self, names: Sequence[str]) -> None:
        """Takes tags away."""
        there = self._client.get_run(self.run_id).data.tags
        for name in names:
            if name in there:
                self._client.delete_tag(self.run_id, name)

    def metrics(self, values: Mapping[str, float], step: int, time: int) -> None:
        """Records metrics with the time, in milliseconds, at which they came: MLflow keeps equal ones once."""
        there = self.known.points if self.known else {}
        missing = [Metric(name, value, time, step) for name, value in values.items() if step not in there.get(name, ())]
        if missing:
            self._client.log_batch(self.run_id, missing)

    def artifact(self, path: str, folder: str) -> None:
        file = self.spec.folder / path
        if not file.is_dir():
            self._allow(file)
            self._client.log_artifact(self.run_id, str(file), folder or None)
            return
        for inside, place in _files_below(file, folder):
            self._allow(inside)
            self._client.log_artifact(self.run_id, str(inside), place or None)

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
        logged = (
            begun[0]
            if begun
            else self._client.create_logged_model(
                self._experiment, name="model", source_run_id=self.run_id, model_type="tf2-module"
            )
        )
        if str(logged.status) != "READY":
            with mlflow_model(exported, self.run_id, logged.model_id) as folder:
                for file, inside in _files_below(folder, ""):
                    self._allow(file)
                    self._client.log_model_artifact(logged.model_id, str(file), inside or None)
            self._client.finalize_logged_model(logged.model_id, "READY")
        outputs = self._client.get_run(self.run_id).outputs
        if logged.model_id not in [output.model_id for output in (outputs.model_outputs if outputs else [])]:
            self._client.log_outputs(self.run_id, [LoggedModelOutput(logged.model_id, step=0)])
        self.tags({"model_uri": f"models:/{logged.model_id}"})

    def status(self, status: str, time: int) -> None:
        """Makes the run `RUNNING`, or ends it at `time`, in milliseconds."""
        if status == "RUNNING":
            self._client.update_run(self.run_id, status)
        else:
            self._client.set_terminated(self.run_id, status, time)

    def _allow(self, file: Path) -> None:
        self.allowance = file.stat().st_size / UPLOAD_BYTES_PER_SECOND


def lifecycle(spec: RunSpec, run_id: str) -> str:
    """Returns whether the store has the run: `active`, `deleted` (by somebody, in MLflow's pages) or `missing`."""
    return _lifecycle(spec, open_client(spec.settings, spec.outputs), run_id)


def _by_folder(spec: RunSpec, client: Any, experiment: str) -> Any:
    quoted = spec.key.replace("'", "")  # a name that a folder may have holds none
    found = client.search_runs([experiment], f"tags.{FOLDER} = '{quoted}'", max_results=1)
    return found[0] if found else None


def _end(run: Any) -> tuple[str, int]:
    return str(run.info.status), int(run.info.end_time or 0)


def _lifecycle(spec: RunSpec, client: Any, run_id: str) -> str:
    try:
        return str(client.get_run(run_id).info.lifecycle_stage)
    except MlflowException as error:
        over_http = (spec.settings.uri or "").startswith("http")
        told = isinstance(error, RestException) or not over_http  # a proxy may say 404, too
        if told and error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return "missing"
        raise


def _files_below(folder: Path, place: str) -> list[tuple[Path, str]]:
    """Returns every file below `folder` with the artifact folder that it belongs in, one a request."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    places = [str(Path(place) / path.parent.relative_to(folder)) for path in found]
    return [(path, "" if inside == "." else inside) for path, inside in zip(found, places, strict=True)]
