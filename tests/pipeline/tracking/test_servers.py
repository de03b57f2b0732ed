"""Runs and sweeps on a real `mlflow server` with SQLite and PostgreSQL, which also serves the artifacts."""

import re
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from pathlib import Path
from threading import Thread

import mlflow
import numpy as np
import pytest
from mlflow import MlflowClient

from pipeline.api import Run
from pipeline.checks.registry import check_rules
from pipeline.tracking.views import TAG
from stages.errors import UserError
from tests import commands
from tests.pipeline.experiments import QUICK, SMALL, TRAINED, command_error, experiment
from tests.servers import PASSWORD, mlflow_server, postgresql

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Served:
    """A server and the runs that it records."""

    address: str
    kept: Path
    """The folder of its artifacts."""
    outputs: Path
    """The folder of the runs."""

    @property
    def arguments(self) -> list[str]:
        return ["tracking=server", f"tracking.uri={self.address}", f"outputs={self.outputs}"]


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.engines)])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, migrated_store: Path
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "sqlite":
        shutil.copy(migrated_store, folder / "server.db")
        with mlflow_server(f"sqlite:///{folder}/server.db", folder / "kept") as address:
            yield Served(address, folder / "kept", folder / "outputs")
    else:
        with postgresql() as store, mlflow_server(store, folder / "kept") as address:
            yield Served(address, folder / "kept", folder / "outputs")


def test_a_sweep_is_recorded_on_the_server_and_its_models_are_loaded(served: Served, tmp_path: Path) -> None:
    registered = ["export.register=squares", "export.alias=champion"]
    words = ("-m", "seed=1,2", *SMALL, "tracking.tags.team=vision", *registered, *served.arguments)
    done = commands.succeed(*words, cwd=tmp_path)
    client = MlflowClient(served.address)
    [found] = client.search_experiments(filter_string="name = 'synthetic_mlp'")
    runs = client.search_runs([found.experiment_id])
    [parent] = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    jobs = sorted((run for run in runs if run is not parent), key=lambda run: run.info.run_name)
    assert (parent.info.run_name, [job.info.run_name for job in jobs]) == ("seed, 2 jobs", ["seed=1", "seed=2"])
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert {run.data.tags["team"] for run in runs} == {"vision"}
    assert {entry.path for entry in client.list_artifacts(parent.info.run_id)} >= {"comparison.md", "comparison.csv"}
    key = f"sweep-{parent.info.run_id[:12]}"
    page = f"{served.address}/#/experiments/{found.experiment_id}/runs?workflowType=machine_learning"
    assert f"open        {page}&viewStateShareKey={key}\n" in done.stdout
    assert f"{TAG}{key}" in client.get_experiment(found.experiment_id).tags
    for job in jobs:
        assert {"config.yaml", "plots"} <= {entry.path for entry in client.list_artifacts(job.info.run_id)}
        assert job.data.metrics["test/accuracy"] > 0
    versions = client.search_model_versions("name = 'squares'")
    assert {version.run_id for version in versions} == {job.info.run_id for job in jobs}
    assert {version.source for version in versions} == {job.data.tags["model_uri"] for job in jobs}
    assert str(client.get_model_version_by_alias("squares", "champion").version) in ("1", "2")
    said = "".join(path.read_text() for path in served.outputs.glob("sweeps/*/*/pipeline.log"))
    assert "champion of squares is now version 1: there was none" in said
    assert list(served.kept.glob("**/tf2model/saved_model.pb"))
    assert not (served.outputs / "mlflow.db").exists()
    assert not (served.outputs / "artifacts").exists()

    [run] = served.outputs.glob("sweeps/*/1_seed=1")
    images = np.random.default_rng(0).uniform(0, 16, (3, 8, 8, 3)).astype(np.float32)
    mlflow.set_tracking_uri(served.address)
    try:
        loaded = mlflow.pyfunc.load_model(jobs[0].data.tags["model_uri"]).predict(images)
    finally:
        mlflow.set_tracking_uri(None)  # tests of other files use other stores in this process
    np.testing.assert_array_equal(loaded, Run(run).load_model()(images).numpy())


def test_the_model_has_the_run_s_scores_settings_and_data(served: Served) -> None:
    client = MlflowClient(served.address)
    [found] = client.search_experiments(filter_string="name = 'synthetic_mlp'")
    models = client.search_logged_models([found.experiment_id])
    assert models
    for model in models:
        run = client.get_run(model.source_run_id)
        [given] = run.inputs.dataset_inputs
        scores = {point.key: point for point in model.metrics}
        assert {"test/accuracy", "val/best_accuracy", "export/max_abs_diff"} <= scores.keys()
        for name, point in scores.items():
            assert point.value == run.data.metrics[name]
            assert (point.dataset_name, point.dataset_digest) == ("synthetic", given.dataset.digest)
            assert len(client.get_metric_history(run.info.run_id, name)) == 1
        assert (model.name, model.params["train.epochs"]) == (f"synthetic_mlp_{run.info.run_name}", "2")
        assert model.params["seed"] == run.data.params["seed"]


def test_a_run_that_is_stopped_and_resumed_has_every_point_once(served: Served, tmp_path: Path) -> None:
    arguments = ["name=resumed", "model=mlp", "train.epochs=30", *TRAINED, *served.arguments]
    with commands.start(*arguments, cwd=tmp_path, stdout=subprocess.PIPE) as command:
        for line in command.stdout:
            if re.match(r"epoch +3/30", line):
                command.send_signal(signal.SIGTERM)
                break
        rest = command.stdout.read()
        assert command.wait(120) == 143, rest
    done = commands.succeed(*arguments, cwd=tmp_path)
    assert "resuming" in done.stdout
    client = MlflowClient(served.address)
    [found] = client.search_experiments(filter_string="name = 'resumed'")
    [run] = client.search_runs([found.experiment_id])
    assert run.info.status == "FINISHED"
    for name in run.data.metrics:
        steps = [point.step for point in client.get_metric_history(run.info.run_id, name)]
        assert steps == sorted(set(steps)), name
    epochs = [point.step for point in client.get_metric_history(run.info.run_id, "val/loss")]
    assert epochs == list(range(1, 31))
    assert not [name for name in run.data.tags if name.startswith("changed/") and "system" not in name]
    assert sum(1 for name in run.data.metrics if name.startswith("system/")) >= 8


@pytest.mark.engines
def test_a_database_on_another_machine_records_a_run_without_a_server(tmp_path: Path) -> None:
    with postgresql() as store:
        given = [*QUICK, "tracking=server", f"tracking.uri={store}", f"outputs={tmp_path}/outputs"]
        done = commands.succeed(*given, cwd=tmp_path)
        [run] = MlflowClient(store).search_runs(["1"])
        assert run.info.status == "FINISHED"
        printed = done.stdout + done.stderr
        written = [path.read_text(errors="replace") for path in (tmp_path / "outputs").rglob("*.*") if path.is_file()]
        assert not [text for text in (printed, *written, str(run.to_dictionary())) if PASSWORD in text]


@pytest.mark.smoke
@pytest.mark.parametrize(("kind", "revision"), [("local", "451aebb31d03"), ("server", "ffffffffffff")])
def test_a_store_with_the_schema_of_another_version_is_refused(kind: str, revision: str, outputs: Path) -> None:
    with closing(sqlite3.connect(outputs / "mlflow.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    given = [f"tracking={kind}", f"outputs={outputs}"]
    given += [f"tracking.uri=sqlite:///{outputs}/mlflow.db"] if kind == "server" else []
    done = commands.run(*given)
    assert done.returncode == 2
    said = rf"error: tracking={kind} cannot be used \(Detected out-of-date database schema \(found version {revision}"
    assert re.match(said, done.stderr)
    assert not list(outputs.glob("runs/*/*"))


class OtherServer(BaseHTTPRequestHandler):
    """A server that responds like MLflow 2.9.2, or like a different program."""

    version = "2.9.2"

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/version" else 404)
        self.end_headers()
        self.wfile.write(self.version.encode())

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Print nothing."""


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("", r"runs MLflow 2\.9\.2, but this environment has 3\.17"),
        ("/other", r"is not an MLflow server \(Not Found\)"),
    ],
)
def test_a_server_of_another_version_or_kind_is_refused(path: str, said: str, tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), OtherServer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_port}{path}"
        try:
            with pytest.raises(UserError, match=said):
                check_rules(experiment("tracking=server", f"tracking.uri={uri}", outputs=tmp_path / "outputs"))
        finally:  # a thread that still served would take the connections of the next test with the same descriptor
            server.shutdown()


class SameServer(OtherServer):
    """A server with the version of MLflow that is installed here."""

    version = metadata.version("mlflow")


@pytest.mark.smoke
def test_the_advice_about_a_server_that_does_not_answer_works_when_typed(tmp_path: Path) -> None:
    given = ["tracking=server", "tracking.uri=http://127.0.0.1:9", f"outputs={tmp_path}"]
    error = command_error(given)
    assert error is not None
    with HTTPServer(("127.0.0.1", 0), SameServer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        fix = error.fix.replace("<address>", f"http://127.0.0.1:{server.server_port}")
        assert command_error([*given, fix]) is None, fix
        server.shutdown()
