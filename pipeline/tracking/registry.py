"""Versions of models in MLflow's registry, and the alias that moves to the better one."""

import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from mlflow.exceptions import MlflowException
from mlflow.tracking._tracking_service.utils import _use_tracking_uri

from pipeline.tracking.params import CARD
from stages.evaluation.predictions import CLASSES, compare_predictions, metadata_of
from stages.evaluation.predictions import NAME as PREDICTIONS
from stages.evaluation.test_set import is_same_test_set

LONGEST_DESCRIPTION = 5000
"""Characters of a version's description in MLflow's database."""


@dataclass(frozen=True)
class Registration:
    """A model to be registered.

    store: its address. name: of the registered model. alias: moves to the version where `promote_if` holds; None: there
    is none. promote_if: see `ExportSettings`. confidence: of the interval of a difference in accuracy.
    """

    store: str
    name: str
    alias: str | None
    promote_if: str
    confidence: float


def register(client: Any, run_id: str, model_id: str, wanted: Registration, folder: Path) -> list[str]:
    """Register a logged model as a version, once, and moves the alias where it is better; return what came of it.

    Whether the alias moves is decided once: an entry that is sent again, when the alias may be where a later run or a
    user has moved it, leaves it there.

    Args:
        folder: of the run, with its predictions.
    """
    version = _version(client, run_id, model_id, wanted, folder)
    lines = [f"registered as {wanted.name}, version {version}: models:/{wanted.name}/{version}"]
    if wanted.alias is not None:
        tag = f"promotion.{wanted.alias}"
        verdict = client.get_model_version(wanted.name, version).tags.get(tag)
        if verdict is None:
            verdict = _promote(client, version, wanted, folder)
            client.set_model_version_tag(wanted.name, version, tag, verdict)
        lines.append(verdict)
    return lines


def _version(client: Any, run_id: str, model_id: str, wanted: Registration, folder: Path) -> str:
    """Return the version of the model, made unless there is one."""
    name = wanted.name
    with suppress(MlflowException):  # there is one of this name; what else is wrong, the next request says
        client.create_registered_model(name)
    versions = client.search_model_versions(f"name = '{name}'")
    for version in versions:
        if version.source == f"models:/{model_id}":
            return str(version.version)
    card = folder / "export" / CARD
    description = card.read_text()[:LONGEST_DESCRIPTION] if card.is_file() else None
    # MLflow 3.17 looks for the model in the process' default store, whichever the client has.
    with _use_tracking_uri(wanted.store):
        made = client.create_model_version(
            name, f"models:/{model_id}", run_id, description=description, model_id=model_id, await_creation_for=0
        )
    return str(made.version)


def _promote(client: Any, version: str, wanted: Registration, folder: Path) -> str:
    """Move the alias to `version` where `promote_if` holds; return a sentence that says whether, and why.

    A run that has moved the alias during the comparison is compared with as well: the better of two that end at the
    same time keeps it. MLflow has no conditional update; only runs that move it within the same milliseconds can miss
    each other.
    """
    name, alias = wanted.name, wanted.alias
    while True:
        holder = _holder(client, wanted)
        if holder == version:
            return f"{alias} of {name} is version {version}"
        is_better, reason = _is_better(client, holder, wanted, folder)
        if not is_better:
            return f"{alias} of {name} stays version {holder}: {reason}"
        if _holder(client, wanted) == holder:
            client.set_registered_model_alias(name, alias, version)
            before = f" (before: version {holder})" if holder is not None else ""
            return f"{alias} of {name} is now version {version}{before}: {reason}"


def _holder(client: Any, wanted: Registration) -> str | None:
    """Return the version that has the alias."""
    version = client.get_registered_model(wanted.name).aliases.get(wanted.alias)
    return None if version is None else str(version)


def _is_better(client: Any, holder: str | None, wanted: Registration, folder: Path) -> tuple[bool, str]:
    """Return whether the alias should leave the version `holder`, and why or why not."""
    if holder is None:
        return True, "there was none"
    if wanted.promote_if == "always":
        return True, "export.promote_if=always"
    return compared_with(client, client.get_model_version(wanted.name, holder).run_id, wanted, folder)


def compared_with(client: Any, holder_run: str | None, wanted: Registration, folder: Path) -> tuple[bool, str]:
    """Return whether this run's model is better than that of the alias' run, and why or why not."""
    with tempfile.TemporaryDirectory() as temporary:
        try:
            if not holder_run or PREDICTIONS not in {entry.path for entry in client.list_artifacts(holder_run)}:
                raise FileNotFoundError(f"the run of the alias has no {PREDICTIONS}")
            client.download_artifacts(holder_run, PREDICTIONS, temporary)
            ours = metadata_of(folder)
            theirs = metadata_of(Path(temporary))
            if ours[CLASSES] != theirs[CLASSES]:
                return False, "it has other classes"
            if not is_same_test_set(ours, theirs):
                return False, "it was tested on other examples, so that the two cannot be compared"
            against = compare_predictions(folder / PREDICTIONS, Path(temporary), wanted.confidence)
        except (FileNotFoundError, KeyError, pa.ArrowException) as error:
            return False, f"the predictions of one of the two cannot be read ({error})"
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":  # else the store no longer has the run
                raise
            return False, "the store no longer has its run, so that the two cannot be compared"
    accuracy, difference = against.accuracy, against.accuracy_in_points
    if wanted.promote_if == "higher":
        return accuracy.difference > 0, f"accuracy {difference}"
    if accuracy.low > 0:
        return True, f"better by more than the interval, accuracy {difference}"
    if accuracy.difference > 0:
        return False, f"accuracy {difference}, an interval that includes 0"
    return False, f"this one is not better, accuracy {difference}"
