"""Refuses servers that do not answer or have another version of MLflow, and stores whose class cannot be imported."""

import re
import urllib.error
import urllib.request
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from pipeline.config.experiment import Experiment
from pipeline.config.schemas import MLFLOW_RUN
from pipeline.redaction import credentials_of, redact
from pipeline.source_code.signatures import AbsentError, find
from stages.errors import UserError

SERVER_TIMEOUT_SECONDS = 5

SQLITE = "sqlite:///"


def sqlite_file(uri: str) -> Path | None:
    """Returns the file of a store at an address of SQLite; None for any other address."""
    return Path(uri.removeprefix(SQLITE).partition("?")[0]) if uri.startswith(SQLITE) else None


def store_is_usable(experiment: Experiment) -> None:
    """Raises UserError where the store is known not to take a run, before TensorFlow and MLflow are imported."""
    target = experiment.tracking._target_
    try:
        find(target)
    except AbsentError as error:
        raise UserError(
            f"tracking cannot find {target}",
            "the import path of a class, its package installed or in the working directory",
            f"tracking._target_={MLFLOW_RUN}",
        ) from error
    if target == MLFLOW_RUN:
        server_answers(experiment)


def server_answers(experiment: Experiment) -> None:
    """Raises UserError where the tracking server does not answer, or is of another version than this MLflow."""
    uri = experiment.tracking.uri or ""
    if experiment.tracking.kind != "server" or experiment.dry_run or not uri.startswith(("http://", "https://")):
        return
    address = credentials_of(uri)[0].rstrip("/")
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=SERVER_TIMEOUT_SECONDS):
            pass
    except urllib.error.HTTPError as error:
        if error.code != 404:  # it answers; whether it lets us in is for the first request to tell
            return
        raise UserError(
            f"tracking.uri={redact(uri)} is no MLflow server (it has no /health)",
            "the address of one",
            "tracking.uri=http://127.0.0.1:5000",
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise UserError(
            f"tracking.uri={redact(uri)} does not answer ({reason})",
            "a running MLflow server (mlflow server --port 5000), tracking=local, tracking=off",
            "tracking=local",
        ) from error
    _refuse_other_server(address)


def _refuse_other_server(address: str) -> None:
    """Refuses a server whose minor version is not that of the client: what it takes and answers may differ."""
    text = ""
    with (
        suppress(OSError, ValueError),
        urllib.request.urlopen(f"{address}/version", timeout=SERVER_TIMEOUT_SECONDS) as at,
    ):
        text = at.read(100).decode(errors="replace").strip()
    own = metadata.version("mlflow")
    if re.match(r"\d+\.\d+", text) and text.split(".")[:2] != own.split(".")[:2]:
        raise UserError(
            f"tracking.uri={redact(address)} is a server of MLflow {text}",
            f"one of the version that is installed here, {own}",
            "tracking=local",
        )
