"""A job: the files and records that it leaves when it finishes or fails."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import mlflow
import numpy as np
import pytest
import yaml
from sklearn.datasets import load_digits

from pipeline.commands.sync import main as sync
from pipeline.console import Console
from pipeline.decide.job import Job
from pipeline.execute.facts import NOTE
from pipeline.execute.records import begin
from pipeline.launch.run import run_job
from pipeline.runs.folder import RunFolder
from pipeline.tracking import views
from pipeline.tracking.mlflow_run import MlflowRun
from stages.errors import UserError
from tests import commands
from tests.pipeline.experiments import QUICK, SMALL, TRAINED, Patch, Printed, experiment, only_folder, only_run

pytestmark = pytest.mark.slow


def failing(settings: object) -> None:
    raise RuntimeError("the disk is\nmade of cheese at http://me:secret@host/x")


def hopeless(settings: object) -> None:
    raise UserError("the cheese is wrong", "gouda", "cheese=gouda")


class Command(NamedTuple):
    """A command that has ended: what it printed, and the seconds that it took."""

    outputs: Path
    done: subprocess.CompletedProcess[str]
    seconds: float


@pytest.fixture(scope="module")
def command(module_outputs: Path) -> Command:
    """One whole run, from a directory that is not the project's."""
    given = ("strategy=mirrored", "precision=mixed", "tracking.note=a try", "tracking.tags.team=vision")
    began = time.monotonic()
    done = commands.succeed(*QUICK, *given, f"outputs={module_outputs}", cwd=module_outputs)
    return Command(module_outputs, done, time.monotonic() - began)


@pytest.fixture(scope="module")
def finished(command: Command) -> Path:
    """The outputs of the whole run."""
    return command.outputs


def test_the_summary_keeps_the_contract(finished: Path) -> None:
    folder = only_folder(finished)
    summary = json.loads((folder / "summary.json").read_text())
    given = {"status": "FINISHED", "replicas": 2, "precision": "mixed_bfloat16", "resumed_from_step": None}
    assert given.items() <= summary.items()
    assert {stage["status"] for stage in summary["stages"].values()} == {"ran"}
    assert list(summary["stages"]) == list(experiment().pipeline)
    assert (Path(summary["exported"]["saved_model"]) / "saved_model.pb").is_file()
    assert summary["versions"]["tensorflow"].startswith("2.21")
    assert {
        "train/loss", "train/accuracy", "val/loss", "val/accuracy", "test/loss", "test/accuracy",
        "train/images_per_second", "train/step_milliseconds", "export/max_abs_diff", "load/seconds",
    } <= summary["metrics"].keys()  # fmt: skip
    plots = (f"plots/{name}.png" for name in ("history", "confusion", "batch"))
    for name in ("config.yaml", "pipeline.log", "checkpoints/best.weights.h5", *plots, "data/statistics.csv"):
        assert (folder / name).stat().st_size > 0
    assert yaml.safe_load((folder / "config.yaml").read_text())["train"]["epochs"] == 2
    for said in ("epoch 2/2", "data        1,293 train, 144 val, 360 test images; 10 classes; 8×8×1"):
        assert said in (folder / "pipeline.log").read_text()


def test_the_page_of_a_run_shows_its_results(finished: Path) -> None:
    client, run = only_run(finished)
    tags = run.data.tags
    given = {"team": "vision", "mlflow.source.name": "python -m pipeline", "mlflow.source.type": "LOCAL"}
    assert given.items() <= tags.items()
    assert run.info.run_name.startswith("mirrored mixed epochs=2")
    assert tags["mlflow.user"]
    assert len(tags["mlflow.source.git.commit"]) in (4, 40)
    assert tags["mlflow.source.git.dirty"] in ("true", "false")
    note, result, facts = tags["mlflow.note.content"].split("\n\n")
    assert note == "a try"
    assert result.startswith(f"**FINISHED**, test accuracy {run.data.metrics['test/accuracy']:.4f} (95% CI ")
    assert f": val_accuracy {run.data.metrics['val/best_accuracy']:.4f}, val_loss " in facts
    [model] = client.search_logged_models([run.info.experiment_id])
    assert model.name.startswith("digits_cnn_")
    scores = {metric.key: metric.value for metric in model.metrics}
    assert scores.items() <= run.data.metrics.items()
    assert {"test/accuracy", "val/best_accuracy", "export/max_abs_diff"} <= scores.keys()
    assert f'load_model("runs:/{run.info.run_id}/{model.name}")' in facts
    assert "  (its predictions differ from the trained model's by " in facts
    names = [name for name in run.data.metrics if not name.startswith("system/")]  # they are on a separate page
    assert names[:4] == ["val/loss", "val/accuracy", "train/loss", "train/accuracy"]


def test_the_run_in_mlflow_is_complete(finished: Path) -> None:
    client, run = only_run(finished)
    assert run.info.status == "FINISHED"
    settings = {"train.epochs": "2", "model.network.filters": "[8,16]", "data": "digits", "optimizer": "adam"}
    facts = {"data/height": "8", "data/classes": "10", "data/train_examples": "1293", "data/duplicates_train_val": "0"}
    facts |= {**settings, "strategy/replicas": "2", "precision": "mixed"}
    assert facts.items() <= run.data.params.items()
    assert len(run.data.params) <= 80
    assert not [name for name in run.data.params if name.endswith("_target_")]
    [view] = [key for key in client.get_experiment(run.info.experiment_id).tags if key.startswith(views.TAG)]
    assert view == f"{views.TAG}runs"
    assert not {name for name in run.data.metrics if name.startswith(("data/", "load/f", "model/p"))}
    history = client.get_metric_history(run.info.run_id, "val/accuracy")
    assert [point.step for point in history] == [1, 2]
    assert len(client.get_metric_history(run.info.run_id, "test/accuracy")) == 1
    folders = ("", "data", "plots", "environment", "report")
    files = {entry.path for folder in folders for entry in client.list_artifacts(run.info.run_id, folder)}
    assert {
        "config.yaml", "pipeline.log", "summary.json", "plots/history.png", "plots/confusion.png",
        "environment/environment.json", "environment/packages.txt", "report/test_by_class.csv",
        "data/statistics.csv", "data/classes.csv", "plots/classes.png", "plots/batch.png",
    } <= files  # fmt: skip
    [given] = run.inputs.dataset_inputs
    assert given.dataset.name == "digits"
    assert len(given.dataset.digest) == 32
    assert run.info.artifact_uri.startswith(f"file://{finished}/artifacts/digits_cnn/")


def test_the_tracked_model_predicts_as_the_export(finished: Path) -> None:
    """MLflow loads it in a process without the project, as a user would."""
    client, run = only_run(finished)
    uri = run.data.tags["model_uri"]
    script = (
        "import json, sys, mlflow, numpy as np, tensorflow as tf\n"
        "mlflow.set_tracking_uri(sys.argv[1]); x = np.load(sys.argv[3])\n"
        "pyfunc = mlflow.pyfunc.load_model(sys.argv[2]); saved = tf.saved_model.load(sys.argv[4])\n"
        "np.save(sys.argv[5], np.stack([pyfunc.predict(x), saved(tf.constant(x)), "
        "mlflow.tensorflow.load_model(sys.argv[2])(tf.constant(x))]))\n"
        "print(json.dumps({'class_names': pyfunc.metadata.metadata['class_names'], "
        "'inputs': str(pyfunc.metadata.signature.inputs), 'flavors': sorted(pyfunc.metadata.flavors)}))\n"
        "from mlflow.pyfunc.scoring_server import invocations as serve; import pandas as pd; y = pyfunc.predict(x)\n"
        "for wrong in (x[:, :4], x.astype('uint8'), x.tolist(), pd.DataFrame(x.reshape(len(x), -1))):\n"
        "    try: pyfunc.predict(wrong); print('no error')\n"
        "    except mlflow.exceptions.MlflowException: print('refused')\n"
        "cells = pd.DataFrame({'images': [*x.astype('uint8')]}); assert (pyfunc.predict(cells) == y).all()\n"
        "for body in (json.dumps({name: x.astype(int).tolist()}) for name in ('inputs', 'instances')):\n"
        "    answer = serve(body, 'application/json', pyfunc, pyfunc.metadata.get_input_schema())\n"
        "    assert np.allclose(json.loads(answer.response)['predictions'], y, atol=1e-6)\n"
    )
    images = load_digits().images[:64, ..., None].astype(np.float32)
    np.save(finished / "images.npy", images)
    paths = [f"{finished}/images.npy", f"{only_folder(finished)}/export/saved_model", f"{finished}/out.npy"]
    command = [sys.executable, "-c", script, f"sqlite:///{finished}/mlflow.db", uri, *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True, cwd=finished)
    told = json.loads(done.stdout.splitlines()[0])
    assert told["class_names"] == list("0123456789")
    assert all(text in told["inputs"] for text in ("float32", "(-1, 8, 8, 1)"))
    assert told["flavors"] == ["python_function", "tensorflow"]
    assert done.stdout.splitlines()[1:5] == ["refused"] * 4
    by_pyfunc, by_tensorflow, by_flavor = np.load(finished / "out.npy")
    np.testing.assert_array_equal(by_pyfunc, by_tensorflow)
    np.testing.assert_array_equal(by_flavor, by_tensorflow)
    np.testing.assert_allclose(by_pyfunc.sum(axis=1), 1, atol=1e-5)
    requirements = next(finished.glob("artifacts/**/artifacts/requirements.txt")).read_text()
    assert f"tensorflow=={mlflow.tensorflow.importlib.import_module('tensorflow').__version__}" in requirements
    assert next(finished.glob("artifacts/**/tf2model/saved_model.pb")).is_file()
    assert client.get_logged_model(uri.rpartition("/")[2]).status == "READY"


def test_the_tracked_model_has_an_example_and_the_run_its_card(finished: Path) -> None:
    client, run = only_run(finished)
    folder = next(finished.glob("artifacts/**/MLmodel")).parent
    model = mlflow.models.Model.load(folder)
    assert model.metadata == {"class_names": list("0123456789")}
    example = model.load_input_example(str(folder))
    assert example.shape == (1, 8, 8, 1)
    assert json.loads(model.get_serving_input(str(folder))) == {"inputs": example.tolist()}
    card = (only_folder(finished) / "export" / "model_card.md").read_text()
    assert f"| test/accuracy | {run.data.metrics['test/accuracy']:.4f} | " in card
    assert {"## Metrics", "## Training"} <= set(card.splitlines())
    assert "model_card.md" in {entry.path for entry in client.list_artifacts(run.info.run_id)}


@pytest.mark.smoke
def test_a_dry_run_prints_the_plan_and_does_nothing(tmp_path: Path, capsys: Printed) -> None:
    assert run_job(Job(experiment("dry_run=true", outputs=tmp_path / "outputs")), Console()) == 0
    printed = capsys.readouterr().out
    assert f"digits_cnn: seed 42, precision float32, tracking=local, results in {tmp_path}/outputs" in printed
    assert "model, dataset, strategy -> trained" in printed
    assert printed.endswith("dry_run=true: the settings are valid, and nothing was run\n")
    assert not list(tmp_path.rglob("*.*"))


def test_a_stage_that_breaks_ends_the_run_as_failed(outputs: Path, capsys: Printed) -> None:
    code = run_job(Job(experiment(f"evaluate._target_={__name__}.failing", *SMALL, outputs=outputs)), Console())
    assert code == 1
    _, run = only_run(outputs)
    assert run.info.status == "FAILED"
    assert run.data.tags["failed_stage"] == "evaluate"
    assert run.data.tags["error"].startswith("RuntimeError: the disk is made of cheese at http://***@host/x")
    folder = only_folder(outputs)
    summary = json.loads((folder / "summary.json").read_text())
    assert [stage["status"] for stage in summary["stages"].values()] == ["ran"] * 7 + ["failed", "skipped"]
    log, printed = (folder / "pipeline.log").read_text(), capsys.readouterr().out
    assert ("Traceback" in log, "Traceback" in printed) == (True, False)
    assert "error: evaluate: RuntimeError: the disk is made of cheese" in printed
    assert "\ntime        FAILED in " in printed
    assert "secret" not in log + printed + str(run.data) + json.dumps(summary)


def test_a_signal_while_the_run_is_started_leaves_no_running_run(outputs: Path, monkeypatch: Patch) -> None:
    real = begin

    def interrupted(*given: Any) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*given)

    monkeypatch.setattr("pipeline.execute.execute.begin", interrupted)
    assert run_job(Job(experiment(*SMALL, outputs=outputs)), Console()) == 143
    assert only_run(outputs)[1].info.status == "KILLED"
    assert json.loads((only_folder(outputs) / "summary.json").read_text())["status"] == "KILLED"


class Slow(MlflowRun):
    """A store that takes three seconds to open, in which the user presses Ctrl-C."""

    def open(self, run_id: str | None) -> None:
        """Wait, and open it."""
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(3)
        super().open(run_id)


def test_a_signal_while_the_store_is_being_opened_ends_the_run_soon(
    outputs: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    monkeypatch.setattr("pipeline.tracking.tracker.STOPPED_SECONDS", 0.5)
    given = experiment(*SMALL, f"tracking._target_={__name__}.Slow", outputs=outputs)
    assert run_job(Job(given), Console()) == 130
    assert json.loads((only_folder(outputs) / "summary.json").read_text())["status"] == "KILLED"
    assert "are pending (the store is still being opened); " in " ".join(capsys.readouterr().out.split())


def test_the_journal_has_the_results_before_the_run_has_finished(outputs: Path, monkeypatch: Patch) -> None:
    """A process that is killed once the summary has the final status loses nothing, as nothing is repeated."""
    real, entries = RunFolder.end, []

    def observed(run: RunFolder, status: str, error: str | None = None) -> bool:
        entries.extend(run.journal.entries)
        return real(run, status, error)

    monkeypatch.setattr(RunFolder, "end", observed)
    assert run_job(Job(experiment(*SMALL, *TRAINED, outputs=outputs)), Console()) == 0
    tags = [entry.arguments["values"] for entry in entries if entry.call == "tags"]
    assert tags[-1][NOTE].startswith("**FINISHED**")
    assert any("train/seconds" in entry.arguments["values"] for entry in entries if entry.call == "metrics")
    assert any(entry.call == "view" for entry in entries)


def test_a_users_error_in_a_stage_shows_no_traceback(outputs: Path) -> None:
    assert run_job(Job(experiment(f"data._target_={__name__}.hopeless", outputs=outputs)), Console()) == 1
    log = (only_folder(outputs) / "pipeline.log").read_text()
    assert "error: load: the cheese is wrong. Expected gouda. Try: cheese=gouda" in log
    assert "Traceback" not in log


def test_a_store_that_breaks_in_the_middle_costs_nothing(outputs: Path, monkeypatch: Patch, capsys: Printed) -> None:
    def gone(self: object, values: object, step: int, time: int) -> None:
        raise OSError("the store has gone")

    with monkeypatch.context() as broken:
        broken.setattr(MlflowRun, "metrics", gone)
        broken.setattr("pipeline.tracking.tracker.FINISHED_SECONDS", 1.0)
        assert run_job(Job(experiment(*SMALL, *TRAINED, outputs=outputs)), Console()) == 0
    assert json.loads((only_folder(outputs) / "summary.json").read_text())["status"] == "FINISHED"
    printed = " ".join(capsys.readouterr().out.split())
    assert "the store has gone); they are kept and sent again" in printed
    assert f"`python -m pipeline sync {only_folder(outputs)}` sends them" in printed
    assert only_run(outputs)[1].info.status == "RUNNING"
    assert sync(["--outputs", str(outputs)]) == 0
    client, run = only_run(outputs)
    assert run.info.status == "FINISHED"
    assert [point.step for point in client.get_metric_history(run.info.run_id, "val/loss")] == [1, 2]
    assert sync(["--outputs", str(outputs)]) == 0
    assert len(client.get_metric_history(run.info.run_id, "val/loss")) == 2


def test_a_command_prints_its_results_and_where_its_time_went(command: Command) -> None:
    outputs, done, seconds = command
    summary = json.loads((only_folder(outputs) / "summary.json").read_text())
    assert 0 < summary["start_seconds"] < summary["seconds"] <= seconds
    in_stages = sum(stage["seconds"] for stage in summary["stages"].values())
    parts = summary["start_seconds"] + in_stages + summary["recording_seconds"]
    assert parts == pytest.approx(summary["seconds"], abs=0.01)
    assert f"FINISHED in {summary['seconds']:.1f} s: start {summary['start_seconds']:.1f}, " in done.stdout
    assert done.stderr == ""  # TensorFlow's messages are hidden
    pages = "open        python -m pipeline ui outputs=.\n"
    for said in ("best epoch", "test        accuracy", "images/s", pages, "differ from the trained model's by"):
        assert said in done.stdout
    assert len((only_folder(outputs) / "test_by_class.csv").read_text().splitlines()) == 11
