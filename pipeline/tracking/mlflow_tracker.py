"""The tracker that writes to MLflow: by its client alone, to one run that it knows by its id."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Dataset as MlflowDataset
from mlflow.entities import DatasetInput, InputTag, LoggedModelOutput, Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT, MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NOTE
from sqlalchemy.exc import SQLAlchemyError

from pipeline.config import TrackingSettings
from pipeline.secrets import redact
from pipeline.tracking.params import as_text
from pipeline.tracking.saved_model import mlflow_model
from pipeline.tracking.store import experiment_id, how_to_open, open_client
from stages.errors import UserError
from stages.results import Dataset, Exported

PARAMS_PER_BATCH = 100
"""MLflow's own limit of one request."""


class MlflowTracker:
    """One run in MLflow. See `pipeline.tracking.tracker.Tracker`."""

    def __init__(self, client: MlflowClient, experiment: str, run_id: str, open_with: str) -> None:
        self.run_id = run_id
        self._client = client
        self._experiment = experiment
        self._open_with = open_with

    @classmethod
    def start(
        cls,
        settings: TrackingSettings,
        outputs: Path,
        experiment: str,
        run_name: str,
        tags: Mapping[str, str],
        parent: str | None = None,
    ) -> "MlflowTracker":
        """Begins a run, as a child of the run `parent` if that is given."""
        try:
            client = open_client(settings, outputs)
            experiment_number = experiment_id(client, settings, outputs, experiment)
        except (MlflowException, SQLAlchemyError, ImportError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"tracking={settings.kind} cannot be used ({reason})",
                "a store that MLflow can open",
                "tracking=local, or tracking=server tracking.uri=<an MLflow server>",
            ) from error
        found = {str(key): str(redact(value)) for key, value in tags.items()}
        if "note" in found:
            found[MLFLOW_RUN_NOTE] = found["note"]
        if parent:
            found[MLFLOW_PARENT_RUN_ID] = parent
        run = client.create_run(experiment_number, tags=found, run_name=run_name)
        return cls(
            client,
            experiment_number,
            run.info.run_id,
            how_to_open(settings, outputs, experiment_number, run.info.run_id),
        )

    def params(self, values: Mapping[str, Any]) -> None:
        short, long = as_text(values)
        entries = [Param(name, text) for name, text in short.items()]
        for start in range(0, len(entries), PARAMS_PER_BATCH):
            self._client.log_batch(self.run_id, params=entries[start : start + PARAMS_PER_BATCH])
        for name, text in long.items():
            self.text(text, f"long_params/{name}.txt")

    def tags(self, values: Mapping[str, str]) -> None:
        tags = [RunTag(name, str(redact(value))[:5000]) for name, value in values.items()]
        self._client.log_batch(self.run_id, tags=tags)

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        now = int(time.time() * 1000)
        self._client.log_batch(self.run_id, [Metric(name, float(value), now, step) for name, value in values.items()])

    def artifact(self, path: Path, folder: str = "") -> None:
        if path.is_dir():
            self._client.log_artifacts(self.run_id, str(path), folder or None)
        else:
            self._client.log_artifact(self.run_id, str(path), folder or None)

    def text(self, content: str, name: str) -> None:
        self._client.log_text(self.run_id, str(redact(content)), name)

    def dataset(self, dataset: Dataset) -> None:
        sizes = {name: len(split) for name, split in dataset.splits.items()}
        entity = MlflowDataset(
            name=dataset.name,
            digest=dataset.fingerprint,
            source_type="code",
            source=json.dumps({"tags": {"data": dataset.name}}),
            profile=json.dumps(sizes),
        )
        tags = [InputTag(MLFLOW_DATASET_CONTEXT, "train, val, test")]
        self._client.log_inputs(self.run_id, [DatasetInput(entity, tags)])

    def model(self, exported: Exported) -> None:
        logged = self._client.create_logged_model(
            self._experiment, name="model", source_run_id=self.run_id, model_type="tf2-module"
        )
        try:
            with mlflow_model(exported, self.run_id, logged.model_id) as folder:
                self._client.log_model_artifacts(logged.model_id, str(folder))
        except BaseException:
            self._client.finalize_logged_model(logged.model_id, "FAILED")
            raise
        self._client.finalize_logged_model(logged.model_id, "READY")
        self._client.log_outputs(self.run_id, [LoggedModelOutput(logged.model_id, step=0)])
        self.tags({"model_uri": f"models:/{logged.model_id}"})

    def end(self, status: str) -> None:
        self._client.set_terminated(self.run_id, status)

    def fail_lost_children(self) -> None:
        """Ends as FAILED what processes that were killed have left RUNNING."""
        lost = f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{self.run_id}' and attributes.status = 'RUNNING'"
        for run in self._client.search_runs([self._experiment], lost):
            self._client.set_tag(run.info.run_id, "error", "its process was killed")
            self._client.set_terminated(run.info.run_id, "FAILED")

    @staticmethod
    def end_lost(settings: TrackingSettings, outputs: Path, run_id: str, status: str, error: str) -> None:
        """Ends a run whose process can no longer do it."""
        client = open_client(settings, outputs)
        client.set_tag(run_id, "error", error)
        client.set_terminated(run_id, status)

    def how_to_open(self) -> str:
        return self._open_with
