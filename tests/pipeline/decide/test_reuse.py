"""A run that starts with a later stage has the results of the earlier run, and never reuses results that do not fit."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from mlflow import MlflowClient

from pipeline.decide.decision import check
from pipeline.tracking.models import RESULTS, logged_model
from stages.errors import UserError
from stages.load.digits import digits
from stages.settings.data import DigitsSettings
from tests import commands
from tests.pipeline.experiments import QUICK, Patch, experiment, only_folder

pytestmark = pytest.mark.slow

TRAINED = (*QUICK, "normalize=standardize", "pipeline.inspect=null")
SMALL = ("data=synthetic", "data.examples=200", "data.test_examples=64", "data.height=8", "data.width=8")


@pytest.fixture(scope="module")
def outputs(module_outputs: Path) -> Path:
    """A folder with one finished run, which scales images by the statistics of its training images."""
    commands.succeed(*TRAINED, f"outputs={module_outputs}")
    return module_outputs


@pytest.fixture(scope="module")
def trained(outputs: Path) -> Path:
    return only_folder(outputs)


def begin(run: Path | str, outputs: Path, *words: str, first: str = "evaluate") -> tuple[Path, str]:
    """Run `from=<first> run=<run>`; return the new run's folder and what was printed."""
    before = set(outputs.glob("runs/*/*"))
    done = commands.succeed(f"from={first}", f"run={run}", *words, f"outputs={outputs}", cwd=outputs)
    [folder] = set(outputs.glob("runs/*/*")) - before
    return folder, done.stdout


def summary(folder: Path) -> dict:
    return dict(json.loads((folder / "summary.json").read_text()))


def probabilities(folder: Path) -> np.ndarray:
    return np.array(pq.read_table(folder / "predictions.parquet")["probabilities"].to_pylist())


def planned(printed: str, action: str) -> list[str]:
    """Return the stages that a printed plan reuses, or runs."""
    return re.findall(rf"(?m)^ +\d+ +{action} +(\w+)", printed)


def test_evaluating_again_gives_the_same_numbers_and_trains_nothing(trained: Path, outputs: Path) -> None:
    again, printed = begin(trained, outputs, "pipeline.export=null", f"model.weights='{trained}/export/saved_model'")
    first, second = summary(trained), summary(again)
    assert {name: stage["status"] for name, stage in second["stages"].items()} == {
        "strategy": "ran", "load": "ran", "normalize": "reused", "augment": "ran",
        "model": "ran", "train": "reused", "evaluate": "ran",
    }  # fmt: skip
    tested = [name for name in first["metrics"] if re.fullmatch(r"test/(loss|accuracy|macro_\w+)", name)]
    assert len(tested) >= 5
    assert {name: second["metrics"][name] for name in tested} == {name: first["metrics"][name] for name in tested}
    assert np.array_equal(probabilities(trained), probabilities(again))
    assert second["weights"] == first["weights"]
    assert second["facts"]["val_examples"] == first["facts"]["val_examples"]
    assert second["metrics"]["val/best_loss"] == first["metrics"]["val/best_loss"]
    assert planned(printed, "reused") == ["normalize", "train"]
    assert planned(printed, "runs") == ["strategy", "load", "augment", "model", "evaluate"]
    client = MlflowClient(f"sqlite:///{outputs}/mlflow.db")
    assert client.get_run(second["run_id"]).data.tags["reused_run"] == first["run_id"]


def test_on_other_data_the_model_keeps_its_scaling(trained: Path, outputs: Path) -> None:
    """Its predictions equal those of the first run's export, which scales images as in training.

    The other data is a different split of the same images, so a warning reports that the model was trained on most.
    """
    other, printed = begin(trained, outputs, "data.split_seed=5", "pipeline.export=null")
    reloaded = tf.saved_model.load(str(trained / "export" / "saved_model"))
    images = digits(DigitsSettings(split_seed=5)).test.images
    expected = reloaded(tf.constant(images, tf.float32)).numpy()
    assert np.abs(probabilities(other) - expected).max() < 1e-6
    scalings = [(folder / RESULTS / "normalize" / "facts.json").read_bytes() for folder in (trained, other)]
    assert scalings[0] == scalings[1]
    assert re.search(r"warning: the model was trained on 2\d\d of these 360 test examples, so its test", printed)
    assert summary(other)["facts"]["known_test_images"] > 200


def test_reused_results_can_be_reused_again(trained: Path, outputs: Path, monkeypatch: Patch) -> None:
    """The run is named by a registered model, and then by its id; replicas evaluate like one device."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{outputs}/mlflow.db")  # the registry looks up models there
    client = MlflowClient(f"sqlite:///{outputs}/mlflow.db")
    source = summary(trained)["run_id"]
    experiments = [client.get_run(source).info.experiment_id]
    [model] = client.search_logged_models(experiments, filter_string=f"source_run_id = '{source}'")
    client.create_registered_model("stripes")
    client.create_model_version("stripes", f"models:/{model.model_id}", source)
    client.set_registered_model_alias("stripes", "champion", "1")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    for given in (f"runs:/{source}", f"models:/{model.model_id}", "models:/stripes/1", "models:/stripes@champion"):
        assert logged_model(client, given) == model.model_id
    exported, _ = begin("models:/stripes@champion", outputs, first="export")
    assert summary(exported)["stages"]["evaluate"]["status"] == "skipped"
    replicas = ("strategy=mirrored", "strategy.cpu_replicas=2", "pipeline.export=null")
    again, _ = begin(summary(exported)["run_id"], outputs, *replicas)
    assert summary(again)["replicas"] == 2
    assert np.abs(probabilities(again) - probabilities(trained)).max() < 1e-6


OWN = """
from pathlib import Path
from stages.declared import declare

def save(count, folder):
    (folder / "count.txt").write_text(str(count["n"]))

def restore(saved):
    return {"n": int((saved / "count.txt").read_text())}

def made(dataset):
    Path("made").open("a").write("x")
    return {"n": len(dataset.test)}

def kept(dataset):
    Path("kept").open("a").write("x")
    return {"n": len(dataset.test)}

declare(kept, save=save, restore=restore)

def report(count, other):
    return {"report/n": count["n"] + other["n"]}
"""


def test_a_custom_stage_is_reused_if_its_result_is_saved(tmp_path: Path) -> None:
    (tmp_path / "own_stage.py").write_text(OWN)
    outputs = tmp_path / "outputs"
    left_out = ("normalize", "augment", "inspect", "model", "train", "evaluate", "export")
    added = {"first": ("count", "kept"), "second": ("other", "made"), "report": ("reported", "report")}
    words = [*SMALL, *(f"pipeline.{name}=null" for name in left_out), "tracking=off", f"outputs={outputs}"]
    for stage, (result, function) in added.items():
        words += [f"+pipeline.{stage}={result}", f"+{stage}._target_=own_stage.{function}"]
    commands.succeed(*words, cwd=tmp_path)
    [run] = outputs.glob("runs/*/*")
    code = [word for word in words if "_target_" in word]
    done = commands.succeed("from=report", f"run={run}", *code, f"outputs={outputs}", cwd=tmp_path)
    assert planned(done.stdout, "reused") == ["first"]
    assert planned(done.stdout, "runs") == ["load", "second", "report"]
    assert [(tmp_path / name).read_text() for name in ("kept", "made")] == ["x", "xx"]
    assert [summary(folder)["metrics"]["report/n"] for folder in outputs.glob("runs/*/*")] == [128, 128]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["from=evaluate"], "from=evaluate requires run"), (["run={run}"], "run={run} requires from"),
        (["from=evaluate", "run=12345678"], "run=12345678 matches no run in"),
        (["from=predict", "run={run}"], "from=predict is not a stage of `pipeline`. Expected one of: evaluate, export"),
        (["from=model", "run={run}"], "from=model would train the model again. Expected one of: evaluate, export"),
        (["from=evaluate", "run={run}", "fork={run}"], "fork={run} cannot be combined with run={run}"),
        (["from=evaluate", "run={run}", "optimizer.learning_rate=0.5"], "optimizer.learning_rate was 0.0"),
        (["from=evaluate", "run={run}", "seed=7"], "seed was 42 and is now 7"),
        (["from=evaluate", "run={run}", "precision=mixed"], "precision.policy was float32 and is"),
    ],
)  # fmt: skip
def test_unusable_results_are_refused_at_once(words: list[str], message: str, trained: Path, outputs: Path) -> None:
    given = [word.replace("{run}", str(trained)) for word in words]
    own = [word for word in TRAINED if word.partition("=")[0] not in {word.partition("=")[0] for word in given}]
    with pytest.raises(UserError, match=re.escape(message.replace("{run}", str(trained)))):
        check(experiment(*own, *given, outputs=outputs))


def test_data_with_other_classes_is_refused(trained: Path, outputs: Path) -> None:
    words = ["data.channels=1", "data.num_classes=5", f"outputs={outputs}"]
    done = commands.run("from=evaluate", f"run={trained}", "resume=never", *SMALL, *words, cwd=outputs)
    assert done.returncode == 1
    assert re.search(r"synthetic has class_names \[.*4'\], but the model was trained on \['0', '1', ", done.stdout)


def test_several_runs_are_refused_in_a_sweep(trained: Path, outputs: Path) -> None:
    done = commands.run("-m", "from=evaluate", f"run={trained},other", f"outputs={outputs}", trains=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "matches no run" in done.stderr


def test_a_run_without_a_completed_training_is_refused(trained: Path, outputs: Path, tmp_path: Path) -> None:
    stopped = tmp_path / "runs" / "stopped" / trained.name
    shutil.copytree(trained, stopped)
    shutil.rmtree(stopped / "results" / "train")
    facts = summary(stopped)
    facts["status"], facts["stages"]["train"]["status"] = "KILLED", "failed"
    (stopped / "summary.json").write_text(json.dumps(facts))
    with pytest.raises(UserError, match=r"has no saved result of its stage train \(status: KILLED\)"):
        check(experiment(*TRAINED, "from=evaluate", f"run={stopped}", outputs=outputs))


def test_settings_that_no_longer_exist_do_not_count(trained: Path, outputs: Path, tmp_path: Path) -> None:
    older = tmp_path / "runs" / "older" / trained.name
    shutil.copytree(trained, older)
    with (older / "config.yaml").open("a") as config:
        config.write("max_jobs: 2000\ntrust: true\n")
    check(experiment(*TRAINED, "from=evaluate", f"run={older}", outputs=outputs))
