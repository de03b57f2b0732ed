"""The MLflow store: where it is, its experiments, and its SQLite file made once."""

import fcntl
import logging
import os
import shlex
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from pipeline.config.schemas import TrackingSettings
from pipeline.paths import shorter
from pipeline.redaction import credentials_of, redact
from pipeline.tracking.health import sqlite_file

_USER, _PASSWORD = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
_of_shell = {name: os.environ.get(name) for name in (_USER, _PASSWORD)}

_KIND = {"mlflow.experimentKind": "custom_model_development"}
"""The tag by which MLflow 3.17 shows an experiment as training of models, and not of generative ones."""

_files: dict[str, tuple[int, int, bool] | None] = {}
"""Of each SQLite store that this process has opened, the file that it was then."""


def open_client(settings: TrackingSettings, outputs: Path) -> MlflowClient:
    """Returns a client of the store that `settings` name; makes the file of `tracking=local` if it is missing.

    A file that was deleted or replaced since this process opened it is opened again: connections would still write
    into the deleted one.
    """
    for noisy in ("mlflow", "alembic"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)  # what fails is raised, and said in one line
    uri = store_uri(settings, outputs)
    _log_in(settings.uri if settings.kind == "server" else None)
    file = sqlite_file(uri)
    if file is None:
        return MlflowClient(tracking_uri=uri)
    file.parent.mkdir(parents=True, exist_ok=True)
    with _locked(file.with_name("mlflow.lock")):  # two processes must not migrate one new database at a time
        if was_replaced(settings, outputs):
            _disconnect(uri)
        if not file.exists():
            _make_store(file)
        client = MlflowClient(tracking_uri=uri)
        client.search_experiments(max_results=1)
        _files[uri] = _identity(file)
        if settings.kind == "local":
            _follow_artifacts(file, outputs)
    return client


def _make_store(file: Path) -> None:
    """Makes an SQLite store, whole or not at all.

    MLflow makes it in some fifty migrations. Whatever ends the process between two of them would leave the schema of
    an older MLflow, and other commands would read one meanwhile; both are refused.
    """
    draft = file.with_name(f"{file.name}.new")
    for leftover in (draft, draft.with_name(f"{draft.name}-journal")):
        leftover.unlink(missing_ok=True)
    uri = f"sqlite:///{draft}"
    MlflowClient(tracking_uri=uri).search_experiments(max_results=1)
    _disconnect(uri)
    draft.replace(file)


def was_replaced(settings: TrackingSettings, outputs: Path) -> bool:
    """Returns whether the store is an SQLite file that is not the one that this process has opened."""
    uri = store_uri(settings, outputs)
    file = sqlite_file(uri)
    return file is not None and uri in _files and _files[uri] != _identity(file)


def store_uri(settings: TrackingSettings, outputs: Path) -> str:
    """Returns the store's address; that of a server without user and password, which MLflow would print."""
    if settings.kind != "server":
        return f"sqlite:///{outputs / 'mlflow.db'}"
    return _credentials(settings.uri)[0]


def _log_in(address: str | None) -> None:
    """Hands the user and the password of a server's address to MLflow, which reads them with every request.

    Without any, those of the shell hold again: one server's are not sent to the next one (`pipeline.sync`).
    Source: mlflow.org/docs/latest/self-hosting/security/basic-http-auth, "Using Environment Variables".
    """
    _, user, password = _credentials(address)
    credentials = {_USER: user, _PASSWORD: password} if password else _of_shell
    for name, value in credentials.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _credentials(address: str | None) -> tuple[str, str, str]:
    """Returns a server's address without user and password, and these; MLflow takes a user alone by the address."""
    plain, user, password = credentials_of(address or "")
    is_server = (address or "").startswith(("http://", "https://"))
    return (plain, user, password) if is_server and user and password else (address or "", "", "")


def _identity(file: Path) -> tuple[int, int, bool] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size > 0


def _disconnect(uri: str) -> None:
    """Has MLflow 3.17 open the store at `uri` again: it keeps engines, stores and artifact folders for ever."""
    from mlflow.tracking._tracking_service import utils

    with suppress(MlflowException):
        utils._get_store(uri).engine.dispose()
    utils._tracking_store_registry._get_store_with_resolved_uri.cache_clear()
    _forget_folders()


def _forget_folders() -> None:
    from mlflow.tracking._tracking_service import utils

    utils._artifact_repos_cache.clear()


def _follow_artifacts(file: Path, outputs: Path) -> None:
    """Corrects where the store looks for artifacts after `outputs` was moved or copied: MLflow keeps absolute paths."""
    with closing(sqlite3.connect(file, timeout=60)) as database:
        for name, location in database.execute("SELECT name, artifact_location FROM experiments").fetchall():
            here = outputs / "artifacts" / name
            there = unquote(urlsplit(location or "").path)
            if Path(there).parts[-2:] != ("artifacts", name) or Path(there) == here or not here.is_dir():
                continue
            old = location
            new = here.as_uri()
            statements = (
                "UPDATE experiments SET artifact_location = ?1 || substr(artifact_location, length(?2) + 1) "
                "WHERE artifact_location = ?2",
                "UPDATE runs SET artifact_uri = ?1 || substr(artifact_uri, length(?2) + 1) "
                "WHERE substr(artifact_uri, 1, length(?2) + 1) = ?2 || '/'",
                "UPDATE logged_models SET artifact_location = ?1 || substr(artifact_location, length(?2) + 1) "
                "WHERE substr(artifact_location, 1, length(?2) + 1) = ?2 || '/'",
                "UPDATE model_versions SET storage_location = ?1 || substr(storage_location, length(?2) + 1) "
                "WHERE substr(storage_location, 1, length(?2) + 1) = ?2 || '/'",
            )
            with database:
                for statement in statements:
                    database.execute(statement, (new, old))
            _forget_folders()


def experiment_id(client: MlflowClient, settings: TrackingSettings, outputs: Path, name: str) -> str:
    """Returns the id of the experiment `name`, made if it is missing.

    Without a server an experiment gets an absolute artifact folder: MLflow's default is one under the working
    directory of whoever made the experiment, kept for ever.
    """
    experiment = client.get_experiment_by_name(name)
    if experiment is not None:
        if experiment.lifecycle_stage == "deleted":
            client.restore_experiment(experiment.experiment_id)
        return str(experiment.experiment_id)
    server = store_uri(settings, outputs).startswith(("http://", "https://"))  # it has a place of its own
    location = None if server else (outputs / "artifacts" / name).as_uri()
    try:
        return str(client.create_experiment(name, artifact_location=location, tags=_KIND))
    except MlflowException:
        experiment = client.get_experiment_by_name(name)  # another process may have made it meanwhile
        if experiment is None:
            raise
        return str(experiment.experiment_id)


def how_to_open(settings: TrackingSettings, outputs: Path, experiment: str, run_id: str) -> str:
    """Returns what to type and where to look to see a run in MLflow's pages."""
    uri = str(redact(store_uri(settings, outputs)))
    page = page_of_run(experiment, run_id)
    if uri.startswith(("http://", "https://")):
        return uri.rstrip("/") + page
    program = Path(sys.executable).with_name("mlflow")
    name = shorter(program) if program.exists() else "mlflow"
    return f"{shlex.quote(name)} ui --backend-store-uri {shlex.quote(uri)}\nhttp://127.0.0.1:5000{page}"


def page_of_run(experiment: str, run_id: str | None) -> str:
    """Returns the path of a run's page in MLflow; for None of the table of the experiment's runs.

    Without `workflowType` MLflow 3.17 opens its pages on generative models.
    """
    run = f"/{run_id}" if run_id is not None else ""
    return f"/#/experiments/{experiment}/runs{run}?workflowType=machine_learning"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
