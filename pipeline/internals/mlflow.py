"""Private and undocumented names of MLflow: its caches, its HTTP session, its database, its scoring server.

MLflow takes seconds to import, so the functions import it when they are called.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any


def limit_answers(most_bytes: int, most_seconds: float) -> None:
    """Limit the responses that MLflow reads into memory; a second call changes the limits.

    MLflow reads responses without a limit, so an endless response would use up the memory. The limits apply to the
    session of `requests` that one of MLflow's functions returns. Files are not limited, because MLflow writes them to
    the disk.
    """
    import requests
    from mlflow.utils import request_utils

    def read(response: Any, *_: object, **options: Any) -> None:
        if options.get("stream"):  # a file
            return
        parts, length, deadline = list[bytes](), 0, time.monotonic() + most_seconds
        for part in response.iter_content(2**16):
            parts.append(part)
            length += len(part)
            if length > most_bytes or time.monotonic() > deadline:
                response.close()
                raise requests.ConnectionError(f"its response does not end: {length:,} bytes so far")
        response._content = b"".join(parts)

    def limited_session(*arguments: Any, **options: Any) -> Any:
        session = new_session(*arguments, **options)
        session.hooks["response"] = [read]
        return session

    new_session = getattr(request_utils._get_request_session, "unlimited", request_utils._get_request_session)
    limited_session.unlimited = new_session  # type: ignore[attr-defined]
    request_utils._get_request_session = limited_session


def disconnect(uri: str) -> None:
    """Close the database at `uri`, so MLflow opens it again. MLflow never drops its cached stores and connections."""
    from mlflow.exceptions import MlflowException
    from mlflow.tracking._tracking_service import utils

    with suppress(MlflowException):
        utils._get_store(uri).engine.dispose()
    utils._tracking_store_registry._get_store_with_resolved_uri.cache_clear()
    forget_artifact_folders()


def forget_artifact_folders() -> None:
    """Make MLflow look up the locations of artifacts again."""
    from mlflow.tracking._tracking_service import utils

    utils._artifact_repos_cache.clear()


LOCATIONS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "storage_location"),
)
"""Tables and columns of MLflow's database that contain absolute paths or addresses of artifacts."""


def experiment_folders(database: sqlite3.Connection) -> list[tuple[str, str]]:
    """Return the name of each experiment in MLflow's database, and the address of its artifacts."""
    return database.execute("SELECT name, artifact_location FROM experiments").fetchall()


def move_artifacts(database: sqlite3.Connection, old: str, new: str) -> None:
    """Replace the beginning `old` of all addresses of artifacts in MLflow's database by `new`."""
    for table, column in LOCATIONS:
        database.execute(
            f"UPDATE {table} SET {column} = ?1 || substr({column}, length(?2) + 1) "
            f"WHERE substr({column} || '/', 1, length(?2) + 1) = ?2 || '/'",
            (new, old),
        )
    forget_artifact_folders()


def remote_artifacts(database: sqlite3.Connection) -> str | None:
    """Return the address of artifacts on a server from MLflow's database; None if all artifacts are local files."""
    for table, column in LOCATIONS:
        remote = f"SELECT {column} FROM {table} WHERE {column} LIKE 'http%://%' OR {column} LIKE '%artifacts://_%'"
        if row := database.execute(remote).fetchone():
            return str(row[0])
    return None


@contextmanager
def default_store(uri: str) -> Iterator[None]:
    """Make `uri` the default store of the process; MLflow 3.17 looks up the model of a new version there.

    MLflow does this even if its client has a different store. All names used here are public, but None is not a
    documented address: it removes the default, also from the environment variable that MLflow sets.
    """
    import mlflow

    before = mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else None
    mlflow.set_tracking_uri(uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(before)


@contextmanager
def requirements_unchecked() -> Iterator[None]:
    """Keep MLflow from comparing a model's requirements with the installed packages.

    MLflow would read the names of all files of all packages, which takes a second. The requirements come from the
    installed versions, so they cannot differ.
    """
    from mlflow.utils import environment

    check = environment.warn_dependency_requirement_mismatches
    environment.warn_dependency_requirement_mismatches = lambda _: None
    try:
        yield
    finally:
        environment.warn_dependency_requirement_mismatches = check


def scoring_app(predict: Callable[[Any], Any], read_csv: Callable[[Any], Any], one_line: Callable[[Any], str]) -> Any:
    """Return MLflow's scoring server as an ASGI application.

    Args:
        predict: Returns the predictions for an array, a data frame, or a dictionary of columns.
        read_csv: Returns a data frame for an open CSV file. MLflow's own function guesses the types of columns.
        one_line: Returns the message for an error.
    """
    from mlflow.exceptions import MlflowException
    from mlflow.pyfunc import scoring_server

    read_json = getattr(scoring_server._parse_json_data, "unguarded", scoring_server._parse_json_data)

    def guarded(*arguments: Any) -> Any:
        try:
            return read_json(*arguments)
        except MlflowException:
            raise
        except Exception as error:  # such as numbers with thousands of digits, deep nesting, invalid UTF-8
            raise MlflowException.invalid_parameter_value(f"the JSON cannot be read ({one_line(error)})") from error

    guarded.unguarded = read_json  # type: ignore[attr-defined]
    scoring_server._parse_json_data = guarded
    scoring_server.parse_csv_input = lambda csv_input, schema=None: read_csv(csv_input)
    no_schema = SimpleNamespace(get_input_schema=lambda: None)  # with a schema, MLflow would cast 2.5 to 2
    return scoring_server.init(SimpleNamespace(metadata=no_schema, predict=predict))
