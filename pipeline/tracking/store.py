"""The MLflow store: its address, its client, its experiments, and the checks whether it can be used."""

import fcntl
import logging
import os
import re
import shlex
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.config.experiment import Experiment
from pipeline.config.schemas import MLFLOW_RUN, SQLITE, TrackingSettings
from pipeline.internals.mlflow import disconnect, experiment_folders, limit_answers, move_artifacts, remote_artifacts
from pipeline.paths import CONF, outputs_folder, shorter
from pipeline.redaction import credentials_of, redact
from pipeline.targets import load
from pipeline.tracking.views import RUNS, key_of, query
from stages.errors import UserError
from stages.storage.atomic import fsync

if TYPE_CHECKING:  # MLflow takes seconds to import, and errors must be reported before that
    from mlflow import MlflowClient

SERVER_TIMEOUT_SECONDS = 5

WORKFLOW = "workflowType=machine_learning"
"""Part of an address. Without it, MLflow 3.17 opens its pages for generative models."""

HTTP = ("http://", "https://")

LOCAL_PAGES = "http://127.0.0.1:5000"
"""The address at which `mlflow ui` serves its pages."""

LONGEST_ANSWER = 10**8
"""Maximum number of bytes of a server's response, which is kept in memory."""

LONGEST_ANSWER_SECONDS = 300.0
"""Maximum duration of such a response, in seconds."""

_opened: set[str] = set()
"""Addresses of the SQLite stores that this process has opened."""

_KIND = {"mlflow.experimentKind": "custom_model_development"}
"""The tag that makes MLflow 3.17 show an experiment as model training instead of generative AI."""


@dataclass(frozen=True)
class Store:
    """The store that `settings` name. With `tracking=local`, it is in `outputs`."""

    settings: TrackingSettings
    outputs: Path

    @property
    def uri(self) -> str:
        """The store's address, with its password."""
        return self.settings.uri or "" if self.settings.kind == "server" else f"{SQLITE}{self.outputs / 'mlflow.db'}"

    def client(self) -> "MlflowClient":
        """Return a client of the store. A missing SQLite file is created.

        If this process has opened the file before, it is opened again: it may have been deleted or replaced since, and
        the old connections would still write to the deleted file.
        """
        from mlflow import MlflowClient

        limit_answers(LONGEST_ANSWER, LONGEST_ANSWER_SECONDS)
        for noisy in ("mlflow", "alembic"):
            logging.getLogger(noisy).setLevel(logging.CRITICAL)  # errors are raised, and reported in one line
        if self.uri.startswith(SQLITE):
            file = Path(self.uri.removeprefix(SQLITE).partition("?")[0])
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.with_name("mlflow.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # two processes must not migrate a new database at the same time
                if self.uri in _opened:
                    disconnect(self.uri)
                if not file.exists():
                    _create_store(file)
                client = MlflowClient(tracking_uri=self.uri)
                client.search_experiments(max_results=1)
                _opened.add(self.uri)
                if self.settings.kind == "local":
                    _follow_artifacts(file, self.outputs)
            return client
        return MlflowClient(tracking_uri=self.uri)

    def experiment_id(self, client: "MlflowClient", name: str) -> str:
        """Return the id of the experiment `name`, which is created if it is missing.

        Without a server, an experiment gets an absolute artifact folder. MLflow's default is a folder below the working
        directory of the process that created the experiment, which is stored permanently.
        """
        from mlflow.exceptions import MlflowException

        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            location = None if self.uri.startswith(HTTP) else (self.outputs / "artifacts" / name).as_uri()
            try:
                return str(client.create_experiment(name, artifact_location=location, tags=_KIND))
            except MlflowException:
                experiment = client.get_experiment_by_name(name)  # another process may have created it in the meantime
                if experiment is None:
                    raise
        elif experiment.lifecycle_stage == "deleted":
            with suppress(MlflowException):  # another process may have restored it in the meantime
                client.restore_experiment(experiment.experiment_id)
        return str(experiment.experiment_id)

    def open_with(self, experiment: str, run_id: str, has_jobs: bool = False) -> str:
        """Return the command and the address that show a run in MLflow's pages, one per line.

        Args:
            experiment: The id of the experiment.
            run_id: The id of the run.
            has_jobs: Whether it is the run of a sweep. The address then shows a view of its jobs.
        """
        run = f"{experiment}/runs/{run_id}?{WORKFLOW}"
        address = self._view(experiment, key_of(run_id)) if has_jobs else self._address(run)
        uri = str(redact(self.uri))
        if uri.startswith(HTTP):
            return address
        if self.settings.kind == "local":
            place = "" if self.outputs == outputs_folder(None) else f" outputs={shlex.quote(shorter(self.outputs))}"
            return f"python -m pipeline ui{place}\n{address}"
        return f"python -m mlflow ui --backend-store-uri {shlex.quote(uri)}\n{address}"

    def links(self, experiment: str, run_id: str, has_jobs: bool) -> dict[str, str]:
        """Return other addresses with their labels: the charts of a sweep, or all runs of the experiment."""
        if has_jobs:
            return {"charts": self._view(experiment, key_of(run_id), charts=True)}
        return {"all runs": self._view(experiment, RUNS)}

    def _view(self, experiment: str, key: str, charts: bool = False) -> str:
        return self._address(f"{experiment}/runs?{WORKFLOW}&{query(key, charts)}")

    def _address(self, page: str) -> str:
        uri = str(redact(self.uri))
        return f"{uri.rstrip('/') if uri.startswith(HTTP) else LOCAL_PAGES}/#/experiments/{page}"


def is_named_by_user(uri: str) -> bool:
    """Return whether MLFLOW_TRACKING_URI, or an option of `tracking` in `conf/`, names the store at `uri`."""
    named = [os.environ.get("MLFLOW_TRACKING_URI")]
    for path in (CONF / "tracking").glob("*.yaml"):
        with suppress(OmegaConfBaseException):
            named.append(OmegaConf.select(OmegaConf.load(path), "uri"))
    return _plain(uri) in [_plain(str(one)) for one in named if one]


def _plain(uri: str) -> str:
    return credentials_of(uri)[0].rstrip("/")


def is_duplicate(error: Exception) -> bool:
    """Return whether a database refuses a row because it exists already. All databases use one of these two words.

    MLflow reports failures to serialize, deadlocks and locked files as temporary errors.
    """
    return re.search(r"unique|duplicate", str(error), re.IGNORECASE) is not None


def store_is_usable(experiment: Experiment) -> None:
    """Refuse a store that cannot be used. The checks do not import TensorFlow or MLflow."""
    if experiment.tracking._target_ != MLFLOW_RUN:
        load("tracking", experiment.tracking._target_)
    else:
        check_server(experiment)


def check_server(experiment: Experiment) -> None:
    """Refuse a tracking server that does not respond, or whose version differs from the MLflow installed here."""
    uri = experiment.tracking.uri or ""
    if experiment.tracking.kind != "server" or experiment.dry_run or not uri.startswith(HTTP):
        return
    import urllib.request
    from importlib import metadata

    shown = f"tracking.uri={redact(uri)}"
    try:
        address = f"{credentials_of(uri)[0].rstrip('/')}/version"
        with urllib.request.urlopen(address, timeout=SERVER_TIMEOUT_SECONDS) as response:
            version = response.read(100).decode(errors="replace").strip()
    except (OSError, ValueError) as error:
        if getattr(error, "code", 404) != 404:  # it responds; the first request reports a lack of permission
            return
        fault = "is not an MLflow server" if hasattr(error, "code") else "does not respond"
        problem = f"{shown} {fault} ({getattr(error, 'reason', error)})"
        raise UserError(problem, "the address of a running MLflow server", "tracking.uri=<address>") from error
    own = metadata.version("mlflow")
    if version.split(".")[:2] != own.split(".")[:2]:
        problem = f"{shown} runs MLflow {version}, but this environment has {own}"
        raise UserError(problem, "the address of a server with the same version", "tracking.uri=<address>")


def _create_store(file: Path) -> None:
    """Create an SQLite store, completely or not at all.

    MLflow creates it in about fifty migrations. If the process ended between two of them, the file would have the
    schema of an older MLflow, which is refused, and other commands would read such a schema in the meantime. Therefore
    the file is created under another name. It is flushed to disk only once, at the end: flushing each migration takes
    five seconds on a slow disk.
    """
    from mlflow import MlflowClient
    from sqlalchemy import Engine, event

    def unsynced(connection: Any, _: object) -> None:
        connection.execute("PRAGMA synchronous=OFF")

    draft = file.with_name(f"{file.name}.new")
    for leftover in (draft, draft.with_name(f"{draft.name}-journal")):
        leftover.unlink(missing_ok=True)
    event.listen(Engine, "connect", unsynced)
    try:
        MlflowClient(tracking_uri=f"{SQLITE}{draft}").search_experiments(max_results=1)
    finally:
        event.remove(Engine, "connect", unsynced)
    disconnect(f"{SQLITE}{draft}")
    fsync(draft)
    draft.replace(file)


def _follow_artifacts(file: Path, outputs: Path) -> None:
    """Correct artifact folders in the database after `outputs` was moved or copied: MLflow stores absolute paths."""
    import sqlite3

    with closing(sqlite3.connect(file, timeout=60)) as database, database:
        for name, old in experiment_folders(database):
            here = outputs / "artifacts" / name
            if old.endswith(f"/artifacts/{quote(name)}") and old != here.as_uri() and here.is_dir():
                move_artifacts(database, old, here.as_uri())
        if address := remote_artifacts(database):
            problem = f"{shorter(file)} refers to {redact(address)}, which would receive your MLflow credentials"
            raise UserError(problem, "a database of your own whose artifacts are local files", "outputs=./outputs")
