"""Arrays of a user's function from the command to predictions and MLflow, on two replicas."""

from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from tests import commands
from tests.pipeline.experiments import only_folder, only_run

pytestmark = pytest.mark.slow

FUNCTION = """
import numpy as np

def load():
    random = np.random.default_rng(0)
    def part(rows):
        vectors, color = random.normal(size=(rows, 5)), random.choice(["red", "blue"], rows)
        return {"parts": vectors, "color": color}, (vectors[:, 0] > 0) + 2 * (color == "red")
    return part(300), None, part(81)
"""


def test_a_function_of_arrays_is_trained_exported_and_asked(
    tmp_path: Path, migrated_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(FUNCTION)
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    (outputs / "mlflow.db").write_bytes(migrated_store.read_bytes())
    given = ("data=arrays", "data._target_=mine.load", "train.epochs=4", "strategy=mirrored", "evaluate.baseline=false")
    done = commands.run(*given, f"outputs={outputs}", cwd=tmp_path, trains=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "target has 4 values (0, 1, 2, 3): task=classification" in done.stdout
    folder, (_, tracked) = only_folder(outputs), only_run(outputs)
    monkeypatch.syspath_prepend(tmp_path)
    _, _, (features, targets) = __import__("mine").load()
    tested = pq.read_table(folder / "predictions.parquet")
    expected = np.stack(tested["probabilities"].to_numpy())
    np.testing.assert_array_equal(np.asarray(tested["label"]), targets)
    mlflow.set_tracking_uri(f"sqlite:///{outputs / 'mlflow.db'}")
    try:
        model = mlflow.pyfunc.load_model(tracked.data.tags["model_uri"])
    finally:
        mlflow.set_tracking_uri(None)
    frame = pd.DataFrame({"parts": [*features["parts"]], "color": features["color"]})
    by_mlflow = np.stack(model.predict(frame)["probabilities"].to_numpy())
    np.testing.assert_allclose(by_mlflow, expected, atol=1e-6)
