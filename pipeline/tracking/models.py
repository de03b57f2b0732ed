"""Find a model in MLflow: its folder on this machine, and the run that exported it."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from pipeline.tracking.store import Store
from stages.errors import UserError

if TYPE_CHECKING:
    from mlflow import MlflowClient

ADDRESSES = ("models:/", "runs:/")
"""Prefixes of the addresses of models in MLflow."""

RESULTS = "results"
"""The folder with the saved results of the stages, within the folder of a run."""


def run_of_model(uri: str, store: Store) -> str:
    """Return the id of the run that exported the model at `uri`.

    Raises:
        UserError: If MLflow is not available or does not have the model.
    """
    with _one_error("run", uri, "run=<one of them>"):
        client = store.client()
        return str(client.get_logged_model(logged_model(client, uri)).source_run_id)


def model_folder(uri: str, store: Store, setting: str, fix: str) -> Path:
    """Return the folder of the MLflow model at `uri`: the original if it is on this machine, else a copy in the cache.

    Args:
        uri: The address of the model.
        store: The store that has the model.
        setting: The setting with the address, for errors.
        fix: What to type instead, for errors.

    Raises:
        UserError: If MLflow is not available, does not have the model, or its files were deleted.
    """
    with _one_error(setting, uri, fix):
        client = store.client()
        model = logged_model(client, uri)
        location = str(client.get_logged_model(model).artifact_location)
        if location.startswith(("file:", "/")):
            folder = Path(unquote(urlsplit(location).path))
            if not (folder / "MLmodel").is_file():
                expected = "the files of the model, or a link to them"
                raise UserError(f"{setting}={uri}: its files were not found in {folder}", expected, fix)
            return folder
        import mlflow.artifacts

        copy = store.outputs / "cache" / model
        if not copy.is_dir():
            copy.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=copy.parent) as scratch:
                downloaded = mlflow.artifacts.download_artifacts(
                    artifact_uri=location, dst_path=scratch, tracking_uri=store.uri
                )
                with suppress(OSError):  # another process was faster
                    Path(downloaded).replace(copy)
        return copy


@contextmanager
def _one_error(setting: str, uri: str, fix: str) -> Iterator[None]:
    """Convert errors of MLflow and its database into a UserError about `setting`, whose value is `uri`."""
    from mlflow.exceptions import MlflowException  # takes seconds to import
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        expected = "runs:/<run id>, models:/<model id>, models:/<name>/<version>, models:/<name>@<alias>"
        raise UserError(f"{setting}={uri} cannot be loaded ({reason})", expected, fix) from error


def logged_model(client: "MlflowClient", uri: str) -> str:
    """Return the id of the logged model at `uri`, which may name a run, a version of a registered model, or a model.

    Raises:
        MlflowException: If there is no such model.
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
        raise MlflowException(f"it is not a model that a run of this project exported: {source or 'none'}")
    return model
