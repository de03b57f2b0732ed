"""Versions of models in MLflow's registry, and the alias that moves to the better one."""

import tempfile
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.tracking._tracking_service.utils import _use_tracking_uri

from pipeline.tracking.params import CARD
from stages.evaluation.predictions import CLASSES, compare_predictions, metadata_of
from stages.evaluation.predictions import NAME as PREDICTIONS
from stages.evaluation.test_set import is_same_test_set

LONGEST_DESCRIPTION = 5000
"""Characters of a version's description in MLflow's database."""


class Registry:
    """Versions of the registered model `name` in the store at `uri`.

    folder: of the run whose model becomes a version, with its card and its predictions. version: that one's number.
    """

    def __init__(self, client: MlflowClient, uri: str, folder: Path, name: str) -> None:
        self.version = ""
        self._client = client
        self._uri = uri
        self._folder = folder
        self._name = name

    def register(self, run_id: str, model_id: str) -> str:
        """Register a logged model as a version, once; return what came of it."""
        name, source = self._name, f"models:/{model_id}"
        with suppress(MlflowException):  # there is one of this name; what else is wrong, the next request says
            self._client.create_registered_model(name)
        versions = self._client.search_model_versions(f"name = '{name}'")
        version = next((version for version in versions if version.source == source), None)
        if version is None:
            card = self._folder / "export" / CARD
            text = card.read_text().rpartition("---\n\n")[2] if card.is_file() else None  # without front matter
            # MLflow 3.17 looks for the model in the process' default store, whichever the client has.
            with _use_tracking_uri(self._uri):
                version = self._client.create_model_version(
                    name,
                    source,
                    run_id,
                    description=text and text[:LONGEST_DESCRIPTION],
                    model_id=model_id,
                    await_creation_for=0,
                )
        self.version = str(version.version)
        return f"registered as {name}, version {self.version}: models:/{name}/{self.version}"

    def decide(self, alias: str, promote_if: str, confidence: float) -> str:
        """Move `alias` to the version where `promote_if` holds; return a sentence that says whether, and why.

        That is decided once: an entry that is sent again, when the alias may be where a later run or a user has moved
        it, leaves it there.
        """
        tag = f"promotion.{alias}"
        verdict = self._client.get_model_version(self._name, self.version).tags.get(tag)
        if verdict is None:
            verdict = self._promote(alias, promote_if, confidence)
            self._client.set_model_version_tag(self._name, self.version, tag, verdict)
        return str(verdict)

    def _promote(self, alias: str, promote_if: str, confidence: float) -> str:
        """Compare with the version that has the alias, and again where another run has moved it meanwhile.

        MLflow has no conditional update; only runs that move it within the same milliseconds can miss each other.
        """
        holder, reason = self._holder(alias), "there was none"
        if holder == self.version:
            return f"{alias} of {self._name} is version {holder}"
        if holder is not None:
            is_better, reason = True, "export.promote_if=always"
            if promote_if != "always":
                run_id = self._client.get_model_version(self._name, holder).run_id
                is_better, reason = self.compared_with(run_id, promote_if, confidence)
            if not is_better:
                return f"{alias} of {self._name} stays version {holder}: {reason}"
        if self._holder(alias) != holder:
            return self._promote(alias, promote_if, confidence)
        self._client.set_registered_model_alias(self._name, alias, self.version)
        before = f" (before: version {holder})" if holder is not None else ""
        return f"{alias} of {self._name} is now version {self.version}{before}: {reason}"

    def _holder(self, alias: str) -> str | None:
        """Return the version that has the alias."""
        version = self._client.get_registered_model(self._name).aliases.get(alias)
        return None if version is None else str(version)

    def compared_with(self, run_id: str | None, promote_if: str, confidence: float) -> tuple[bool, str]:
        """Return whether this run's model is better than that of another run, and why or why not."""
        with tempfile.TemporaryDirectory() as temporary:
            try:
                if not run_id or PREDICTIONS not in {entry.path for entry in self._client.list_artifacts(run_id)}:
                    raise FileNotFoundError(f"the run of the alias has no {PREDICTIONS}")
                self._client.download_artifacts(run_id, PREDICTIONS, temporary)
                ours, theirs = metadata_of(self._folder), metadata_of(Path(temporary))
                if ours[CLASSES] != theirs[CLASSES]:
                    return False, "it predicts something else"
                if not is_same_test_set(ours, theirs):
                    return False, "it was tested on other examples, so that the two cannot be compared"
                against = compare_predictions(self._folder / PREDICTIONS, Path(temporary), confidence)
            except (FileNotFoundError, KeyError, pa.ArrowException) as error:
                return False, f"the predictions of one of the two cannot be read ({error})"
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
                return False, "the store no longer has its run, so that the two cannot be compared"
        difference = f"{against.metric} {against.change}"
        if promote_if == "higher":
            return against.is_better, difference
        if against.is_surely_better:
            return True, f"better by more than the interval, {difference}"
        if against.is_better:
            return False, f"{difference}, an interval that includes 0"
        return False, f"this one is not better, {difference}"
