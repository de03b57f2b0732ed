"""Refuses stores that do not answer, have another version of MLflow, or whose class cannot be imported."""

import re
import sqlite3
import urllib.error
import urllib.request
from contextlib import closing, suppress
from importlib import metadata, util
from pathlib import Path

from pipeline.config.experiment import Experiment
from pipeline.config.schemas import MLFLOW_RUN
from pipeline.paths import shorter
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
    if experiment.dry_run or target != MLFLOW_RUN:
        return
    if experiment.tracking.kind == "local":
        refuse_other_schema(experiment.outputs / "mlflow.db")
    elif experiment.tracking.kind == "server" and (file := sqlite_file(experiment.tracking.uri or "")) is not None:
        refuse_other_schema(file)
    else:
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


def refuse_other_schema(file: Path) -> None:
    """Raises UserError where an SQLite store was made by another version of MLflow, whose schema differs from ours.

    A file that is missing, empty or no store is left to MLflow.
    """
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as database:
            row = database.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.Error:
        return
    revisions, head = _schemas()
    if row is None or head is None or row[0] == head:
        return
    older = row[0] in revisions
    raise UserError(
        f"{shorter(file)} has the schema {row[0]}, of {'an older' if older else 'another'} MLflow",
        f"{head}, that of MLflow {metadata.version('mlflow')}",
        f"mlflow db upgrade sqlite:///{file.absolute()}" if older else "tracking=off",
    )


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


def _schemas() -> tuple[set[str], str | None]:
    """Returns the revisions of MLflow's schema and the last of them, as its files name them: it is not imported."""
    spec = util.find_spec("mlflow")
    folder = Path(spec.origin or "").parent / "store" / "db_migrations" / "versions" if spec else Path("none")
    texts = [path.read_text() for path in folder.glob("*.py")]
    found = {match[1] for text in texts if (match := re.search(r"^revision\s*=\s*[\"'](\w+)", text, re.M))}
    before = {match[1] for text in texts if (match := re.search(r"^down_revision\s*=\s*[\"'](\w+)", text, re.M))}
    heads = found - before
    return found, heads.pop() if len(heads) == 1 else None
