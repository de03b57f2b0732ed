"""Time series from a file: planned, trained, resumed, exported, and forecast from the latest rows."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from pipeline.commands import predict
from tests import commands
from tests.pipeline.experiments import BARE, WITHOUT_LITERT, killed_and_resumed, only_folder
from tests.pipeline.serving.test_serving import JSON, post, serving
from tests.stages.series import demand

pytestmark = pytest.mark.slow

WORDS = ("data=series", "data.target=sales", "data.time=date", "data.group=store", "data.window=14", "data.horizon=4",
         "data.known=[promo]", "train.epochs=2")  # fmt: skip


@pytest.fixture(scope="module")
def csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("series") / "demand.csv"
    demand(days=300).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def outputs(csv: Path, module_outputs: Path) -> Path:
    """Return the outputs of a whole run with two replicas."""
    given = (*WORDS, "model=causal_cnn", f"data.files={csv}", "strategy=mirrored", "export=all", *WITHOUT_LITERT)
    done = commands.succeed(*given, f"outputs={module_outputs}")
    assert "rejected" not in done.stdout + done.stderr  # by MLflow
    assert "600 steps of 2 series, every day; windows of 14 + 4 steps: 398 train, 14 val, 86 test" in done.stdout
    return module_outputs


def test_a_run_reports_its_forecasts(outputs: Path) -> None:
    folder = only_folder(outputs)
    summary = json.loads((folder / "summary.json").read_text())
    metrics = summary["metrics"]
    assert {"test/mae", "test/rmse", "test/mase", "trivial/mae", "baseline/mae"} <= {*metrics}
    assert metrics["export/max_abs_diff"] <= 1e-4
    assert {"export/keras/agreement", "export/onnx/agreement"} <= {*metrics}
    steps = pd.read_csv(folder / "test_by_step.csv")
    assert steps.step.tolist() == ["sales+1", "sales+2", "sales+3", "sales+4"]
    assert steps.mae.mean() == pytest.approx(metrics["test/mae"])
    assert steps["naive mae"].mean() == pytest.approx(metrics["trivial/mae"])
    assert {"forecasts.png", "steps.png"} <= {path.name for path in (folder / "plots").iterdir()}
    table = pq.read_table(folder / "predictions.parquet")
    assert {"example", "target", "prediction", "naive", "group"} <= {*table.column_names}
    assert any("seasonal naive forecast" in sentence for sentence in summary["facts"]["verdicts"])


def test_a_killed_run_equals_an_uninterrupted_one(csv: Path, tmp_path: Path) -> None:
    left_out = (*BARE, "evaluate.baseline=false")
    killed_and_resumed((*WORDS, *left_out, "train.epochs=1", f"data.files={csv}"), tmp_path)


def test_forecasts_of_the_latest_rows_are_written_with_their_times(outputs: Path, csv: Path, tmp_path: Path) -> None:
    """Rows behind the last sales have the promotions. The same window of the test split has the same forecast."""
    frame = pd.read_csv(csv)
    days = sorted({*frame.date})
    table = pq.read_table(only_folder(outputs) / "predictions.parquet")
    expected = dict(zip(table["example"].to_pylist(), table["prediction"].to_pylist(), strict=True))
    frame.loc[frame.date >= days[-4], ["sales", "price"]] = np.nan
    frame.to_csv(tmp_path / "new.csv", index=False)
    words = [str(only_folder(outputs)), f"--outputs={outputs}"]
    written = tmp_path / "next.csv"
    assert predict.main([words[0], str(tmp_path / "new.csv"), "-o", str(written), words[1]]) == 0
    found = pd.read_csv(written)
    assert list(found) == ["store", "date", "sales"]
    assert {*found.date} == {*days[-4:]}
    for store, part in found.groupby("store"):
        [example] = np.flatnonzero((frame.store == store) & (frame.date == days[-4]))
        np.testing.assert_allclose(part.sales, expected[int(example)], rtol=1e-4)
    frame[frame.date < days[-2]].to_csv(tmp_path / "short.csv", index=False)
    done = commands.run("predict", words[0], str(tmp_path / "short.csv"), words[1])
    assert done.returncode == 2
    assert "has only 2 rows after" in done.stderr


def test_forecasts_of_arrays_equal_those_of_their_table(outputs: Path, csv: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(csv).sort_values(["store", "date"])
    days = sorted({*frame.date})
    frame[["sales", "price"]] = frame[["sales", "price"]].where(frame.date < days[-4], np.nan, axis=0)
    frame.to_csv(tmp_path / "new.csv", index=False)
    by_series = {name: frame[name].to_numpy().reshape(2, -1) for name in ("sales", "price", "promo")}
    np.savez(tmp_path / "new.npz", **by_series, date=np.array(days, "datetime64[D]"), store=np.array(["s0", "s1"]))
    written = {name: tmp_path / f"{name}.parquet" for name in ("csv", "npz")}
    for name, path in written.items():
        words = [str(only_folder(outputs)), str(tmp_path / f"new.{name}"), "-o", str(path), f"--outputs={outputs}"]
        assert predict.main(words) == 0
    pd.testing.assert_frame_equal(*map(pd.read_parquet, written.values()), check_exact=True)


def test_a_server_forecasts_the_latest_rows(outputs: Path, csv: Path) -> None:
    frame = pd.read_csv(csv)
    days = sorted({*frame.date})
    frame.loc[frame.date >= days[-4], "sales"] = np.nan
    with serving(only_folder(outputs), outputs) as (address, _):
        body = json.dumps({"dataframe_split": json.loads(frame.to_json(orient="split"))})
        status, answer = post(address, body.encode(), JSON)
    assert status == 200, answer
    answers = answer["predictions"]
    assert [(one["store"], one["date"]) for one in answers[:4]] == [(answers[0]["store"], day) for day in days[-4:]]
    assert len(answers) == 8


def test_a_mean_of_steps_is_the_error_of_the_predictions(outputs: Path) -> None:
    table = pq.read_table(only_folder(outputs) / "predictions.parquet")
    target, prediction = (np.array(table[name].to_pylist()) for name in ("target", "prediction"))
    summary = json.loads((only_folder(outputs) / "summary.json").read_text())
    assert np.abs(target - prediction).mean() == pytest.approx(summary["metrics"]["test/mae"], rel=1e-5)
