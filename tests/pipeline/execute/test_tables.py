"""Tables from files and arrays: trained, resumed, tracked, exported, and used for predictions."""

import json
import subprocess
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from sklearn import metrics as sk

from pipeline.commands import predict
from stages.data.tables import argument_names
from tests import commands
from tests.conftest import outputs_in
from tests.pipeline.experiments import WITHOUT_LITERT, Patch, Printed, killed_and_resumed, only_folder, only_run
from tests.pipeline.serving.test_serving import JSON, post, serving
from tests.stages.images import write
from tests.stages.mixed_tables import write_table

pytestmark = pytest.mark.slow

ROWS = 500
BRIEF = ("pipeline.inspect=null", "evaluate.baseline=false", "evaluate.importance=false", "tracking=off")
"""Settings without the results of a whole run that only one test examines."""

FEATURES = ["size (m)", "size [m]", "numbers", "grade", "self"]


@pytest.fixture(scope="module")
def csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(3)
    shop = random.integers(0, 50, ROWS)
    frame = pd.DataFrame(
        {
            "size (m)": np.where(random.random(ROWS) < 0.1, np.nan, random.normal(10, 3, ROWS).round(3)),
            "size [m]": random.normal(10, 3, ROWS).round(3),  # its argument name must differ from the other one's
            "numbers": [f"s{number}" for number in shop],
            "grade": random.integers(1, 4, ROWS),
            "self": np.where(random.random(ROWS) < 0.1, "?", shop % 2 == 0),
            "price": (1e5 + 100 * shop + random.normal(0, 500, ROWS)).round(2),
            "rent": (shop / 7 + random.normal(0, 1, ROWS)).round(3),
            "weight": random.random(ROWS).round(3),
            "color": np.array(["red", "blue", "green"])[shop % 3],
        }
    )
    path = tmp_path_factory.mktemp("table") / "shops.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def outputs(csv: Path, module_outputs: Path) -> Path:
    """Return the outputs of a whole run with two replicas."""
    given = ("data.target=color", f"data.features={FEATURES}", "data.missing=['?']", "evaluate.slices=[numbers]")
    formats = ("export=all", *WITHOUT_LITERT, "~export.formats.onnx")
    done = run(csv, module_outputs, *given, *formats, "strategy=mirrored")
    assert "shops.csv: 500 rows; color has 3 values (blue, green, red): task=classification" in done.stdout
    return module_outputs


def run(csv: Path, outputs: Path, *given: str) -> subprocess.CompletedProcess[str]:
    """Run a pipeline."""
    common = ("data=table", f"data.files={csv}", "train.epochs=2", "optimizer.learning_rate=0.01")
    return commands.succeed(*common, *given, f"outputs={outputs}")


def test_a_run_records_its_data_and_its_scores(outputs: Path) -> None:
    folder = only_folder(outputs)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["facts"]["data"]["category_features"] == 3
    columns = pd.read_csv(folder / "data" / "columns.csv").set_index("name")
    kinds = dict(zip(FEATURES, ("number", "number", "category", "whole", "category"), strict=True))
    kinds["color"] = "target"
    assert columns.kind.to_dict() == {**kinds, **dict.fromkeys(("price", "rent", "weight"), "leave_out")}
    assert summary["metrics"]["export/max_abs_diff"] <= 1e-6
    assert {"export/saved_model/agreement", "export/keras/agreement"} <= {*summary["metrics"]}
    assert pd.read_csv(folder / "test_slices.csv").examples.sum() == summary["facts"]["data"]["test_examples"]
    assert len(pd.read_csv(folder / "test_importance.csv")) == 5


def predicted(outputs: Path, file: Path, folder: Path) -> np.ndarray:
    """Return the probabilities that `python -m pipeline predict` prints for the rows of a file."""
    written = folder / "predicted.parquet"
    assert predict.main([str(only_folder(outputs)), str(file), "-o", str(written), f"--outputs={outputs}"]) == 0
    return np.array(pq.read_table(written)["probabilities"].to_pylist())


def test_predictions_of_new_rows_equal_those_of_the_test_and_wrong_rows_are_reported(
    outputs: Path, csv: Path, tmp_path: Path, capsys: Printed
) -> None:
    tested, answers = pq.read_table(only_folder(outputs) / "predictions.parquet"), predicted(outputs, csv, tmp_path)
    expected = np.array(tested["probabilities"].to_pylist())
    np.testing.assert_allclose(answers[tested["example"].to_numpy()], expected, atol=1e-6)
    assert "differ" not in capsys.readouterr().err
    frame = pd.read_csv(csv)
    frame[[*frame][::-1]].to_csv(tmp_path / "turned.csv", index=False)
    np.testing.assert_array_equal(predicted(outputs, tmp_path / "turned.csv", tmp_path), answers)
    frame.assign(**{"size (m)": frame["size (m)"] * 2}).to_csv(tmp_path / "new.csv", index=False)
    predicted(outputs, tmp_path / "new.csv", tmp_path)
    said = "warning: these rows differ from the training data in size (m) "
    assert any(line.startswith(said) for line in capsys.readouterr().err.splitlines())


def test_another_table_is_evaluated_as_it_is_predicted(outputs: Path, csv: Path, tmp_path: Path) -> None:
    """A table with a single class, a numeric column without values and a category with one value."""
    frame = pd.read_csv(csv)
    frame = frame[frame.color == "red"].assign(**{"size [m]": None, "numbers": "s3"})
    frame.to_csv(tmp_path / "red.csv", index=False)
    words = (f"run={only_folder(outputs)}", f"data.files={tmp_path / 'red.csv'}", f"outputs={tmp_path}")
    commands.succeed("from=evaluate", *words, "evaluate.slices=[]", "pipeline.export=null", *BRIEF)
    tested = pq.read_table(only_folder(tmp_path) / "predictions.parquet")
    expected = predicted(outputs, tmp_path / "red.csv", tmp_path)[tested["example"].to_numpy()]
    np.testing.assert_allclose(tested["probabilities"].to_pylist(), expected, atol=1e-6)


def loaded(outputs: Path) -> Any:
    """Return the tracked model of the only run, as MLflow loads it."""
    mlflow.set_tracking_uri(f"sqlite:///{outputs / 'mlflow.db'}")
    try:
        return mlflow.pyfunc.load_model(only_run(outputs)[1].data.tags["model_uri"])
    finally:
        mlflow.set_tracking_uri(None)  # tests of other files use other stores in this process


def test_mlflow_loads_a_model_that_takes_a_data_frame(outputs: Path, csv: Path) -> None:
    model = loaded(outputs)
    names = [column.name for column in model.metadata.get_input_schema().inputs]
    assert names == ["size__m_", "size__m__", "numbers_", "grade", "self_"]
    frame = pd.read_csv(csv).rename(columns=argument_names(FEATURES))[names]
    answers = model.predict(frame)
    assert len(answers) == ROWS
    schema = model.metadata.get_output_schema()
    assert {"probabilities", "class_name", "score"} == {*answers.columns} == {*schema.input_names()}
    mlflow.models.utils._enforce_schema(answers, schema)
    assert [str(kind) for kind in schema.input_types()] == ["Array(double)", "DataType.string", "DataType.double"]


def test_regression_metrics_equal_those_of_scikit_learn(csv: Path, tmp_path: Path) -> None:
    """The run has a custom loss, an additional metric and weights."""
    task = ("data.target=[price,rent]", "data.weight=weight", "task.loss._target_=keras.losses.Huber")
    own = ("task.metrics=[{_target_: keras.metrics.MeanSquaredError, name: mse}]", "train.monitor=val_mse")
    done = run(csv, tmp_path, *task, *own, "strategy=mirrored", *BRIEF)
    assert "price, rent are numbers: task=regression" in done.stdout
    folder = only_folder(tmp_path)
    summary = json.loads((folder / "summary.json").read_text())
    metrics = summary["metrics"]
    assert summary["weights"]["monitor"] == "val_mse"
    table = pq.read_table(folder / "predictions.parquet")
    targets, answers = (np.stack(table[name].to_numpy(zero_copy_only=False)) for name in ("target", "prediction"))
    frame = pd.read_csv(csv).iloc[table["example"].to_numpy()]
    np.testing.assert_array_equal(targets, frame[["price", "rent"]].to_numpy(np.float32))
    score = {"sample_weight": frame.weight, "multioutput": "raw_values"}
    functions = {"rmse": sk.root_mean_squared_error, "mae": sk.mean_absolute_error, "r2": sk.r2_score}
    for name, function in functions.items():
        values = function(targets, answers, **score)
        assert metrics[f"test/{name}"] == pytest.approx(values.mean(), rel=1e-6)
        for target, value in zip(("price", "rent"), values, strict=True):
            assert metrics[f"test/{name}/{target}"] == pytest.approx(value, rel=1e-6)
    squares = sk.mean_squared_error(targets, answers, sample_weight=frame.weight)
    assert metrics["test/mse"] == pytest.approx(squares, rel=1e-5)
    assert "test/rmse_low" not in metrics, "100 test examples, which may lack rare large errors"
    assert "no confidence interval for rmse" in done.stdout
    assert metrics["train/examples_per_second"] > 0
    assert "train/images_per_second" not in metrics
    assert metrics["export/max_abs_diff"] <= 1e-6
    assert (folder / "plots" / "predicted.png").is_file()


def test_labels_are_measured_as_scikit_learn_does(csv: Path, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    frame = pd.read_csv(csv)
    frame = frame.assign(is_red=(frame.color == "red").astype(int), is_first=frame.grade == 1)
    frame.drop(columns=["color", "grade"]).to_csv(path, index=False)
    done = run(path, tmp_path, "data.target=[is_red,is_first]", *BRIEF)
    assert "is_red, is_first are 0 or 1: task=multi_label" in done.stdout
    folder = only_folder(tmp_path)
    metrics = json.loads((folder / "summary.json").read_text())["metrics"]
    table = pq.read_table(folder / "predictions.parquet")
    names = ("target", "predicted", "probabilities")
    targets, predicted, answers = (np.stack(table[name].to_numpy(zero_copy_only=False)) for name in names)
    expected = frame.iloc[table["example"].to_numpy()][["is_red", "is_first"]].to_numpy(int)
    np.testing.assert_array_equal(targets, expected)
    np.testing.assert_array_equal(predicted, answers > 0.5)
    scores = {"macro_roc_auc": sk.roc_auc_score(targets, answers), "exact_match": sk.accuracy_score(targets, predicted)}
    scores |= {"macro_f1": sk.f1_score(targets, predicted, average="macro")}
    assert {name: metrics[f"test/{name}"] for name in scores} == pytest.approx(scores, rel=1e-9)
    assert metrics["export/max_abs_diff"] <= 1e-6
    assert len((folder / "test_by_label.csv").read_text().splitlines()) == 3


def test_a_server_accepts_columns_and_returns_what_predict_does(outputs: Path, csv: Path, tmp_path: Path) -> None:
    expected = predicted(outputs, csv, tmp_path)
    with serving(only_folder(outputs), outputs) as (address, _):
        told = (outputs / "served.txt").read_text()
        columns = pd.read_csv(csv)[FEATURES].rename(columns=argument_names(FEATURES))
        records = {"dataframe_split": json.loads(columns.to_json(orient="split", index=False))}
        code, answer = post(address, json.dumps(records).encode(), JSON)
        alike = []
        for given in (True, "True"):
            rest = {"size__m_": None, "size__m__": 3, "grade": 1, "self_": given}
            body = json.dumps({"dataframe_records": [{**rest, "numbers_": missing} for missing in (None, "NA", "?")]})
            for form in ("dataframe_records", "instances"):
                asked = body.replace("dataframe_records", form).encode()
                alike += post(address, asked, JSON)[1]["predictions"]
        wrong, error = post(address, b'{"dataframe_split": {"columns": ["numbers_"], "data": [["s1"]]}}', JSON)
        half = json.dumps({"instances": [{**rest, "numbers_": "s1", "grade": 2.5}]}).encode()
        refused, why = post(address, half, JSON)
        _, of_file = post(address, csv.read_bytes(), "text/csv")
    assert (refused, "row 1, column grade: '2.5' is not a whole number" in why["error"]) == (400, True)
    np.testing.assert_allclose([row["probabilities"] for row in of_file["predictions"]], expected, rtol=0, atol=1e-6)
    assert {row["class_name"] for row in answer["predictions"]} <= {"blue", "green", "red"}
    assert alike == alike[:1] * 12
    np.testing.assert_allclose([row["probabilities"] for row in answer["predictions"]], expected, rtol=0, atol=1e-6)
    assert ("an example  curl" in told, "/images" in told) == (True, False)
    assert "differ" not in (outputs / "served.txt").read_text()  # they are rows of the training data
    assert (code, wrong, "grade" in str(error)) == (200, 400, True)


ARRAYS = """
import numpy as np

def load():
    random = np.random.default_rng(0)
    def part(rows):
        vectors, color = random.normal(size=(rows, 5)), random.choice(["red", "blue"], rows)
        return {"parts": vectors, "color": color}, (vectors[:, 0] > 0) + 2 * (color == "red")
    return part(300), None, part(81)
"""


def test_a_function_of_arrays_is_trained_and_used(tmp_path: Path, migrated_store: Path, monkeypatch: Patch) -> None:
    """A custom function, on two replicas."""
    (tmp_path / "mine.py").write_text(ARRAYS)
    outputs = outputs_in(tmp_path, migrated_store)
    words = ("strategy=mirrored", "pipeline.inspect=null", "evaluate.baseline=false", "evaluate.importance=false")
    given = ("data=arrays", "data._target_=mine.load", "train.epochs=2", *words)
    done = commands.succeed(*given, f"outputs={outputs}", cwd=tmp_path)
    assert "target has 4 values (0, 1, 2, 3): task=classification" in done.stdout
    monkeypatch.syspath_prepend(tmp_path)
    _, _, (features, targets) = __import__("mine").load()
    tested = pq.read_table(only_folder(outputs) / "predictions.parquet")
    np.testing.assert_array_equal(np.asarray(tested["label"]), targets)
    frame = pd.DataFrame({"parts": [*features["parts"]], "color": features["color"]})
    answers = np.stack(loaded(outputs).predict(frame)["probabilities"].to_numpy())
    np.testing.assert_allclose(answers, tested["probabilities"].to_pylist(), atol=1e-6)


def test_a_run_on_a_table_of_image_paths_is_killed_resumed_and_used(tmp_path: Path, capsys: Printed) -> None:
    """Each image has several labels. The weights of the resumed run equal those of an uninterrupted run exactly."""
    lines = ["file,red,wide"]
    for row in range(60):
        write(tmp_path / "photos" / f"{row}.png", row)
        lines.append(f"{row}.png,{row % 2},{row // 3 % 2}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    given = (
        "data=table", f"data.files={tmp_path}/labels.csv", f"data.root={tmp_path}/photos", "data.size=16",
        "data.features={file: image}", "data.target=[red,wide]", "augment=flip", "augment.mixup=0.2",
        "model=mlp", "model.network.hidden=[16]", "model.network.dropout=0.3", "strategy=mirrored", "train.epochs=2",
        "train.batch_size=16", "pipeline.inspect=null",
    )  # fmt: skip
    folder = only_folder(killed_and_resumed(given, tmp_path))
    tested = pq.read_table(folder / "predictions.parquet").to_pydict()
    photos = [str(tmp_path / "photos" / name) for name in tested["file"]]
    assert predict.main([str(folder), *photos, "--json"]) == 0
    answers = [json.loads(line)["probabilities"] for line in capsys.readouterr().out.splitlines()]
    given_by_files = [[answer[name] for name in ("red", "wide")] for answer in answers]
    np.testing.assert_allclose(given_by_files, tested["probabilities"], atol=1e-5)


def test_a_run_on_images_and_columns_is_killed_and_resumed(tmp_path: Path) -> None:
    write_table(tmp_path, rows=24)
    killed_and_resumed((
        "data=table", f"data.files={tmp_path}/homes.csv", f"data.root={tmp_path}/photos", "data.size=16",
        "data.features={front: image, back: leave_out, note: leave_out}", "data.target=price", "augment=flip",
        "model=mlp", "model.network.hidden=[8]", "model.network.dropout=0.3", "model.encoder_width=4",
        "model.encoders.front={_target_: stages.networks.cnn.cnn, filters: [4]}", "train.epochs=2",
        "train.batch_size=4", "pipeline.inspect=null", "pipeline.export=null", "evaluate.baseline=false",
    ), tmp_path, step=7)  # fmt: skip
