"""A table from the command to its predictions: trained, killed and resumed, tracked, exported, asked."""

import json
import subprocess
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from sklearn import metrics as sk

from pipeline import predict
from tests import commands
from tests.pipeline.experiments import TRAINED, killed_and_resumed, only_folder, only_run
from tests.pipeline.serving.test_serving import JSON, post, serving

pytestmark = pytest.mark.slow

ROWS = 500


@pytest.fixture(scope="module")
def csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(3)
    shop = random.integers(0, 50, ROWS)
    frame = pd.DataFrame(
        {
            "size (m)": np.where(random.random(ROWS) < 0.1, np.nan, random.normal(10, 3, ROWS).round(3)),
            "shop": [f"s{number}" for number in shop],
            "grade": random.integers(1, 4, ROWS),
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
def outputs(csv: Path, tmp_path_factory: pytest.TempPathFactory, migrated_store: Path) -> Path:
    """The outputs of a whole run with two replicas."""
    outputs = tmp_path_factory.mktemp("outputs")
    (outputs / "mlflow.db").write_bytes(migrated_store.read_bytes())
    done = run(csv, outputs, "data.target=color", "data.features=['size (m)',shop,grade]", "export=all",
               "evaluate.slices=[shop]")  # fmt: skip
    assert "shops.csv: 500 rows; color has 3 values (blue, green, red): task=classification" in done.stdout
    return outputs


def run(csv: Path, outputs: Path, *given: str) -> subprocess.CompletedProcess[str]:
    """Runs a whole pipeline on two replicas."""
    common = ("data=table", f"data.files={csv}", "train.epochs=2", "strategy=mirrored", "optimizer.learning_rate=0.01")
    done = commands.run(*common, *given, f"outputs={outputs}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_a_run_has_what_was_found_and_measured(outputs: Path) -> None:
    folder = only_folder(outputs)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["facts"]["data"]["category_features"] == 2
    columns = pd.read_csv(folder / "data" / "columns.csv").set_index("name")
    kinds = {"size (m)": "number", "shop": "category", "grade": "whole", "color": "target"}
    assert columns.kind.to_dict() == {**kinds, **dict.fromkeys(("price", "rent", "weight"), "leave_out")}
    assert summary["metrics"]["export/max_abs_diff"] <= 1e-6
    assert {"export/saved_model/agreement", "export/keras/agreement"} <= {*summary["metrics"]}
    assert pd.read_csv(folder / "test_slices.csv").examples.sum() == summary["facts"]["data"]["test_examples"]
    assert len(pd.read_csv(folder / "test_importance.csv")) == 3


def test_slices_of_no_column_are_refused_once_the_data_is_known(csv: Path, tmp_path: Path) -> None:
    given = ("data=table", f"data.files={csv}", "data.target=color", "evaluate.slices=[colour]", "tracking=off")
    done = commands.run(*given, f"outputs={tmp_path}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "evaluate.slices=colour is no column of shops.csv that is used" in done.stdout + done.stderr
    assert "epoch" not in done.stdout


def test_predictions_of_new_rows_are_those_of_the_test(outputs: Path, csv: Path, tmp_path: Path) -> None:
    folder = only_folder(outputs)
    written = tmp_path / "predicted.parquet"
    assert predict.main([str(folder), str(csv), "-o", str(written)]) == 0
    tested, answers = pq.read_table(folder / "predictions.parquet"), pq.read_table(written)
    expected = np.stack(tested["probabilities"].to_numpy(zero_copy_only=False))
    given = np.stack(answers["probabilities"].to_numpy(zero_copy_only=False))[tested["example"].to_numpy()]
    np.testing.assert_allclose(given, expected, atol=1e-6)


def test_rows_unlike_those_of_the_training_are_told(
    outputs: Path, csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, frame = only_folder(outputs), pd.read_csv(csv)
    frame.assign(**{"size (m)": frame["size (m)"] * 2}).to_csv(tmp_path / "new.csv", index=False)
    told = []
    for path in (csv, tmp_path / "new.csv"):
        assert predict.main([str(folder), str(path), "-o", str(tmp_path / "predicted.parquet")]) == 0
        told.append([line for line in capsys.readouterr().err.splitlines() if "differ" in line])
    assert told[0] == []
    assert told[1][0].startswith("warning: these rows differ from those of the training in size (m) ")


def test_mlflow_loads_a_model_that_takes_a_data_frame(outputs: Path, csv: Path) -> None:
    _, run = only_run(outputs)
    mlflow.set_tracking_uri(f"sqlite:///{outputs / 'mlflow.db'}")
    try:
        model = mlflow.pyfunc.load_model(run.data.tags["model_uri"])
    finally:
        mlflow.set_tracking_uri(None)  # of this process, in which other files' tests have stores of their own
    names = [column.name for column in model.metadata.get_input_schema().inputs]
    assert names == ["size__m_", "shop", "grade"]
    frame = pd.read_csv(csv).rename(columns={"size (m)": "size__m_"})[names]
    answers = model.predict(frame)
    assert len(answers) == ROWS
    schema = model.metadata.get_output_schema()
    assert {"probabilities", "class_name", "score"} == {*answers.columns} == {*schema.input_names()}
    mlflow.models.utils._enforce_schema(answers, schema)
    assert [str(kind) for kind in schema.input_types()] == ["Array(double)", "DataType.string", "DataType.double"]


def test_metrics_of_numbers_are_those_of_scikit_learn(
    csv: Path, tmp_path_factory: pytest.TempPathFactory, migrated_store: Path
) -> None:
    outputs = tmp_path_factory.mktemp("numbers")
    (outputs / "mlflow.db").write_bytes(migrated_store.read_bytes())
    done = run(
        csv,
        outputs,
        "data.target=[price,rent]",
        "data.weight=weight",
        "task.loss._target_=keras.losses.Huber",
        "export=keras",
    )
    assert "price, rent are numbers: task=regression" in done.stdout
    folder = only_folder(outputs)
    metrics = json.loads((folder / "summary.json").read_text())["metrics"]
    table = pq.read_table(folder / "predictions.parquet")
    targets, answers = (np.stack(table[name].to_numpy(zero_copy_only=False)) for name in ("target", "prediction"))
    frame = pd.read_csv(csv).iloc[table["example"].to_numpy()]
    np.testing.assert_array_equal(targets, frame[["price", "rent"]].to_numpy(np.float32))
    score = {"sample_weight": frame.weight, "multioutput": "raw_values"}
    expected = {
        "rmse": sk.root_mean_squared_error(targets, answers, **score),
        "mae": sk.mean_absolute_error(targets, answers, **score),
        "r2": sk.r2_score(targets, answers, **score),
    }
    for name, values in expected.items():
        assert metrics[f"test/{name}"] == pytest.approx(values.mean(), rel=1e-6)
        for target, value in zip(("price", "rent"), values, strict=True):
            assert metrics[f"test/{name}/{target}"] == pytest.approx(value, rel=1e-6)
    assert metrics["test/rmse_low"] < metrics["test/rmse"] < metrics["test/rmse_high"]
    assert metrics["train/examples_per_second"] > 0
    assert "train/images_per_second" not in metrics
    assert metrics["export/max_abs_diff"] <= 1e-6
    assert (folder / "plots" / "predicted.png").is_file()


def test_labels_are_measured_as_scikit_learn_does(csv: Path, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    frame = pd.read_csv(csv)
    frame = frame.assign(is_red=(frame.color == "red").astype(int), is_first=frame.grade == 1)
    frame.drop(columns=["color", "grade"]).to_csv(path, index=False)
    given = ("train.epochs=2", "optimizer.learning_rate=0.01", "tracking=off", f"outputs={tmp_path}")
    done = commands.run("data=table", f"data.files={path}", "data.target=[is_red,is_first]", *given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is_red, is_first are 0 or 1: task=multi_label" in done.stdout
    folder = only_folder(tmp_path)
    metrics = json.loads((folder / "summary.json").read_text())["metrics"]
    table = pq.read_table(folder / "predictions.parquet")
    targets, predicted, answers = (
        np.stack(table[name].to_numpy(zero_copy_only=False)) for name in ("target", "predicted", "probabilities")
    )
    expected = frame.iloc[table["example"].to_numpy()][["is_red", "is_first"]].to_numpy(int)
    np.testing.assert_array_equal(targets, expected)
    np.testing.assert_array_equal(predicted, answers > 0.5)
    assert metrics["test/macro_f1"] == pytest.approx(sk.f1_score(targets, predicted, average="macro"), rel=1e-9)
    assert metrics["test/macro_roc_auc"] == pytest.approx(sk.roc_auc_score(targets, answers), rel=1e-9)
    assert metrics["test/exact_match"] == pytest.approx(sk.accuracy_score(targets, predicted), rel=1e-9)
    assert metrics["export/max_abs_diff"] <= 1e-6
    assert len((folder / "test_by_label.csv").read_text().splitlines()) == 3


def test_killed_and_resumed_equals_uninterrupted(csv: Path, tmp_path: Path) -> None:
    given = (
        "data=table", f"data.files={csv}", "data.target=color", *TRAINED, "train.epochs=40",
        "model=mlp", "model.network.hidden=[16]", "model.network.dropout=0.3",
    )  # fmt: skip
    killed_and_resumed(given, tmp_path)


def test_a_server_takes_columns_and_answers_as_predict_does(outputs: Path, csv: Path, tmp_path: Path) -> None:
    folder = only_folder(outputs)
    assert predict.main([str(folder), str(csv), "-o", str(tmp_path / "x.parquet"), f"--outputs={outputs}"]) == 0
    expected = np.array(pq.read_table(tmp_path / "x.parquet").column("probabilities").to_pylist())
    with serving(folder, outputs) as (address, _):
        told = (outputs / "served.txt").read_text()
        columns = pd.read_csv(csv)[["size (m)", "shop", "grade"]].rename(columns={"size (m)": "size__m_"})
        records = {"dataframe_split": json.loads(columns.to_json(orient="split", index=False))}
        code, answer = post(address, json.dumps(records).encode(), JSON)
        wrong, error = post(address, b'{"dataframe_split": {"columns": ["shop"], "data": [["s1"]]}}', JSON)
    assert code == 200
    np.testing.assert_allclose([row["probabilities"] for row in answer["predictions"]], expected, rtol=0, atol=1e-6)
    assert "an example  curl" in told
    assert "/images" not in told
    assert wrong == 400
    assert "grade" in str(error)
