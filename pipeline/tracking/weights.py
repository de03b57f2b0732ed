"""Weights of a tracked run or of a model in MLflow, as a folder on this machine."""

import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from pipeline.config.experiment import Experiment
from pipeline.config.schemas import TrackingSettings
from stages.errors import UserError
from stages.settings.model import ModelSettings

if TYPE_CHECKING:
    from mlflow import MlflowClient


ADDRESSES = ("models:/", "runs:/")
"""Beginnings of a model's address in MLflow."""


def local_weights(settings: ModelSettings, experiment: Experiment) -> Path | None:
    """Returns the folder of the weights that `settings` name in MLflow; None where they name a path or none.

    Raises:
        UserError: where MLflow cannot be asked, or has no such model.
    """
    if not settings.is_tracked:
        return None
    name = "model.weights"
    return model_folder(settings.weights, experiment.tracking, experiment.outputs, name, f"{name}=<one of them>")


def run_of_model(uri: str, tracking: TrackingSettings, outputs: Path) -> str:
    """Returns the id of the run that has exported the model at `uri`.

    Raises:
        UserError: where MLflow cannot be asked, or has no such model.
    """
    from pipeline.tracking.store import open_client

    with one_error("run", uri, "run=<one of them>"):
        client = open_client(tracking, outputs)
        return str(client.get_logged_model(logged_model(client, uri)).source_run_id)


def model_folder(uri: str, tracking: TrackingSettings, outputs: Path, setting: str, fix: str) -> Path:
    """Returns the folder of the MLflow model at `uri`: where it is on this machine, else a copy in the cache.

    Args:
        setting: what named it, for errors.
        fix: what to type instead, for errors.

    Raises:
        UserError: where MLflow cannot be asked, or has no such model.
    """
    from pipeline.tracking.store import open_client, store_uri

    with one_error(setting, uri, fix):
        client = open_client(tracking, outputs)
        model = logged_model(client, uri)
        location = str(client.get_logged_model(model).artifact_location)
        if location.startswith(("file:", "/")):
            return _check_there(Path(unquote(urlsplit(location).path)), f"{setting}={uri}")
        return _download(model, location, store_uri(tracking, outputs), outputs)


@contextmanager
def one_error(setting: str, uri: str, fix: str) -> Iterator[None]:
    """Raises whatever MLflow or its database raise as a UserError about `setting`, whose value is `uri`."""
    from mlflow.exceptions import MlflowException  # seconds to import
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{setting}={uri} cannot be loaded ({reason})",
            "runs:/<id of a run that exported>, models:/<model id>, models:/<name>/<version>, models:/<name>@<alias>",
            fix,
        ) from error


def logged_model(client: "MlflowClient", uri: str) -> str:
    """Returns the id of the logged model that `uri` means: of a run its own, of a registered model that of a version.

    Raises:
        MlflowException: where there is none.
    """
    from mlflow.exceptions import MlflowException

    kind, _, name = uri.partition(":/")
    name = name.strip("/")
    if kind == "runs":
        source = client.get_run(name.partition("/")[0]).data.tags.get("model_uri", "")
    elif "@" in name:
        source = client.get_model_version_by_alias(*name.split("@", 1)).source
    elif "/" in name:
        source = client.get_model_version(*name.split("/", 1)).source
    else:
        source = uri
    model = str(source).removeprefix("models:/").strip("/")
    if not model.startswith("m-"):
        raise MlflowException(f"it is no model that a run of this project has exported: {source or 'none'}")
    return model


def _check_there(folder: Path, model: str) -> Path:
    """Returns the folder of a logged model on this machine.

    Args:
        model: as the user named it, for errors.

    Raises:
        UserError: where it is gone; an `outputs` that has moved with its store is followed by `open_client`.
    """
    file = folder / "MLmodel"
    if not file.is_file():
        lost = next((path for path in [*reversed(file.parents), file] if not path.exists()), file)
        raise UserError(
            f"{model}: its files are no longer in {folder}",
            f"{lost} as it was, or a link to where it is now",
            f"ln -s <where it is now> {shlex.quote(str(lost))}",
        )
    return folder


def _download(model: str, location: str, store: str, outputs: Path) -> Path:
    """Returns a copy in the cache of a logged model, which never changes."""
    import mlflow.artifacts

    copy = outputs / "cache" / model
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=copy.parent) as partial:
            downloaded = mlflow.artifacts.download_artifacts(
                artifact_uri=location, dst_path=partial, tracking_uri=store
            )
            with suppress(OSError):  # another job was faster
                Path(downloaded).replace(copy)
    return copy
