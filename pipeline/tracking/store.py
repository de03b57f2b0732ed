"""The MLflow store: where it is, its experiments, and its SQLite file made once."""

import fcntl
import logging
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from pipeline.config import TrackingSettings
from pipeline.paths import shorter
from pipeline.secrets import credentials_of, redact

_USER, _PASSWORD = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
_of_shell = {name: os.environ.get(name) for name in (_USER, _PASSWORD)}


def open_client(settings: TrackingSettings, outputs: Path) -> MlflowClient:
    """Returns a client of the store that `settings` name; makes the file of `tracking=local` if it is missing."""
    for noisy in ("mlflow", "alembic"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)  # what fails is raised, and said in one line
    uri = store_uri(settings, outputs)
    _log_in(settings.uri if settings.kind == "server" else None)
    if settings.kind == "server":
        return MlflowClient(tracking_uri=uri)
    outputs.mkdir(parents=True, exist_ok=True)
    with _locked(outputs / "mlflow.lock"):  # two processes must not migrate one new database at a time
        client = MlflowClient(tracking_uri=uri)
        client.search_experiments(max_results=1)
    return client


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
    wanted = {_USER: user, _PASSWORD: password} if password else _of_shell
    for name, value in wanted.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _credentials(address: str | None) -> tuple[str, str, str]:
    """Returns a server's address without user and password, and these; MLflow takes a user alone by the address."""
    plain, user, password = credentials_of(address or "")
    is_server = (address or "").startswith(("http://", "https://"))
    return (plain, user, password) if is_server and user and password else (address or "", "", "")


def experiment_id(client: MlflowClient, settings: TrackingSettings, outputs: Path, name: str) -> str:
    """Returns the id of the experiment `name`, made if it is missing.

    Without a server an experiment gets an absolute artifact folder: MLflow's default is one under the working
    directory of whoever made the experiment, kept for ever.
    """
    found = client.get_experiment_by_name(name)
    if found is not None:
        if found.lifecycle_stage == "deleted":
            client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)
    server = store_uri(settings, outputs).startswith(("http://", "https://"))  # it has a place of its own
    location = None if server else (outputs / "artifacts" / name).as_uri()
    try:
        return str(client.create_experiment(name, artifact_location=location))
    except MlflowException:
        found = client.get_experiment_by_name(name)  # another process may have made it meanwhile
        if found is None:
            raise
        return str(found.experiment_id)


def how_to_open(settings: TrackingSettings, outputs: Path, experiment: str, run_id: str) -> str:
    """Returns what to type and where to look to see a run in MLflow's pages."""
    uri = str(redact(store_uri(settings, outputs)))
    page = f"/#/experiments/{experiment}/runs/{run_id}"
    if uri.startswith(("http://", "https://")):
        return uri.rstrip("/") + page
    program = Path(sys.executable).with_name("mlflow")
    name = shorter(program) if program.exists() else "mlflow"
    return f"{shlex.quote(name)} ui --backend-store-uri {shlex.quote(uri)}\nhttp://127.0.0.1:5000{page}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
