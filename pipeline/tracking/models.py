"""Models and runs in MLflow, as folders on this machine: weights to start from, and results to begin with."""

import json
import shlex
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
"""Beginnings of a model's address in MLflow."""

RESULTS = "results"
"""The folder of a run with what its stages have saved, which one recorded by a server has as an artifact, too."""

_ARTIFACTS = ("summary.json", "config.yaml", "code/code.json", RESULTS)
"""Files that a copy of a run has. The summary, recorded last, comes first: what it tells of is there."""


def run_of_model(uri: str, store: Store) -> str:
    """Return the id of the run that has exported the model at `uri`.

    Raises:
        UserError: where MLflow cannot be asked, or has no such model.
    """
    with _one_error("run", uri, "run=<one of them>"):
        client = store.client()
        return str(client.get_logged_model(logged_model(client, uri)).source_run_id)


def model_folder(uri: str, store: Store, setting: str, fix: str) -> Path:
    """Return the folder of the MLflow model at `uri`: where it is on this machine, else a copy in the cache.

    Args:
        setting: what named it, for errors.
        fix: what to type instead, for errors.

    Raises:
        UserError: where MLflow cannot be asked, or has no such model, or its files are gone.
    """
    with _one_error(setting, uri, fix):
        client = store.client()
        model = logged_model(client, uri)
        location = str(client.get_logged_model(model).artifact_location)
        if location.startswith(("file:", "/")):
            folder = Path(unquote(urlsplit(location).path))
            if not (folder / "MLmodel").is_file():
                missing = next((parent for parent in reversed(folder.parents) if not parent.exists()), folder)
                raise UserError(
                    f"{setting}={uri}: its files are no longer in {folder}",
                    "them in their place, or a link to where they are",
                    f"ln -s <where it is now> {shlex.quote(str(missing))}",
                )
            return folder
        import mlflow.artifacts

        copy = store.outputs / "cache" / model
        if not copy.is_dir():
            with _scratch(copy) as scratch:
                made = mlflow.artifacts.download_artifacts(
                    artifact_uri=location, dst_path=str(scratch), tracking_uri=store.uri
                )
                _keep(Path(made), copy)
        return copy


def copy_of_run(run_id: str, uri: str, store: Store) -> Path:
    """Return the folder of a copy of a run whose own folder is elsewhere; it is kept in the cache.

    Args:
        uri: of the model by which the run was named, for errors.

    Raises:
        UserError: where MLflow cannot be asked, or has no results of the run.
    """
    copy = store.outputs / "cache" / f"run-{run_id}"
    if copy.is_dir():
        return copy
    with _one_error("run", uri, "run=<one of them>"), _scratch(copy) as scratch:
        client = store.client()
        if not {RESULTS, "summary.json"} <= {artifact.path for artifact in client.list_artifacts(run_id)}:
            raise UserError(
                f"run={uri}: the folder of run {run_id} is not under {store.outputs}, nor are its results in MLflow",
                "a run recorded with tracking=server, or the outputs that have its folder",
                f"run={uri} outputs=<where it was made>",
            )
        made = scratch / "run"
        made.mkdir()
        for artifact in _ARTIFACTS:
            Path(client.download_artifacts(run_id, artifact, str(scratch))).replace(made / Path(artifact).name)
        status = json.loads((made / "summary.json").read_text()).get("status")
        if status != "FINISHED":
            raise UserError(f"run={uri}: its run is {status} in MLflow", "a run that is FINISHED there")
        _keep(made, copy)
    return copy


@contextmanager
def _scratch(copy: Path) -> Iterator[Path]:
    copy.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=copy.parent) as scratch:
        yield Path(scratch)


def _keep(made: Path, copy: Path) -> None:
    with suppress(OSError):  # another process was faster
        made.replace(copy)


@contextmanager
def _one_error(setting: str, uri: str, fix: str) -> Iterator[None]:
    """Raise whatever MLflow or its database raise as a UserError about `setting`, whose value is `uri`."""
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
    """Return the id of the logged model that `uri` means: of a run its own, of a registered model that of a version.

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
