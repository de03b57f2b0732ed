"""Undocumented behavior of MLflow that `pipeline/internals/mlflow.py` and `tracking/` rely on."""

import ast
import asyncio
import json
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient, environment_variables
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException
from mlflow.utils import environment, mlflow_tags

from pipeline.internals import mlflow as internals
from pipeline.tracking import mlflow_run, store
from pipeline.tracking.views import View, query
from tests.conftest import ROOT
from tests.pipeline.experiments import Patch

SOURCES = {path: path.read_text() for path in (ROOT / "pipeline").rglob("*.py")}


def texts() -> Iterator[str]:
    """Yield every string in the code of `pipeline/`."""
    for source in SOURCES.values():
        nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
        yield from (node.value for node in nodes if isinstance(node.value, str))


def test_the_tags_and_variables_in_use_exist_in_mlflow() -> None:
    known = {value for name, value in vars(mlflow_tags).items() if name.startswith("MLFLOW_")}
    used = {text for text in texts() if re.fullmatch(r"mlflow\.\w+(\.\w+)+|mlflow\.(user|parentRunId)", text)}
    assert used >= {"mlflow.parentRunId", "mlflow.note.content", "mlflow.data.context", "mlflow.source.git.commit"}
    assert used <= known
    variables = {text for text in texts() if re.fullmatch(r"MLFLOW_[A-Z_]+", text)} - {"MLFLOW_RUN"}
    assert {"MLFLOW_TRACKING_URI", "MLFLOW_UV_AUTO_DETECT", "MLFLOW_HTTP_REQUEST_TIMEOUT"} <= variables
    missing = {name for name in variables if not hasattr(environment_variables, name)}
    assert not missing - {"MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_TOKEN"}


def test_mlflows_pages_read_the_views_that_are_written() -> None:
    """MLflow's compiled pages contain the names in a view and its address; `test_ui.py` opens them in a browser."""
    folder = Path(mlflow.__path__[0]) / "server" / "js" / "build" / "static" / "js"
    pages = "".join(path.read_text() for path in folder.glob("*.js"))
    view = View("a", ["lr"], ["val/best_loss"], True, ["lr=1"], "parent")
    state = view.state()
    names = {*state, *state["groupBy"], *(key for chart in state["compareRunCharts"] for key in chart)}
    address = f"{store.WORKFLOW}&{query(view.key, charts=True)}"
    names |= {word for part in address.split("&") for word in part.split("=")} - {view.key}
    names |= {"sharedViewState", "runDateAndNestInfo", "FIRST_20_RUNS", "PARALLEL", "SCATTER", "deflate"}
    names |= {word for tag in store._KIND.items() for word in tag}
    assert not {name for name in names if name.removeprefix("mlflow.") not in pages}


def test_all_columns_with_addresses_of_artifacts_are_known(migrated_store: Path) -> None:
    with closing(sqlite3.connect(migrated_store)) as database:
        tables = [name for [name] in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {(table, row[1]) for table in tables for row in database.execute(f"PRAGMA table_info({table})")}
    found = {column for column in columns if re.search(r"artifact|location|storage", column[1])}
    assert {column for column in found if column[0] != "workspaces"} == {*internals.LOCATIONS}  # which are off


def test_artifacts_follow_their_folder(outputs: Path, tmp_path: Path) -> None:
    """Addresses in the database change, and MLflow drops its cached addresses."""
    uri = f"sqlite:///{outputs / 'mlflow.db'}"
    old, new = tmp_path / "old", tmp_path / "new"
    client = MlflowClient(uri)
    experiment = client.create_experiment("e", old.as_uri())
    run = client.create_run(experiment).info.run_id
    client.log_text(run, "x", "a.txt")
    old.rename(new)
    with closing(sqlite3.connect(outputs / "mlflow.db")) as database, database:
        assert ("e", old.as_uri()) in internals.experiment_folders(database)
        internals.move_artifacts(database, old.as_uri(), new.as_uri())
        assert internals.remote_artifacts(database) is None
    client.log_text(run, "y", "b.txt")
    assert {path.name for path in new.rglob("*.txt")} == {"a.txt", "b.txt"}
    with closing(sqlite3.connect(outputs / "mlflow.db")) as database, database:
        internals.move_artifacts(database, new.as_uri(), "http://192.0.2.1/x")
        assert str(internals.remote_artifacts(database)).startswith("http://192.0.2.1/x")


def test_a_database_that_was_replaced_is_opened_again(outputs: Path, migrated_store: Path) -> None:
    uri, file = f"sqlite:///{outputs / 'mlflow.db'}", outputs / "mlflow.db"
    MlflowClient(uri).create_experiment("old")
    file.unlink()
    shutil.copy(migrated_store, file)
    internals.disconnect(uri)
    assert MlflowClient(uri).get_experiment_by_name("old") is None
    MlflowClient(uri).create_experiment("new")
    with closing(sqlite3.connect(file)) as database, database:
        assert "new" in dict(internals.experiment_folders(database))
        database.execute("UPDATE alembic_version SET version_num = 'older'")
    MlflowClient(uri).search_experiments()  # MLflow's cached store does not check the database
    internals.disconnect(uri)
    with pytest.raises(MlflowException, match="out-of-date database schema"):
        MlflowClient(uri).search_experiments()


def test_the_points_of_a_run_have_their_time_and_step(outputs: Path) -> None:
    """`mlflow_run` copies the last points of a run to its model, where equal points count once."""
    client = MlflowClient(f"sqlite:///{outputs / 'mlflow.db'}")
    run = client.create_run(client.create_experiment("e")).info.run_id
    client.log_batch(run, [Metric("test/a", 0.5, 1_700_000_000_123, 7), Metric("val/a", 0.5, 1, 1)])
    [point] = mlflow_run._scores_of_model(client.get_run(run), "m-1")
    assert (point.key, point.value, point.timestamp, point.step) == ("test/a", 0.5, 1_700_000_000_123, 7)
    assert (point.model_id, point.run_id) == ("m-1", run)


def test_the_default_store_changes_only_within_the_block(monkeypatch: Patch) -> None:
    for before in ("sqlite:////users.db", None):
        if before is None:
            monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
        else:
            monkeypatch.setenv("MLFLOW_TRACKING_URI", before)
        with internals.default_store("sqlite:////other.db"):
            assert mlflow.get_tracking_uri() == "sqlite:////other.db"
        assert os.environ.get("MLFLOW_TRACKING_URI") == before
        assert mlflow.is_tracking_uri_set() == (before is not None)
        mlflow.set_tracking_uri(None)


class Page(BaseHTTPRequestHandler):
    """Responds with 10,000 bytes of JSON."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"run": {"info": {"run_id": "x" * 10_000}}}).encode())

    def log_message(self, *_: object) -> None:
        pass


def test_the_last_call_sets_the_limit_of_responses(monkeypatch: Patch) -> None:
    """The limit applies to MLflow's client. `tracking/test_foreign_folder.py` tests an endless response."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        client = MlflowClient(f"http://127.0.0.1:{server.server_port}")
        internals.limit_answers(1_000, 60)
        with pytest.raises(MlflowException, match="does not end"):
            client.get_run("a")
        internals.limit_answers(store.LONGEST_ANSWER, store.LONGEST_ANSWER_SECONDS)
        assert client.get_run("a").info.run_id == "x" * 10_000
        server.shutdown()


def test_requirements_are_checked_again_afterwards() -> None:
    """`tracking/test_registry.py` tests that MLflow does not read the names of files within the block."""
    check = environment.warn_dependency_requirement_mismatches
    with internals.requirements_unchecked():
        assert environment.warn_dependency_requirement_mismatches is not check
    assert environment.warn_dependency_requirement_mismatches is check


def asked(app: Any, body: bytes, content_type: str) -> tuple[int, Any]:
    """Return the status and the response of an ASGI application to a POST to `/invocations`."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", content_type.encode())]
    scope = {"type": "http", "method": "POST", "path": "/invocations", "headers": headers, "query_string": b""}
    asyncio.run(app({**scope, "http_version": "1.1", "scheme": "http"}, receive, send))
    content = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], json.loads(content)


def test_the_scoring_server_reads_with_our_functions_and_does_not_cast_values() -> None:
    given: list[Any] = []

    def predict(data: Any) -> Any:
        given.append(data)
        return [{"n": len(data)}]

    def read_csv(file: Any) -> pd.DataFrame:
        return pd.read_csv(file, dtype=str)

    for _ in range(2):  # a second application replaces the first one's functions
        app = internals.scoring_app(predict, read_csv, lambda error: f"<{type(error).__name__}>")
    assert asked(app, b"a\n007\n", "text/csv") == (200, {"predictions": [{"n": 1}]})
    assert given.pop()["a"].tolist() == ["007"]
    assert asked(app, b'{"inputs": [[2.5]]}', "application/json")[0] == 200
    np.testing.assert_array_equal(given.pop(), [[2.5]])
    assert asked(app, b'{"inputs": {"a": ["x"]}}', "application/json")[0] == 200
    assert list(given.pop()["a"]) == ["x"]
    status, answer = asked(app, b'{"inputs": ' + b"[" * 100_000, "application/json")
    assert (status, answer["message"].count("the JSON cannot be read")) == (400, 1)
    assert asked(app, b'{"inputs": [' + b"9" * 5_000 + b"]}", "application/json")[0] == 400
    assert not given
