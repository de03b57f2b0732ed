"""A model is looked up in the run's folder or in its store, without creating a store; errors are one line."""

import re
import shutil
from pathlib import Path

import pytest
import tensorflow as tf
from mlflow import MlflowClient

from pipeline.commands import serve
from pipeline.runs.summary import Summary
from pipeline.serving.models import encoded_function, saved_model
from pipeline.system.machine import free_port
from stages.errors import UserError
from tests.pipeline.experiments import Patch, Printed, write_files, write_run


@pytest.fixture
def run(outputs: Path) -> Path:
    """A run in `outputs` whose model is in the store there."""
    client = MlflowClient(f"sqlite:///{outputs / 'mlflow.db'}")
    experiment = client.create_experiment("tiny", (outputs / "artifacts" / "tiny").as_uri())
    run_id = client.create_run(experiment).info.run_id
    model = client.create_logged_model(experiment, "tiny", source_run_id=run_id)
    client.set_tag(run_id, "model_uri", f"models:/{model.model_id}")
    place = Path(str(model.artifact_location).removeprefix("file://"))
    write_files(place, {"MLmodel": "", "data/saved_model.pb": ""})
    return write_run(outputs / "runs" / "day" / "tiny", run_id=run_id)


def test_the_model_of_a_run_is_its_export(run: Path, tmp_path: Path) -> None:
    """The run may be untracked, and in any folder."""
    with pytest.raises(UserError, match=r"has no exported SavedModel"):
        saved_model(str(run), None, tmp_path)
    write_files(run, {"export/saved_model/saved_model.pb": ""})
    shutil.copytree(run, copied := tmp_path / "far" / "from" / "x")
    for folder in (run, copied):
        assert saved_model(str(folder), None, tmp_path / "nothing") == folder / "export" / "saved_model"


def test_a_model_is_found_in_moved_outputs(run: Path, outputs: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    """If its files are missing, the error names their folder."""
    store = f"sqlite:///{outputs / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)  # MLflow looks up the version's model there
    client = MlflowClient(store)
    uri = client.get_run(str(Summary.read(run).run_id)).data.tags["model_uri"]
    client.create_registered_model("tiny")
    client.create_model_version("tiny", uri, model_id=uri.removeprefix("models:/"))
    moved = tmp_path / "moved ä"
    outputs.rename(moved)
    for model in ("models:/tiny/1", uri):
        assert saved_model(model, None, moved).is_relative_to(moved / "artifacts")
    (moved / "artifacts").rename(tmp_path / "lost")
    for model in ("models:/tiny/1", uri):
        with pytest.raises(UserError, match=r"its files were not found in .*/artifacts/tiny/models/"):
            saved_model(model, None, moved)


def test_no_store_is_created(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no mlflow\.db in"):
        saved_model("models:/m@a", None, tmp_path / "nothing")
    assert not list(tmp_path.iterdir())


def test_a_model_is_looked_up_in_the_named_store(run: Path, outputs: Path, tmp_path: Path) -> None:
    address = f"runs:/{Summary.read(run).run_id}"
    folder = saved_model(address, f"sqlite:///{outputs / 'mlflow.db'}", tmp_path)
    assert (folder.name, (folder.parent / "MLmodel").is_file()) == ("data", True)
    with pytest.raises(UserError, match=r"tracking.uri=nope is not the address of an MLflow server or database"):
        saved_model(address, "nope", tmp_path)


def test_errors_end_with_a_command_to_try(outputs: Path) -> None:
    for model, fix in (("nope", "python -m pipeline runs"), ("models:/nope@champion", "--tracking-uri=<address>")):
        with pytest.raises(UserError, match=rf"Try: {re.escape(fix)}$"):
            saved_model(model, None, outputs)


def test_available_ports_are_returned_and_others_refused(capsys: Printed) -> None:
    assert serve.main(["nope", "--port=65536"]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: port 65536 of 127.0.0.1 is not available")
    assert (printed.err.count("\n"), printed.out) == (1, "")
    port = free_port(None, 20_000)
    assert 20_000 <= free_port(port, 5001) == port < 20_100


def test_a_model_of_arrays_does_not_predict_for_images(tmp_path: Path) -> None:
    argument = tf.TensorSpec((None, 24, 7), tf.float64, name="history")
    function = tf.function(lambda history: {"probabilities": history[:, 0]}, input_signature=[argument])
    tf.saved_model.save(tf.Module(), tmp_path, signatures={"serving_default": function})
    with pytest.raises(UserError, match=r"accepts arrays \(history \[N, 24, 7\]\).*an \.npz file"):
        encoded_function(tf.saved_model.load(tmp_path))
