"""One run in MLflow: by its client alone, known by its id.

Everything here may be done twice: what was sent, and not noted as sent before the process died, is sent again.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Dataset as MlflowDataset
from mlflow.entities import DatasetInput, InputTag, LoggedModelOutput, Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT, MLFLOW_PARENT_RUN_ID
from sqlalchemy.exc import SQLAlchemyError

from pipeline.config import TrackingSettings
from pipeline.secrets import redact
from pipeline.tracking.saved_model import mlflow_model
from pipeline.tracking.store import experiment_id, how_to_open, open_client
from stages.errors import UserError
from stages.results import Exported

PER_BATCH = 100
"""Parameters, or tags, of one request: MLflow's own limit."""

FOLDER = "folder"
"""The tag by which a run is found again whose id was not noted before its process died."""


class MlflowRun:
    """A run in a store.

    folder: what relative paths of files start from. store: the experiment's number and how a user opens the run.
    """

    def __init__(self, client: MlflowClient, run_id: str, experiment: str, folder: Path, open_with: str) -> None:
        self.run_id, self.open_with = run_id, open_with
        self._client, self._experiment, self._folder = client, experiment, folder

    @classmethod
    def begin(
        cls,
        settings: TrackingSettings,
        outputs: Path,
        folder: Path,
        experiment: str,
        name: str,
        tags: Mapping[str, str],
        parent: str | None = None,
    ) -> "MlflowRun":
        """Begins a run whose files are in `folder`, or goes on with the one that was begun for it.

        Args:
            parent: the id of the run that it is a child of.

        Raises:
            UserError: where the store cannot be used.
        """
        key = str(folder.relative_to(outputs)) if folder.is_relative_to(outputs) else str(folder)
        given = {str(name): str(value) for name, value in {**redact(dict(tags)), FOLDER: key}.items()}
        try:
            client = open_client(settings, outputs)
            number = experiment_id(client, settings, outputs, experiment)
            if parent:
                given[MLFLOW_PARENT_RUN_ID] = parent
            quoted = key.replace("'", "")  # a name that a folder may have holds none
            found = client.search_runs([number], f"tags.{FOLDER} = '{quoted}'", max_results=1)
            run = found[0] if found else client.create_run(number, tags=given, run_name=name)
        except (MlflowException, SQLAlchemyError, ImportError) as error:
            raise _unusable(settings, error) from error
        run_id = run.info.run_id
        return cls(client, run_id, number, folder, how_to_open(settings, outputs, number, run_id))

    @classmethod
    def known(cls, settings: TrackingSettings, outputs: Path, folder: Path, run_id: str) -> "MlflowRun":
        """Returns the run of that id.

        Raises:
            UserError: where the store cannot be used, or has no such run.
        """
        try:
            client = open_client(settings, outputs)
            number = client.get_run(run_id).info.experiment_id
        except (MlflowException, SQLAlchemyError, ImportError) as error:
            raise _unusable(settings, error) from error
        return cls(client, run_id, number, folder, how_to_open(settings, outputs, number, run_id))

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
        self._client.log_batch(self.run_id, [Metric(name, value, time, step) for name, value in values.items()])

    def artifact(self, path: str, folder: str) -> None:
        file = self._folder / path
        if file.is_dir():
            self._client.log_artifacts(self.run_id, str(file), folder or None)
        else:
            self._client.log_artifact(self.run_id, str(file), folder or None)

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
        exported = Exported(self._folder / path, tuple(image_shape), tuple(class_names), 0.0)  # type: ignore[arg-type]
        mine = f"source_run_id = '{self.run_id}'"
        begun = self._client.search_logged_models([self._experiment], mine)
        logged = (
            begun[0]
            if begun
            else self._client.create_logged_model(
                self._experiment, name="model", source_run_id=self.run_id, model_type="tf2-module"
            )
        )
        if str(logged.status) != "READY":
            with mlflow_model(exported, self.run_id, logged.model_id) as folder:
                self._client.log_model_artifacts(logged.model_id, str(folder))
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


def _unusable(settings: TrackingSettings, error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:200]
    return UserError(
        f"tracking={settings.kind} cannot be used ({reason})",
        "a store that MLflow can open, and that has the run to go on with",
        "tracking=local",
    )
