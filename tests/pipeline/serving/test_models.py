"""The model of a run is looked for in the store that has it, and no store is made; wrong arguments take one line."""

import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient

from pipeline import serve
from pipeline.run_folder.summary import Summary
from pipeline.serving import mlflow_model, saved_model
from pipeline.system.machine import free_port
from stages.errors import UserError
from tests.pipeline.experiments import Patch, Printed, write_files, write_run

LOCAL = "tracking: {kind: local, uri: null}\n"
MASKED = "tracking: {kind: server, uri: 'http://***@127.0.0.1:9'}\n"


def write_run_of(outputs: Path, run_id: str) -> Path:
    folder = write_run(outputs / "runs" / "day" / "tiny", run_id=run_id)
    write_files(folder, {"config.yaml": LOCAL})
    return folder


@pytest.fixture
def run(outputs: Path) -> Path:
    """A run in `outputs`, whose model is in the store there."""
    client = MlflowClient(f"sqlite:///{outputs / 'mlflow.db'}")
    experiment = client.create_experiment("tiny", (outputs / "artifacts" / "tiny").as_uri())
    run_id = client.create_run(experiment).info.run_id
    model = client.create_logged_model(experiment, "tiny", source_run_id=run_id)
    client.set_tag(run_id, "model_uri", f"models:/{model.model_id}")
    place = Path(str(model.artifact_location).removeprefix("file://"))
    write_files(place, {"MLmodel": "", "data/saved_model.pb": ""})
    return write_run_of(outputs, run_id)


def test_the_store_is_that_in_which_the_run_was_recorded(run: Path, outputs: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copytree(run, copied := tmp_path / "far" / "from" / "x")
    shutil.copytree(run, nested := elsewhere / "runs" / "day" / "tiny")
    for model, given in ((run, outputs), (run, elsewhere), (copied, outputs), (nested, outputs), (run, tmp_path)):
        folder = mlflow_model(str(model), None, given)
        assert (folder / "MLmodel").is_file()
        assert folder.is_relative_to(outputs / "artifacts")
    assert sorted(path.name for path in elsewhere.iterdir()) == ["runs"]


def test_a_model_is_found_in_moved_outputs(run: Path, outputs: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    """Of a folder that has lost it, the error says which one is missing."""
    store = f"sqlite:///{outputs / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)  # in which MLflow looks the version's model up
    client = MlflowClient(store)
    uri = client.get_run(str(Summary.read(run).run_id)).data.tags["model_uri"]
    client.create_registered_model("tiny")
    client.create_model_version("tiny", uri, model_id=uri.removeprefix("models:/"))
    moved = tmp_path / "moved ä"
    outputs.rename(moved)
    for model in ("models:/tiny/1", uri, str(moved / "runs" / "day" / "tiny")):
        assert mlflow_model(model, None, moved).is_relative_to(moved / "artifacts")
    (moved / "artifacts").rename(tmp_path / "lost")
    for model in ("models:/tiny/1", uri):
        with pytest.raises(UserError, match=r"its files are no longer in .*/artifacts/tiny/models/"):
            saved_model(model, None, moved)


def test_no_store_is_made(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, copied := tmp_path / "elsewhere" / "runs" / "day" / "tiny")
    before = sorted(tmp_path.rglob("*"))
    for model in (str(copied), "models:/m@a"):
        with pytest.raises(UserError, match=r"no mlflow\.db in"):
            mlflow_model(model, None, tmp_path / "nothing")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_named_store_counts(run: Path, outputs: Path, tmp_path: Path) -> None:
    (run / "config.yaml").write_text(MASKED)
    store = f"sqlite:///{outputs / 'mlflow.db'}"
    folder = mlflow_model(str(run), store, tmp_path)
    assert (folder / "MLmodel").is_file()
    assert saved_model(str(run), store, tmp_path) == folder / "data"
    (run / "config.yaml").unlink()
    assert mlflow_model(str(run), store, tmp_path) == folder
    with pytest.raises(UserError, match=r"tracking.uri=nope is no address of an MLflow store"):
        mlflow_model(str(run), "nope", tmp_path)


def test_errors_end_with_a_command(outputs: Path) -> None:
    run = write_run_of(outputs, "0" * 32)
    for model in (str(run), "nope", "models:/nope@champion"):
        with pytest.raises(UserError, match=r"Try: python -m pipeline\.serve <run id> --tracking-uri=<address>$"):
            mlflow_model(model, None, outputs)
    for model in ("nope", "models:/nope@champion"):
        with pytest.raises(UserError, match=r"Try: python -m pipeline\.predict <run id>"):
            saved_model(model, None, outputs)


def test_ports_that_can_be_had_are_returned_and_others_refused(capsys: Printed) -> None:
    assert serve.main(["nope", "--port=65536"]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: port 65536 of 127.0.0.1 cannot be had")
    assert (printed.err.count("\n"), printed.out) == (1, "")
    port = free_port(None, 20_000)
    assert 20_000 <= free_port(port, 5001) == port < 20_100
